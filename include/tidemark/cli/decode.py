"""`tidemark decode | quarantine`: typed tables, and what could not be decoded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated

import typer

from tidemark.app import App
from tidemark.cli.arguments import AsJson, DryRun, Master, PipelineName
from tidemark.cli.console import out, print_error_record, print_json, print_table
from tidemark.cli.spark import exit_with, on_engine
from tidemark.core.offsets import Span, SpanSet, difference_by_partition, spans_by_partition
from tidemark.ingest.planner import PlanResult
from tidemark.pipeline import Pipeline
from tidemark.pipelines import Outcomes, for_each
from tidemark.spec.decode import QuarantineReason
from tidemark.spec.ref import PipelineRef
from tidemark.spec.upsert import MergePlan
from tidemark.steps import Result
from tidemark.typed.decoder import DecodeBacklog
from tidemark.typed.quarantine_record import QuarantinedRecord

app = typer.Typer(
    help="Records that could not be decoded, or broke a row rule: show them, decode them again.",
    short_help="Records that could not be decoded.",
    no_args_is_help=True,
)

_SHOWN = 50
_BACKLOG = (
    *("to decode", "of them planned", "to decode again", "to remove"),
    *("not checked", "blocked or rejected"),
)
"""The columns of a `DecodeBacklog`."""


def register(to: typer.Typer) -> None:
    """Add the command to the command line."""
    to.command(short_help="Decode published records into typed tables.")(decode)
    to.command(short_help="Merge typed rows by key into upsert tables.")(upsert)
    to.add_typer(app, name="quarantine")


def decode(
    pipelines: Annotated[
        list[str], typer.Argument(help="Names of specs that have a section `decode`.")
    ],
    master: Master = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Decode published records that are not in the typed table yet, without Kafka.

    Records of a landed plan are published by a check (`tidemark quality`), or by an operator. With
    `publish: always` in the spec, all landed records are decoded.

    The typed table follows the bronze table. What was undone there leaves it, what was replaced is
    decoded again, and what cannot be decoded goes to the quarantine. Plans and commits are as those
    of a landing: call it again safely. With nothing to decode, no Spark is started.
    """
    tidemark = App.from_environment()
    names = [tidemark.pipeline(name).typed.spec.name for name in dict.fromkeys(pipelines)]
    if dry_run:
        _print_backlog(tidemark, names, as_json=as_json)
        return
    outcomes = on_engine(tidemark, master, names).decode()
    backlogs = for_each(tidemark, names, lambda each: each.decoder.backlog())
    hidden = {name: each for name, each in backlogs.items() if isinstance(each, DecodeBacklog)}
    if not as_json:
        _print_hidden(tidemark, hidden)
    outcomes.records = [_with_hidden(record, hidden) for record in outcomes.records]
    _print(outcomes, as_json=as_json)


def upsert(
    pipelines: Annotated[
        list[str], typer.Argument(help="Names of specs that have a section `decode.upsert`.")
    ],
    master: Master = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Bring upsert tables up to date: one row for each key, with its newest record.

    A row never goes back to an older record, even if a backfill or a replay decodes records late.
    Repeating the command is safe. With nothing to merge, no Spark is started.
    """
    tidemark = App.from_environment()
    names = list(dict.fromkeys(tidemark.pipeline(name).upserts.spec.origin for name in pipelines))
    if dry_run:
        outcomes = Outcomes()
        for name, came in for_each(tidemark, names, lambda each: each.upserts.next()).items():
            draft = came.as_record() if isinstance(came, MergePlan) else came
            outcomes.add(name, draft or {"outcome": "nothing to do"})
    else:
        outcomes = on_engine(tidemark, master, names).upsert()
    records = [_without_plan(outcomes.by_pipeline[name]) for name in names]
    if as_json:
        print_json(records)
    for record in () if as_json else records:
        if "error" in record:
            print_error_record(record)
        else:
            out.print(f"{record['pipeline']}: {record.get('scope', record.get('outcome'))}")
    exit_with(outcomes)


def _without_plan(record: Result) -> Result:
    """Return the result of a merge, which has no plan."""
    return {"typed_version": None, **{key: record[key] for key in record if key != "plan"}}


@app.command("list", short_help="What is in quarantine, and why.")
def list_records(
    pipeline: PipelineName,
    everything: Annotated[
        bool, typer.Option("--all", help="Closed records as well, not only what is open.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the records of a pipeline that could not be decoded, by place and reason.

    Their bytes are in the quarantine table, and are not shown. One is closed by the plan that
    decodes it again.
    """
    tidemark = App.from_environment()
    found = tidemark.pipeline(pipeline).typed.quarantine.records(closed=everything)
    if as_json:
        print_json([each.as_record() for each in found])
        return
    out.print(f"{len(found):,} record(s) of {pipeline} in quarantine", markup=False)
    if found:
        reasons = Counter((each.reason, each.part, each.detail) for each in found)
        print_table(
            "Reasons",
            ("reason", "part", "field or rule", "records"),
            [(*why, count) for why, count in reasons.most_common()],
        )
        columns = (
            *("partition", "offset", "reason", "part", "field or rule"),
            *("schema", "bytes", "plan"),
        )
        print_table("Records", (*columns, "closed by"), [_row(each) for each in found[:_SHOWN]])
    if len(found) > _SHOWN:
        out.print(f"the first {_SHOWN}; --json has all")


@app.command(short_help="Decode records in quarantine again.")
def replay(
    pipeline: PipelineName,
    partition: Annotated[
        int | None, typer.Option(min=0, help="Only of this partition; of all if left out.")
    ] = None,
    reason: Annotated[
        QuarantineReason | None, typer.Option(help="Only those with this reason; all if left out.")
    ] = None,
    master: Master = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Decode open records again, and nothing else, after the schema or a rule was mended.

    What can be decoded now goes to the typed table; what cannot is quarantined anew. Either way the
    old rows are closed, by the number of the plan that did it.
    """
    tidemark = App.from_environment()
    spec = tidemark.pipeline(pipeline).typed.spec
    wanted = [
        each
        for each in tidemark.pipeline(pipeline).quarantine.records()
        if partition in (None, each.partition) and reason in (None, each.reason)
    ]
    # By incarnation of the topic: a plan is of one.
    left: dict[str, Mapping[int, SpanSet]] = {
        topic_id: spans_by_partition(
            (each.partition, Span(each.offset, each.offset + 1))
            for each in wanted
            if each.topic_id == topic_id
        )
        for topic_id in sorted({each.topic_id for each in wanted})
    }
    if dry_run:
        outcomes = Outcomes()
        outcomes.add(spec.name, {"outcome": "draft", "offsets": len(wanted)})
        _print(outcomes, as_json=as_json)
        return

    def next_plan(typed: Pipeline) -> PlanResult:
        for topic_id, spans in left.items():
            made = typed.decoder.replay(topic_id, spans)
            if made.plan is None:
                continue
            if made.plan.topic_id == topic_id:
                left[topic_id] = difference_by_partition(spans, made.plan.spans())
            return made
        return typed.decoder.plan()

    _print(on_engine(tidemark, master, [spec.name]).decode(next_plan), as_json=as_json)


def _print(outcomes: Outcomes, *, as_json: bool) -> None:
    records = outcomes.records
    if as_json:
        print_json(records)
    for record in () if as_json else records:
        if "error" in record:
            print_error_record(record)
        elif "wrote" in record:
            quarantined = record["quarantined"]
            out.print(
                f"{record['pipeline']}: plan {record['plan']}: "
                f"{record['records'] - quarantined:,} record(s) decoded, "
                f"{quarantined:,} quarantined",
                markup=False,
            )
        elif "offsets" in record:
            out.print(f"{record['offsets']:,} record(s) would be decoded again")
        elif len(records) == 1 or record["outcome"] != "nothing to do":
            out.print(f"{record['pipeline']}: {record['outcome']}", markup=False)
    exit_with(outcomes)


def _print_backlog(tidemark: App, names: list[str], *, as_json: bool) -> None:
    seen = {name: tidemark.pipeline(name).decoder.backlog() for name in names}
    if as_json:
        print_json([{"pipeline": name, **each.as_record()} for name, each in seen.items()])
        return
    print_table(
        "Offsets",
        ("pipeline", *_BACKLOG),
        [(name, *each.as_record().values()) for name, each in seen.items()],
    )


def _with_hidden(record: Result, backlogs: Mapping[str, DecodeBacklog]) -> Result:
    """Add the numbers of landed offsets that are not decoded to the last record of a pipeline."""
    backlog = backlogs.get(record["pipeline"])
    if backlog is None or "outcome" not in record:
        return record
    return {**record, "unchecked": backlog.unchecked, "refused": backlog.refused}


def _print_hidden(tidemark: App, backlogs: Mapping[str, DecodeBacklog]) -> None:
    """Print which landed offsets are not decoded, and the command that helps."""
    for name, backlog in backlogs.items():
        origin = PipelineRef.parse(name).name
        if backlog.unchecked:
            plans = tidemark.pipeline(origin).publication.unchecked()
            # Without such a plan, a RESTORE has brought back offsets of a checked plan.
            command = (
                f"quality {origin} --plan {plans[0]}" if plans else f"publication list {origin}"
            )
            if plans[1:]:
                command += f", or tidemark run {origin} for all {len(plans):,} plans"
            text = f"{name}: {backlog.unchecked:,} landed offset(s) are not checked: tidemark "
            out.print(f"{text}{command}", markup=False)
        if backlog.refused:
            text = (
                f"{name}: {backlog.refused:,} landed offset(s) are in blocked or rejected plans: "
            )
            out.print(f"{text}tidemark publication list {origin}", markup=False)


def _row(each: QuarantinedRecord) -> tuple[object, ...]:
    return (
        each.partition,
        each.offset,
        each.reason,
        each.part,
        each.detail,
        each.schema_id,
        each.value_bytes,
        each.plan,
        each.closed_by,
    )
