"""`tidemark start | export-offsets`: committed offsets from other readers, and for other tools."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.app import App
from tidemark.cli.arguments import AsJson, DryRun, PipelineName, requester
from tidemark.cli.console import err, out, print_json, print_table
from tidemark.ingest.errors import InvalidStart
from tidemark.ingest.start import StartOutcome, StartResult
from tidemark.ingest.start_rules import OtherPartitions, SourceOffsets, given_offsets


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command(short_help="Record where a pipeline begins.")(start)
    app.command("export-offsets", short_help="Write committed offsets to a consumer group.")(
        export_offsets
    )


def start(
    pipeline: PipelineName,
    group: Annotated[
        str | None, typer.Option("--from-group", help="What this consumer group has committed.")
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--from-checkpoint",
            help="What the Structured Streaming query of this checkpoint (a folder) has read.",
        ),
    ] = None,
    table: Annotated[
        str | None,
        typer.Option("--from-table", help="A Delta table that kafka-delta-ingest writes."),
    ] = None,
    app_id: Annotated[
        str | None,
        typer.Option(
            "--app-id",
            help="With --from-table: the app_id that kafka-delta-ingest was started with.",
        ),
    ] = None,
    offsets: Annotated[
        str | None,
        typer.Option(help="PARTITION:OFFSET,PARTITION:OFFSET, the next to read of each."),
    ] = None,
    others: Annotated[
        OtherPartitions | None,
        typer.Option(help="Where partitions begin that the source does not name."),
    ] = None,
    reason: Annotated[
        str | None, typer.Option(help="Why; kept in the control table beside the source.")
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Record where a pipeline begins: where another reader of its topic has come to.

    Once, before its first plan; the spec's `start` has no say then, so leave it at none. Stop the
    other reader first: what it reads later is read twice. Nothing of its own is changed.

    \b
    tidemark start prices --from-group old-consumer --dry-run
    tidemark start prices --from-checkpoint /checkpoints/prices
    tidemark start prices --from-table /lake/prices --app-id prices_ingest
    tidemark start prices --offsets 0:5,1:17 --others earliest
    """  # noqa: D301  click's mark for lines that stay lines
    app = App.from_environment()
    found = _position(app, pipeline, group, checkpoint, table, app_id, offsets)
    done = app.pipeline(pipeline).begin(found, requester(), reason, others=others, dry_run=dry_run)
    if as_json:
        print_json(done.as_record())
        return
    _print_start(pipeline, done)


def _position(
    app: App,
    pipeline: str,
    group: str | None,
    checkpoint: str | None,
    table: str | None,
    app_id: str | None,
    offsets: str | None,
) -> SourceOffsets:
    """Return the position of the one source that the options select.

    Raises:
        InvalidStart
    """
    if (table is None) != (app_id is None):
        raise InvalidStart(
            source="these options",
            rule="--from-table and --app-id together",
            seen="--app-id alone" if table is None else "--from-table alone",
        )
    ways = {
        "--from-group": group,
        "--from-checkpoint": checkpoint,
        "--from-table": table,
        "--offsets": offsets,
    }
    chosen = [way for way, value in ways.items() if value is not None]
    if len(chosen) != 1:
        raise InvalidStart(
            source="these options",
            rule=f"one of: {', '.join(ways)}",
            seen=" and ".join(chosen) or "none of them",
        )
    if group is not None:
        return app.pipeline(pipeline).group_position(group)
    if checkpoint is not None:
        return app.pipeline(pipeline).checkpoint_position(checkpoint)
    if table is not None and app_id is not None:
        return app.pipeline(pipeline).ingested_position(table, app_id)
    return given_offsets(offsets or "")


def _print_start(pipeline: str, done: StartResult) -> None:
    print_table(
        f"{pipeline}: {done.reason}",
        ("partition", "begins at", "low watermark", "end", "named by source"),
        [
            (p.partition, p.offset, p.low_watermark, p.end, "yes" if p.named_by_source else "no")
            for p in done.partitions
        ],
    )
    for told in done.notes:
        err.print(f"note: {told}", markup=False)
    for each in done.partitions:
        if each.lost:
            err.print(
                f"note: Kafka has deleted {each.lost:,} offset(s) of partition {each.partition} "
                f"from {each.offset} on; the first plan is refused with LostRange until somebody "
                "accepts the loss",
                markup=False,
            )
    dry = done.outcome is StartOutcome.DRAFT
    out.print("dry run: nothing was written" if dry else done.outcome.value, markup=False)


def export_offsets(
    pipeline: PipelineName,
    group: Annotated[
        str, typer.Option(help="A consumer group without members; it is made if there is none.")
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be written; write nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a pipeline's committed offsets to a consumer group, for tools that show its lag.

    Once, now: no run does it. This is all that Tidemark ever writes to Kafka, and it never reads
    it again. What the group had of the topic is replaced. Needs Read on the group and the topic.
    """
    exported = App.from_environment().pipeline(pipeline).export_offsets(group, dry_run=dry_run)
    if as_json:
        print_json(
            {
                "outcome": "draft" if dry_run else "exported",
                "group": group,
                "partitions": [each.as_record() for each in exported],
            }
        )
        return
    print_table(
        f"{pipeline}: consumer group {group}",
        ("partition", "before", "committed offset", "end"),
        [(p.partition, p.before, p.committed_offset, p.end) for p in exported],
    )
    out.print("dry run: nothing was written" if dry_run else "exported")
