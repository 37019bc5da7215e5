"""`tidemark decode | upsert | quarantine`: typed tables and the tables made with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.app import option_texts
from tidemark.app.app import App
from tidemark.app.pipeline import Pipeline
from tidemark.app.pipelines import Outcomes, for_each
from tidemark.app.steps import STEPS, Result
from tidemark.bronze.ingest.planner import PlanOutcome
from tidemark.cli.arguments import (
    AsJson,
    DryRun,
    Master,
    Partition,
    PipelineName,
    complete_pipeline,
    requester,
)
from tidemark.cli.engine import exit_with, on_engine, print_outcomes
from tidemark.cli.output import note, out, print_json, print_records, print_table
from tidemark.cli.payloads import note_undecoded, payload_lines, unnamed_text
from tidemark.core.errors import TidemarkError
from tidemark.core.payload_text import MAX_SHOWN_BYTES
from tidemark.core.plain import plain, record_of
from tidemark.core.plan import Plan
from tidemark.core.record import LogRecord
from tidemark.core.texts import counted, listed, visible
from tidemark.ops.report.record_page import record_values
from tidemark.quality.suite import masked_payloads
from tidemark.silver.typed.following import ClearedTable
from tidemark.silver.typed.quarantine_record import QuarantinedRecord
from tidemark.silver.typed.replay_preview import ReplayPreview, chosen
from tidemark.silver.typed.state import DecodeBacklog
from tidemark.spec.decode import QuarantineReason
from tidemark.spec.ref import DecodeRef, Replay

if TYPE_CHECKING:
    from tidemark.silver.typed.decoded_payloads import PayloadDecoder

app = typer.Typer(
    help="List and replay records that could not be decoded or broke a row rule.",
    short_help="List and replay records that could not be decoded.",
    no_args_is_help=True,
)

OnlyReason = Annotated[QuarantineReason | None, typer.Option(help="Only records with this reason.")]
_MAX_LISTED = 50
_BACKLOG = ("to decode", "to remove", "not checked", "blocked or rejected", "quarantine")
"""The columns of a `DecodeBacklog`."""


def register(to: typer.Typer) -> None:
    """Add the command to the command line."""
    to.command(short_help=STEPS["decode"].title)(decode)
    to.command(short_help=STEPS["upsert"].title)(upsert)
    to.add_typer(app, name="quarantine")


def decode(
    pipelines: Annotated[
        list[str],
        typer.Argument(
            help="Names of specs that have a section `decode`.", autocompletion=complete_pipeline
        ),
    ],
    from_scratch: Annotated[
        bool,
        typer.Option("--from-scratch", help="First remove all decoded records. Requires --reason."),
    ] = False,
    reason: Annotated[
        str | None, typer.Option(help=f"{option_texts.REASON} Only with --from-scratch.")
    ] = None,
    master: Master = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Decode published records that are not in the typed table yet, without Kafka.

    Records of a landed plan are published by a check (`tidemark check`), or by an operator. With
    `publish: always` in the spec, all landed records are decoded.

    The typed table follows the bronze table. Records of an undone plan are removed, replaced
    records are decoded again, and records that cannot be decoded go to the quarantine. Repeating
    the command is safe. With nothing to decode, no Spark starts.

    With --from-scratch, the command corrects a wrong schema. It removes all rows of the typed
    table, gives the table the columns of the current spec, and decodes all published records again.
    The table is empty in between, and the bronze table does not change. --dry-run counts the
    records first.

    \b
    tidemark decode prices --from-scratch --reason "amounts were text" --dry-run
    """  # noqa: D301  click does not rewrap a paragraph that begins with \b
    if from_scratch != (reason is not None):
        raise typer.BadParameter("use --from-scratch and --reason TEXT together")
    tidemark = App.from_environment()
    names = list(dict.fromkeys(pipelines))
    for name in names:
        tidemark.pipeline(name).spec.decoding()
    if reason is not None and dry_run:
        clearings = for_each(tidemark, names, _clearing(reason, dry_run=True))
        _print_clearings(clearings, as_json)
        return
    if dry_run:
        _print_backlog(tidemark, names, as_json=as_json)
        return
    engine = on_engine(tidemark, master, names)
    refused = Outcomes()
    if reason is not None:
        cleared = for_each(tidemark, names, _clearing(reason))
        names = [name for name in names if isinstance(cleared[name], ClearedTable)]
        for name, each in cleared.items():
            if isinstance(each, ClearedTable):
                note(f"{name}: {_removed(record_of(each))} removed")
            else:
                refused.add(name, each)
        engine = on_engine(tidemark, master, names)
    outcomes = engine.decode() if names else Outcomes()
    outcomes.extend(refused)
    backlogs = for_each(tidemark, names, lambda each: each.typed.backlog())
    hidden = {name: each for name, each in backlogs.items() if isinstance(each, DecodeBacklog)}
    waiting = {
        name: tidemark.pipeline(name).publication.unchecked()
        for name, each in hidden.items()
        if each.unchecked
    }
    if not as_json:
        _print_hidden(hidden, waiting)
    outcomes.records = [
        _with_hidden(outcomes.by_pipeline[name], hidden, waiting)
        for name in dict.fromkeys(pipelines)
    ]
    _print(outcomes, as_json=as_json)


def _clearing(reason: str, *, dry_run: bool = False) -> Callable[[Pipeline], ClearedTable]:
    by = requester()
    return lambda pipeline: pipeline.typed.clear(by, reason, dry_run=dry_run)


def _print_clearings(found: Mapping[str, ClearedTable | TidemarkError], as_json: bool) -> None:
    """Print what `--from-scratch` would do, and end with the worst exit code."""
    outcomes = Outcomes.of(
        {
            name: {"outcome": "draft", **record_of(each)}
            if isinstance(each, ClearedTable)
            else each
            for name, each in found.items()
        }
    )

    def line(record: Result) -> str:
        if "rows" not in record:
            return f"{record['pipeline']}: {record['outcome']}"
        removed, offsets = _removed(record), counted(record["offsets"], "offset")
        return f"{record['pipeline']}: would remove {removed}, and decode {offsets}"

    print_outcomes(outcomes, line, as_json=as_json)


def _removed(record: Result) -> str:
    rows = record["rows"]
    return "all rows" if rows is None else counted(rows, "row")


def upsert(
    pipelines: Annotated[
        list[str],
        typer.Argument(
            help="Names of specs that have a section `decode.upsert`.",
            autocompletion=complete_pipeline,
        ),
    ],
    master: Master = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Bring upsert tables up to date: one row for each key, with its newest record.

    A row never goes back to an older record, even if a backfill or a replay decodes records late.
    Repeating the command is safe. With nothing to merge, no Spark starts.
    """
    tidemark = App.from_environment()
    names = list(dict.fromkeys(pipelines))
    for name in names:
        tidemark.pipeline(name).spec.upsert()
    if dry_run:
        outcomes = Outcomes.of(for_each(tidemark, names, _draft_of_merge))
        backlogs = for_each(tidemark, names, lambda each: each.typed.backlog())
    else:
        outcomes, backlogs = on_engine(tidemark, master, names).upsert(), {}
    # A merge has no plan.
    outcomes.records = [
        {"typed_version": None}
        | {key: value for key, value in outcomes.by_pipeline[name].items() if key != "plan"}
        | _left_to_decode(outcomes.by_pipeline[name], backlogs.get(name))
        for name in names
    ]
    print_outcomes(
        outcomes,
        lambda record: f"{record['pipeline']}: {_merge_text(record, dry_run=dry_run)}",
        as_json=as_json,
    )


def _draft_of_merge(pipeline: Pipeline) -> Result:
    merge = pipeline.upsert.planner.next()
    return {"outcome": PlanOutcome.NOTHING.value} if merge is None else merge.as_record()


def _left_to_decode(
    record: Result, backlog: DecodeBacklog | TidemarkError | None
) -> dict[str, int]:
    """Return how many offsets to decode and to remove before the merge; empty if unknown."""
    if "error" in record or not isinstance(backlog, DecodeBacklog):
        return {}
    return {"to_decode": backlog.missing, "to_remove": backlog.surplus}


def _merge_text(record: Result, *, dry_run: bool) -> str:
    merge = str(record.get("outcome"))
    if "scope" in record:
        merge = f"{'would merge' if dry_run else 'merged'} {record['scope']}"
    counts = [(record.get("to_decode"), "to decode"), (record.get("to_remove"), "to remove")]
    waits = ", ".join(f"{counted(count, 'offset')} {what}" for count, what in counts if count)
    return f"{merge}; first tidemark decode {record['pipeline']}: {waits}" if waits else merge


@app.command("list", short_help="List the records in quarantine, with the reasons.")
def list_records(
    pipeline: PipelineName,
    partition: Partition = None,
    reason: OnlyReason = None,
    show: Annotated[
        bool,
        typer.Option(
            "--show", help="Show keys, values and headers, except the ones that the suite masks."
        ),
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"Maximum number of listed records. Default: {_MAX_LISTED}, or with --json "
            "and without --show all.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the records of a pipeline that could not be decoded, by offset and reason.

    Only with --show, the list contains their bytes: at most 64 KiB of each key, value and header,
    with escapes for invisible characters. As in `tidemark topics peek`, keys and values with a
    known schema are decoded, except with --json. The bytes come from the bronze table. A record
    that the bronze table no longer has is listed without them.

    \b
    tidemark quarantine list prices --reason malformed --show --limit 5
    """  # noqa: D301  click does not rewrap a paragraph that begins with \b
    owner = App.from_environment().pipeline(pipeline)
    typed = owner.typed
    found = chosen(typed.quarantine.records(), partition, reason)
    most = limit or (None if as_json and not show else _MAX_LISTED)
    listed = found[:most]
    masked = masked_payloads(owner.masked_columns()) if show else frozenset()
    if as_json:
        values = partial(record_values, masked=masked, max_bytes=MAX_SHOWN_BYTES)
        print_json(
            [
                record_of(each) | {"rows": [{"plan": plan, **values(row)} for plan, row in rows]}
                for each, rows in typed.with_bronze_rows(listed)
            ]
            if show
            else plain(listed)
        )
        return
    out.print(f"{counted(len(found), 'record')} of {pipeline} in quarantine")
    if found:
        reasons = Counter((each.reason, each.part, each.detail) for each in found)
        print_table(
            "Reasons",
            ("reason", "part", "field or rule", "records"),
            [(*why, count) for why, count in reasons.most_common()],
        )
    if show:
        from tidemark.silver.typed.decoded_payloads import PayloadDecoder

        shown = list(typed.with_bronze_rows(listed))
        contents = (row for _, rows in shown for _, row in rows)
        decoder = PayloadDecoder.of(contents, owner.registry_answers)
        for each, rows in shown:
            _print_rows(owner.name, each, rows, masked, decoder)
        note_undecoded(decoder)
    elif found:
        columns = ("partition", "offset", "reason", "part", "field or rule", "schema", "plan")
        print_table("Records", columns, [_row(each) for each in listed])
    if len(found) > len(listed):
        out.print(f"{len(listed):,} of {len(found):,} listed; --limit {len(found)} lists all")


def _print_rows(
    pipeline: str,
    record: QuarantinedRecord,
    rows: Sequence[tuple[int, LogRecord]],
    masked: Collection[str],
    decoder: PayloadDecoder,
) -> None:
    why = ", ".join(visible(each) for each in (record.reason, record.part, record.detail) if each)
    place = f"partition {record.partition}, offset {record.offset:,}"
    out.print(f"{place}  plan {record.plan}: {why}")
    if not rows:
        place = f"--partition {record.partition} --offset {record.offset}"
        page = f"tidemark records {pipeline} {place} --topic-id {record.topic_id}"
        out.print(f"  no row in the bronze table; the reason: {page}")
    for plan, row in rows:
        out.print(f"  row of plan {plan}, {row.timestamp_text}")
        for line in payload_lines(row, masked, decoder):
            out.print(line)


@app.command(short_help="Decode records in quarantine again.")
def replay(
    pipeline: PipelineName,
    partition: Partition = None,
    reason: OnlyReason = None,
    master: Master = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Decode records in quarantine again, after a fix of the schema or of a rule.

    Decoded records go to the typed table; the others are quarantined again. The command also
    decodes other waiting records, as `tidemark decode` does.

    With --dry-run, Spark decodes the records with the current spec and writes nothing. The command
    reports how many would be decoded, and why the others would be quarantined again.
    """
    tidemark = App.from_environment()
    typed, selected = tidemark.pipeline(pipeline).typed, Replay(partition=partition, reason=reason)
    if dry_run:
        outcomes = Outcomes()
        if typed.replayed(selected):
            ref = DecodeRef(pipeline=pipeline, replay=selected)
            outcomes = on_engine(tidemark, master, [pipeline]).execute("replay_preview", [ref])
        else:
            nothing = ReplayPreview(records=0, results=Counter())
            outcomes.add(pipeline, nothing.as_record())
        _print_previews(outcomes, as_json=as_json)
        return

    next_step = f"next: tidemark upsert {pipeline}" if typed.spec.has_upsert else None
    outcomes = on_engine(tidemark, master, [pipeline]).decode(selected)
    _print(outcomes, next_step, as_json=as_json)


def _print(outcomes: Outcomes, next_step: str | None = None, *, as_json: bool) -> None:
    """Print the results of decodes, and end with the worst exit code."""

    def line(record: Result) -> str | None:
        if "plans" in record:
            decoded, quarantined = record["records"] - record["quarantined"], record["quarantined"]
            counts = f"{counted(decoded, 'record')} decoded, {quarantined:,} quarantined"
            if record["removed"]:
                counts += f", {counted(record['removed'], 'offset')} removed"
            done = f"{record['pipeline']}: {counts}"
            return "; ".join(filter(None, [done, unnamed_text(record), next_step]))
        if record.get("unchecked"):
            # The line above names the step that the decode waits for.
            return None
        if len(outcomes.records) == 1 or record["outcome"] != PlanOutcome.NOTHING:
            return f"{record['pipeline']}: {record['outcome']}"
        return None

    if not as_json:
        for stopped in (each for each in outcomes.records if "error" in each and "plans" in each):
            out.print(line(stopped))
    print_outcomes(outcomes, line, as_json=as_json)


def _print_previews(outcomes: Outcomes, *, as_json: bool) -> None:
    """Print which records a replay would decode, and end with the worst exit code."""

    def line(record: Result) -> str:
        if "offsets" not in record:
            return f"{record['pipeline']}: {record['outcome']}"
        skipped = f", {record['skipped']:,} would stay unchanged" if record["skipped"] else ""
        return (
            f"{counted(record['offsets'], 'record')} would be replayed: "
            f"{record['decoded']:,} decoded, {record['quarantined']:,} quarantined again{skipped}"
        )

    print_records(outcomes.records, line, as_json=as_json)
    for record in () if as_json else outcomes.records:
        if reasons := record.get("reasons"):
            print_table(
                "Would be quarantined again",
                ("reason", "part", "field or rule", "records"),
                [tuple(each.values()) for each in reasons],
            )
    exit_with(outcomes)


def _print_backlog(tidemark: App, names: list[str], *, as_json: bool) -> None:
    backlogs = {name: tidemark.pipeline(name).typed.backlog() for name in names}
    if as_json:
        print_json([{"pipeline": name, **record_of(each)} for name, each in backlogs.items()])
        return
    print_table(
        "Offsets",
        ("pipeline", *_BACKLOG),
        [
            (
                *(name, each.missing, each.surplus, each.unchecked, each.refused),
                "to complete" if each.quarantine_behind else None,
            )
            for name, each in backlogs.items()
        ],
    )


def _with_hidden(
    record: Result, backlogs: Mapping[str, DecodeBacklog], waiting: Mapping[str, Sequence[int]]
) -> Result:
    """Add the numbers of landed offsets that are not decoded to the last record of a pipeline.

    Args:
        record: The outcome of a plan or of a pipeline.
        backlogs: The backlogs of typed tables.
        waiting: The plans for whose checks they wait.
    """
    backlog = backlogs.get(record["pipeline"])
    if backlog is None or "outcome" not in record:
        return record
    plans = [*waiting.get(record["pipeline"], ())]
    hidden = {"unchecked": backlog.unchecked, "refused": backlog.refused}
    return {**record, **hidden, "unchecked_plans": plans}


def _print_hidden(
    backlogs: Mapping[str, DecodeBacklog], waiting: Mapping[str, Sequence[int]]
) -> None:
    """Print which landed offsets are not decoded, and the command that helps."""
    for name, backlog in backlogs.items():
        if backlog.unchecked:
            plans = waiting[name]
            # Without such a plan, a RESTORE has brought back offsets of a checked plan.
            step = f"the check of {listed('plan', plans)}" if plans else "an operator's decision"
            command = f"check {name} --plan {plans[0]}" if plans else f"publication list {name}"
            if plans[1:]:
                command += f", or tidemark run {name} for all {len(plans):,} plans"
            offsets = counted(backlog.unchecked, "landed offset")
            out.print(f"{name} waits for {step}: {offsets}: tidemark {command}")
        if backlog.refused:
            text = f"{counted(backlog.refused, 'landed offset')} in blocked or rejected plans"
            out.print(f"{name}: {text}: tidemark publication list {name}")


def next_commands(app: App, plan: Plan) -> list[str]:
    """Return the commands that update typed and upsert tables after the withdrawal of a plan.

    Args:
        app: Tidemark.
        plan: A plan that an operator has undone or rejected.

    Returns:
        No commands if the plan has no decoded rows.
    """
    pipeline = app.pipeline(plan.pipeline)
    if not pipeline.spec.decode or not pipeline.typed.has_rows_of(plan):
        return []
    upsert = [f"tidemark upsert {pipeline.name}"] if pipeline.spec.has_upsert else []
    return [f"tidemark decode {pipeline.name}", *upsert]


def print_next(commands: Sequence[str]) -> None:
    """Print the result of `next_commands`."""
    if commands:
        out.print(f"next, to update the decoded tables: {', then '.join(commands)}")


def _row(record: QuarantinedRecord) -> tuple[object, ...]:
    return (
        record.partition,
        record.offset,
        record.reason,
        record.part,
        record.detail,
        record.schema_id,
        record.plan,
    )
