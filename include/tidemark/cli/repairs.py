"""Commands for operators' decisions and repairs: abandon, undo, accept-loss and the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from tidemark.app import option_texts
from tidemark.app.app import App
from tidemark.app.repair import RepairPart
from tidemark.bronze.repair.rules import Differences
from tidemark.cli.arguments import (
    AsJson,
    DryRun,
    DryRunOrApply,
    LandedPlan,
    PipelineName,
    PipelineTable,
    Reason,
    requester,
)
from tidemark.cli.decode import next_commands, print_next
from tidemark.cli.output import out, print_json, print_table
from tidemark.core.plain import plain
from tidemark.core.plan import Plan
from tidemark.core.texts import counted
from tidemark.delta import deduplication

control_app = typer.Typer(
    name="control",
    help="Repair the control table, which records all plans and their results.",
    short_help="Repair the control table.",
    no_args_is_help=True,
)


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command(short_help="Abandon a plan that cannot land.")(abandon)
    app.command(short_help="Remove the rows of a landed plan.")(undo)
    app.command("accept-loss", short_help="Skip offsets that Kafka has deleted, and continue.")(
        accept_loss
    )
    app.command("accept-recreation", short_help="Continue with a recreated topic.")(
        accept_recreation
    )
    app.command(short_help="Re-read what a RESTORE of the data table removed.")(rewind)
    app.command(short_help="Remove duplicate rows from a data table.")(deduplicate)
    app.add_typer(control_app)


def abandon(
    pipeline: PipelineName,
    plan_number: Annotated[int, typer.Option("--plan", min=1, help="Number of an open plan.")],
    reason: Reason,
    discard: Annotated[
        bool,
        typer.Option(
            "--discard", help="Remove its rows if it landed while its topic was recreated."
        ),
    ] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Abandon a plan that cannot land; its offsets are unread again, and the next plan has them.

    For a plan that is too large, or whose range Kafka no longer has. A driver that still executes
    the plan cannot land it afterwards, so nothing lands twice. A plan that is recorded as landed
    cannot be abandoned.
    """
    abandoned = _repairs(pipeline).abandon(
        plan_number, requester(), reason, discard=discard, dry_run=dry_run
    )
    if as_json:
        _print_record("abandoned", {"plan": abandoned.as_record()}, dry_run=dry_run)
        return
    verb = "would be" if dry_run else "is"
    size = counted(abandoned.size, "offset")
    out.print(f"plan {plan_number} of {pipeline} {verb} abandoned: {size}")


def undo(
    pipeline: PipelineName,
    plan_number: LandedPlan,
    reason: Reason,
    allow_loss: Annotated[
        bool,
        typer.Option(
            "--allow-loss",
            help="Also remove rows that are, or may be, the only copy of their records.",
        ),
    ] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Remove exactly the rows of a landed plan; its offsets are unread again.

    The next run reads them again. Only a backfill reads those before the pipeline's start. Rows
    that the plan had replaced do not come back. After a stop, run the command again: it continues.

    If Kafka has deleted some of the offsets, the rows are the only copy of their records, and the
    command refuses. It also refuses while Kafka does not answer. If Kafka or the topic is gone
    permanently, `--allow-loss` removes the rows nevertheless.
    """
    app = App.from_environment()
    undone = app.pipeline(pipeline).repair.undo(
        plan_number, requester(), reason, allow_loss=allow_loss, dry_run=dry_run
    )
    commands = next_commands(app, undone.plan)
    if as_json:
        values = {"plan": undone.as_record(), "next": commands}
        _print_record("undone", values, dry_run=dry_run)
        return
    verb = "would be" if dry_run else "is"
    rows = counted(undone.rows, "row")
    out.print(f"plan {plan_number} of {pipeline} {verb} undone: {rows}")
    if undone.lost:
        lost = counted(undone.lost, "offset")
        out.print(f"Kafka no longer has the records at {lost} of the plan")
    elif undone.problem is not None:
        cause = undone.problem.rendered("problem")
        out.print(f"unknown whether a run can read the offsets again: {cause}")
        if dry_run:
            out.print("the undo needs Kafka's answer, or `--allow-loss`")
    print_next(commands)


def accept_loss(
    pipeline: PipelineName,
    reason: Reason,
    partition: Annotated[
        list[int] | None,
        typer.Option(min=0, help=f"{option_texts.ONE_PARTITION} May be repeated."),
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Accept that Kafka deleted unread offsets, skip them, and continue.

    For LostRange: retention or another program removed records that had not landed. Exactly the
    unread offsets below the low watermarks are recorded as lost, with your name, the time and the
    reason. Partitions without a loss do not change. The decision is final.
    """
    accepted = _repairs(pipeline).accept_loss(partition or (), requester(), reason, dry_run=dry_run)
    rows = [
        (number, span.start, span.end, span.size, accepted.committed[number])
        for number, spans in accepted.lost.items()
        for span in spans
    ]
    columns = ("partition", "start", "end", "offsets", "committed offset")
    _print_decision("accepted", dry_run, "Permanently lost", columns, rows, as_json)


def accept_recreation(
    pipeline: PipelineName, reason: Reason, dry_run: DryRun = False, as_json: AsJson = False
) -> None:
    """Continue with a recreated topic, from its first offset.

    For TopicRecreated, also after you moved the pipeline to another cluster. Landed records of the
    old topic stay in the data table with its topic_id; its unread records are lost. Your name, the
    time and the reason are recorded. The decision is final.
    """
    accepted = _repairs(pipeline).accept_recreation(requester(), reason, dry_run=dry_run)
    _print_decision(
        "accepted",
        dry_run,
        f"{accepted.topic} {accepted.topic_id} of cluster {accepted.cluster_id} is read from",
        ("partition", "offset"),
        sorted(accepted.offsets.items()),
        as_json,
    )


def rewind(
    pipeline: PipelineName, reason: Reason, dry_run: DryRun = False, as_json: AsJson = False
) -> None:
    """Follow a RESTORE of the data table: offsets whose rows it removed are unread again.

    For TableBehindLedger, also after a data table was removed. Opens a new epoch: drivers that
    execute older plans can no longer land them. Offsets that Kafka has deleted since then raise
    LostRange.
    """
    found = _repairs(pipeline).rewind(requester(), reason, dry_run=dry_run)
    _print_differences("undone", dry_run, found, as_json)


@control_app.command(short_help="Record the plans that the control table has lost.")
def rebuild(
    pipeline: PipelineName,
    dry_run: DryRunOrApply,
    reason: Reason = "control table rebuilt",
    as_json: AsJson = False,
) -> None:
    """Record the plans that are in the data table and that the control table has lost.

    For LedgerBehindTable: the control table was removed, truncated, or restored from a backup.
    Reads the data table's commits, and its rows where log retention has removed the commits. Opens
    a new epoch: plans that only the lost table contained can never land. Only the control table
    records accepted losses: accept them again when LostRange names them. The lost table also had
    the decisions about publication, so the recorded plans are unchecked. Reject or release plans
    again before the next run checks them.
    """
    found = _repairs(pipeline).rebuild(requester(), reason, dry_run=dry_run)
    _print_differences("rebuilt", dry_run, found, as_json)


def deduplicate(pipeline: PipelineTable, dry_run: DryRunOrApply, as_json: AsJson = False) -> None:
    """Remove copies of rows from a data table.

    Fixes DuplicateRows, which the compaction of another program can cause. Rows with the same topic
    id, partition, offset and plan are copies if all their columns are equal; one of them stays.
    Ends with DuplicatesDiffer and removes nothing if the columns differ. Does not read Kafka.
    """
    app = App.from_environment()
    spec = app.spec(pipeline)
    uri = app.layout.data_table(spec.target)
    copies = deduplication.deduplicate(uri, spec.name, dry_run=dry_run)
    if as_json:
        counts = {"copies": copies.rows, "unread_files": copies.unread_files}
        _print_record("removed", counts, dry_run=dry_run)
        return
    verb = "would be removed" if dry_run else "removed"
    out.print(f"{counted(copies.rows, 'duplicate row')} {verb}")
    if copies.unread_files:
        out.print(
            f"{counted(copies.unread_files, 'file')} not read, because of a deletion vector or an "
            "unusual path; see docs/runbook.md#duplicaterows"
        )


@control_app.command(short_help="Repair lost files and duplicate events of the control table.")
def repair(dry_run: DryRunOrApply, as_json: AsJson = False) -> None:
    """Repair the files of the control table, for all pipelines.

    Fixes ControlTableDamaged: writes each duplicate event once, and removes lost files from the
    log. The events in lost files are lost; `tidemark status` then names the pipelines that need
    `tidemark control rebuild`.
    """
    damage = App.from_environment().control_repair().repair(dry_run=dry_run)
    if as_json:
        _print_record("repaired", plain(damage), dry_run=dry_run)
        return
    rows: list[tuple[str, Any]] = [("lost file", file) for file in damage.missing_files]
    duplicates = damage.duplicate_events.items()
    rows += [(f"duplicate events of {name}", len(each)) for name, each in duplicates]
    print_table("Damage", ("damage", "file or number"), rows)
    out.print("dry run: nothing was written" if dry_run else "repaired")


def _repairs(name: str) -> RepairPart:
    return App.from_environment().pipeline(name).repair


def _print_differences(outcome: str, dry_run: bool, found: Differences, as_json: bool) -> None:
    groups: Mapping[str, Sequence[Plan]] = {
        "recorded again": found.to_record,
        "recorded with other offsets": found.recounted,
        "unread again": found.gone,
        "abandoned": found.open,
    }
    rows = [
        (plan.sequence, becomes, str(plan.kind), plan.size, len(plan.ranges), plan.topic_id)
        for becomes, plans in groups.items()
        for plan in plans
    ]
    columns = ("plan", "becomes", "kind", "offsets", "ranges", "topic id")
    _print_decision(outcome, dry_run, "Plans", columns, sorted(rows), as_json)


def _print_decision(
    outcome: str,
    dry_run: bool,
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    as_json: bool,
) -> None:
    if as_json:
        keys = [column.replace(" ", "_") for column in columns]
        records = [dict(zip(keys, row, strict=True)) for row in rows]
        _print_record(outcome, {"rows": records}, dry_run=dry_run)
        return
    print_table(title, columns, rows)
    out.print("dry run: nothing was written" if dry_run else outcome)


def _print_record(outcome: str, values: Mapping[str, Any], *, dry_run: bool) -> None:
    print_json({"outcome": "draft" if dry_run else outcome, **values})
