"""Commands for what a person decides: abandon, undo, accept-loss and the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from tidemark.app import App
from tidemark.cli.arguments import AsJson, DryRun, PipelineName, Reason, requester
from tidemark.cli.console import out, print_json, print_table
from tidemark.core.plan import Plan
from tidemark.repair.rules import Differences

control_app = typer.Typer(
    name="control",
    help="Repair the control table, the record of what was processed.",
    short_help="Repair the control table.",
    no_args_is_help=True,
)


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command(short_help="Give up a plan that cannot land.")(abandon)
    app.command(short_help="Take out exactly what a plan landed.")(undo)
    app.command("accept-loss", short_help="Go on behind offsets that Kafka has deleted.")(
        accept_loss
    )
    app.command("new-incarnation", short_help="Go on with a topic that was made again.")(
        new_incarnation
    )
    app.command(short_help="Follow a RESTORE of the data table.")(rewind)
    app.command(short_help="Remove doubled rows from a data table.")(deduplicate)
    app.add_typer(control_app)


def abandon(
    pipeline: PipelineName,
    plan_number: Annotated[int, typer.Option("--plan", min=1, help="An open plan.")],
    reason: Reason,
    discard: Annotated[
        bool,
        typer.Option("--discard", help="Remove its rows if it landed while its topic was remade."),
    ] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Give up a plan that cannot land; its offsets are unread again and the next plan takes them.

    For a plan that is too large, or whose range Kafka no longer has. A driver that still works on
    it is fenced off first, so nothing lands twice. A landed plan cannot be given up.
    """
    abandoned = (
        App.from_environment()
        .pipeline(pipeline)
        .abandon(plan_number, requester(), reason, discard=discard, dry_run=dry_run)
    )
    if as_json:
        outcome = "draft" if dry_run else "abandoned"
        print_json({"outcome": outcome, "plan": abandoned.as_record()})
        return
    how = "would be given up" if dry_run else "is given up"
    out.print(f"plan {plan_number} of {pipeline} {how}: {abandoned.size:,} offset(s)", markup=False)


def undo(
    pipeline: PipelineName,
    plan_number: Annotated[int, typer.Option("--plan", min=1, help="A plan that has landed.")],
    reason: Reason,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Take exactly what a plan landed out of the table again; its offsets are unread again.

    The next run reads them again, or the next backfill those before the pipeline's beginning. Rows
    that the plan had replaced do not come back. Call it again if it was stopped: it goes on.
    """
    undone = (
        App.from_environment()
        .pipeline(pipeline)
        .undo(plan_number, requester(), reason, dry_run=dry_run)
    )
    if as_json:
        outcome = "draft" if dry_run else "undone"
        print_json({"outcome": outcome, "plan": undone.as_record()})
        return
    how = "would be undone" if dry_run else "is undone"
    out.print(f"plan {plan_number} of {pipeline} {how}: {undone.rows:,} row(s)", markup=False)


def accept_loss(
    pipeline: PipelineName,
    reason: Reason,
    partition: Annotated[
        list[int] | None,
        typer.Option(min=0, help="Only this partition; may be repeated. All if left out."),
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Accept that Kafka deleted offsets before they were read, and go on behind them.

    For LostRange: retention, or somebody, removed records that had not landed. Exactly the unread
    offsets below the low watermarks are recorded as lost, with your name, the time and the reason.
    Partitions that lost nothing are not touched. This cannot be taken back.
    """
    accepted = (
        App.from_environment()
        .pipeline(pipeline)
        .accept_loss(partition or (), requester(), reason, dry_run=dry_run)
    )
    rows = [
        (number, span.start, span.end, span.size, accepted.committed[number])
        for number, spans in accepted.lost.items()
        for span in spans
    ]
    columns = ("partition", "start", "end", "offsets", "committed offset")
    _print_decision("accepted", dry_run, "Lost for good", columns, rows, as_json)


def new_incarnation(
    pipeline: PipelineName, reason: Reason, dry_run: DryRun = False, as_json: AsJson = False
) -> None:
    """Accept that the topic was made again, and read the new one from its start.

    For TopicRecreated, and for ClusterChanged if the pipeline moved on purpose. What landed of the
    old topic stays in the data table under its topic_id; what was not read of it is lost. Who, when
    and why are recorded. This cannot be taken back.
    """
    accepted = (
        App.from_environment()
        .pipeline(pipeline)
        .new_incarnation(requester(), reason, dry_run=dry_run)
    )
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
    """Follow a RESTORE of the data table: what it took out is unread again, and read again once.

    For TableRestored, and for a data table that was removed. Opens a new epoch: drivers that
    still work on older plans are fenced off for good. Offsets that Kafka has deleted meanwhile are
    then a LostRange.
    """
    found = App.from_environment().pipeline(pipeline).rewind(requester(), reason, dry_run=dry_run)
    _print_differences("undone", dry_run, found, as_json)


@control_app.command(short_help="Record again what the control table has lost.")
def rebuild(
    pipeline: PipelineName,
    apply: Annotated[
        bool | None,
        typer.Option("--apply/--dry-run", help="Record it, or only show it. One must be chosen."),
    ] = None,
    reason: Reason = "control table rebuilt",
    as_json: AsJson = False,
) -> None:
    """Record again what the data table holds and the control table has lost.

    For LedgerBehindTable and ControlTruncated: the control table was removed, truncated, or came
    from a backup. The data table's commits are read, and its rows where the commits are gone by
    log retention. Opens a new epoch: plans that only the lost table knew can never land.
    Accepted losses are recorded nowhere else: accept them again when LostRange names them.
    """
    if apply is None:
        raise typer.BadParameter("say --dry-run to see what would be recorded, or --apply")
    found = (
        App.from_environment().pipeline(pipeline).rebuild(requester(), reason, dry_run=not apply)
    )
    _print_differences("rebuilt", not apply, found, as_json)


def deduplicate(
    pipeline: PipelineName,
    apply: Annotated[
        bool | None,
        typer.Option("--apply/--dry-run", help="Remove the copies, or only count them. Required."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Remove copies of rows from a data table.

    Fixes DuplicateRows, after another program's compaction doubled rows. Rows with the same topic
    id, partition, offset and plan are copies if all their columns are equal; one of them stays.
    Ends with DuplicatesDiffer and removes nothing if the columns differ. Does not read Kafka.
    """
    if apply is None:
        raise typer.BadParameter("choose --dry-run to count the copies, or --apply")
    copies = App.from_environment().pipeline(pipeline).deduplicate(dry_run=not apply)
    if as_json:
        outcome = "removed" if apply else "draft"
        print_json({"outcome": outcome, "copies": copies.rows, "unread_files": copies.unread_files})
        return
    out.print(f"{copies.rows:,} doubled row(s) {'removed' if apply else 'would be removed'}")
    if copies.unread_files:
        out.print(
            f"{copies.unread_files:,} file(s) not read, which have a deletion vector or an unusual "
            "path; see docs/runbook.md, DuplicateRows"
        )


@control_app.command(short_help="Repair lost files and doubled events of the control table.")
def repair(
    apply: Annotated[
        bool | None,
        typer.Option("--apply/--dry-run", help="Repair it, or only show the damage. Required."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Repair the files of the control table, for all pipelines.

    Fixes ControlFileMissing: removes the lost files from the log. The events in them are lost;
    `tidemark status` then names the pipelines that need `tidemark control rebuild`. Fixes
    ControlDoubled: writes each event once; nothing is lost.
    """
    if apply is None:
        raise typer.BadParameter("choose --dry-run to see the damage, or --apply")
    damage = App.from_environment().control_repair().repair(dry_run=not apply)
    outcome = "repaired" if apply else "draft"
    if as_json:
        print_json({"outcome": outcome, **damage.as_record()})
        return
    rows: list[tuple[str, Any]] = [("lost file", file) for file in damage.missing_files]
    doubled = damage.doubled_events.items()
    rows += [(f"doubled events of {name}", len(each)) for name, each in doubled]
    print_table("Damage", ("what", "which, or how many"), rows)
    out.print("dry run: nothing was written" if not apply else outcome)


def _print_differences(outcome: str, dry_run: bool, found: Differences, as_json: bool) -> None:
    groups: Mapping[str, Sequence[Plan]] = {
        "recorded again": found.to_record,
        "unread again": found.gone,
        "given up": found.open,
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
        print_json(
            {
                "outcome": "draft" if dry_run else outcome,
                "rows": [dict(zip(keys, row, strict=True)) for row in rows],
            }
        )
        return
    print_table(title, columns, rows)
    out.print("dry run: nothing was written" if dry_run else outcome)
