"""`tidemark decode | upsert | quarantine`: typed tables and the tables made with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated

import typer

from tidemark.app import App
from tidemark.cli.arguments import (
    AsJson,
    DryRun,
    Master,
    Partition,
    PipelineName,
    complete_pipeline,
)
from tidemark.cli.engine import exit_with, on_engine
from tidemark.cli.output import out, print_json, print_records, print_table
from tidemark.core.offsets import Span, SpanSet, difference_by_partition, spans_by_partition
from tidemark.ingest.planner import PlanOutcome, PlanResult
from tidemark.pipeline import Pipeline
from tidemark.pipelines import Outcomes, for_each
from tidemark.spec.decode import QuarantineReason
from tidemark.spec.ref import PipelineRef
from tidemark.spec.upsert import MergePlan
from tidemark.steps import Result
from tidemark.typed.decoder import DecodeBacklog
from tidemark.typed.quarantine_record import QuarantinedRecord

app = typer.Typer(
    help="List and replay records that could not be decoded or broke a row rule.",
    short_help="List and replay records that could not be decoded.",
    no_args_is_help=True,
)

_MAX_LISTED = 50
_BACKLOG = (
    *("to decode", "planned", "to decode again", "to remove"),
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
        list[str],
        typer.Argument(
            help="Names of specs that have a section `decode`.", autocompletion=complete_pipeline
        ),
    ],
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
    names = list(dict.fromkeys(tidemark.pipeline(name).upserts.spec.origin for name in pipelines))
    if dry_run:
        outcomes = Outcomes()
        for name, result in for_each(tidemark, names, lambda each: each.upserts.next()).items():
            draft = result.as_record() if isinstance(result, MergePlan) else result
            outcomes.add(name, draft or {"outcome": PlanOutcome.NOTHING.value})
    else:
        outcomes = on_engine(tidemark, master, names).upsert()
    # A merge has no plan.
    records = [
        {"typed_version": None}
        | {key: value for key, value in outcomes.by_pipeline[name].items() if key != "plan"}
        for name in names
    ]
    print_records(
        records,
        lambda record: f"{record['pipeline']}: {_merge_text(record, dry_run=dry_run)}",
        as_json=as_json,
    )
    exit_with(outcomes)


def _merge_text(record: Result, *, dry_run: bool) -> str:
    if "scope" not in record:
        return str(record["outcome"])
    return f"{'would merge' if dry_run else 'merged'} {record['scope']}"


@app.command("list", short_help="List the records in quarantine, with the reasons.")
def list_records(
    pipeline: PipelineName,
    everything: Annotated[bool, typer.Option("--all", help="List closed records too.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the records of a pipeline that could not be decoded, by offset and reason.

    The list does not contain their bytes, which are in the quarantine table. A record is closed by
    the plan that decodes it again.
    """
    tidemark = App.from_environment()
    found = tidemark.pipeline(pipeline).typed.quarantine.records(closed=everything)
    if as_json:
        print_json([each.as_record() for each in found])
        return
    out.print(f"{len(found):,} record(s) of {pipeline} in quarantine")
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
        listed = [_row(each) for each in found[:_MAX_LISTED]]
        print_table("Records", (*columns, "closed by"), listed)
    if len(found) > _MAX_LISTED:
        out.print(f"only the first {_MAX_LISTED} are listed; --json prints all")


@app.command(short_help="Decode records in quarantine again.")
def replay(
    pipeline: PipelineName,
    partition: Partition = None,
    reason: Annotated[
        QuarantineReason | None, typer.Option(help="Only records with this reason.")
    ] = None,
    master: Master = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Decode open records again, and no others, after a fix of the schema or of a rule.

    Decoded records go to the typed table; the others are quarantined again. In both cases the
    number of the plan closes the old rows.
    """
    tidemark = App.from_environment()
    typed = tidemark.pipeline(pipeline).typed
    wanted = [
        each
        for each in typed.quarantine.records()
        if partition in (None, each.partition) and reason in (None, each.reason)
    ]
    # A plan contains records of one incarnation of the topic.
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
        outcomes.add(typed.name, {"outcome": "draft", "offsets": len(wanted)})
        _print(outcomes, as_json=as_json)
        return

    def next_plan(typed: Pipeline) -> PlanResult:
        for topic_id, spans in left.items():
            result = typed.decoder.replay(topic_id, spans)
            if result.plan is None:
                continue
            if result.plan.topic_id == topic_id:
                left[topic_id] = difference_by_partition(spans, result.plan.spans())
            return result
        return typed.decoder.plan()

    _print(on_engine(tidemark, master, [typed.name]).decode(next_plan), as_json=as_json)


def _print(outcomes: Outcomes, *, as_json: bool) -> None:
    """Print the results of plans of typed tables, and end with the worst exit code."""

    def line(record: Result) -> str | None:
        if "wrote" in record:
            decoded, quarantined = record["records"] - record["quarantined"], record["quarantined"]
            return (
                f"{record['pipeline']}: plan {record['plan']}: {decoded:,} record(s) decoded, "
                f"{quarantined:,} quarantined{_unnamed_text(record)}"
            )
        if "offsets" in record:
            return f"{record['offsets']:,} record(s) would be decoded again"
        if len(outcomes.records) == 1 or record["outcome"] != PlanOutcome.NOTHING:
            return f"{record['pipeline']}: {record['outcome']}"
        return None

    print_records(outcomes.records, line, as_json=as_json)
    exit_with(outcomes)


def _unnamed_text(record: Result) -> str:
    """Return the text about fields that the schema does not name; empty without any."""
    unnamed = record.get("unnamed_fields")
    if not unnamed or not unnamed["records"]:
        return ""
    names = [f"{name!r} ({count:,})" for name, count in unnamed["names"].items()]
    names += ["more"] if unnamed["more"] else []
    counted = f"; {unnamed['records']:,} with unnamed fields"
    return f"{counted}: {', '.join(names)}" if names else counted


def _print_backlog(tidemark: App, names: list[str], *, as_json: bool) -> None:
    backlogs = {name: tidemark.pipeline(name).decoder.backlog() for name in names}
    if as_json:
        print_json([{"pipeline": name, **each.as_record()} for name, each in backlogs.items()])
        return
    print_table(
        "Offsets",
        ("pipeline", *_BACKLOG),
        [(name, *each.as_record().values()) for name, each in backlogs.items()],
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
            command = f"check {origin} --plan {plans[0]}" if plans else f"publication list {origin}"
            if plans[1:]:
                command += f", or tidemark run {origin} for all {len(plans):,} plans"
            text = f"{name}: {backlog.unchecked:,} landed offset(s) are not checked"
            out.print(f"{text}: tidemark {command}")
        if backlog.refused:
            text = f"{name}: {backlog.refused:,} landed offset(s) are in blocked or rejected plans"
            out.print(f"{text}: tidemark publication list {origin}")


def _row(record: QuarantinedRecord) -> tuple[object, ...]:
    return (
        record.partition,
        record.offset,
        record.reason,
        record.part,
        record.detail,
        record.schema_id,
        record.value_bytes,
        record.plan,
        record.closed_by,
    )
