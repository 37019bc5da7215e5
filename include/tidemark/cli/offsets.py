"""`tidemark offsets`: first offsets from another reader, and committed offsets for other tools."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.app import option_texts
from tidemark.app.app import App
from tidemark.app.offsets import OffsetsPart
from tidemark.bronze.ingest.errors import InvalidStart
from tidemark.bronze.ingest.start import StartOutcome, StartResult
from tidemark.bronze.ingest.start_rules import OtherPartitions, SourceOffsets, given_offsets
from tidemark.cli.arguments import AsJson, DryRun, PipelineName, requester
from tidemark.cli.output import err, out, print_json, print_table
from tidemark.core.plain import plain
from tidemark.core.texts import counted

app = typer.Typer(
    help=(
        "Import a pipeline's first offsets from another reader, and export committed offsets to a "
        "consumer group."
    ),
    short_help="Import first offsets, export committed offsets.",
    no_args_is_help=True,
)


@app.command("import", short_help="Record the first offsets of a pipeline.")
def import_offsets(
    pipeline: PipelineName,
    group: Annotated[
        str | None, typer.Option("--from-group", help="Committed offsets of this consumer group.")
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--from-checkpoint",
            help="Position of the Structured Streaming query with this checkpoint folder.",
        ),
    ] = None,
    offsets: Annotated[
        str | None,
        typer.Option(help="PARTITION:OFFSET,...: the next offset to read in each partition."),
    ] = None,
    others: Annotated[
        OtherPartitions | None,
        typer.Option(help="Start of the partitions that the source does not contain."),
    ] = None,
    reason: Annotated[str | None, typer.Option(help=option_texts.REASON)] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Record the first offsets of a pipeline: the position of another reader of its topic.

    Run the command once, before the first plan. The command overrides `start` in the spec:
    leave `start` at none. Stop the other reader first: records that it reads later are read twice.
    The command does not change the other reader.

    \b
    tidemark offsets import prices --from-group old-consumer --dry-run
    tidemark offsets import prices --from-checkpoint /checkpoints/prices
    tidemark offsets import prices --offsets 0:5,1:17 --others earliest
    """  # noqa: D301  click does not rewrap a paragraph that begins with \b
    transfer = App.from_environment().pipeline(pipeline).offsets
    found = _position(transfer, group, checkpoint, offsets)
    result = transfer.start_from(found, requester(), reason, others=others, dry_run=dry_run)
    if as_json:
        print_json(plain(result))
    else:
        _print_start(pipeline, result)


def _position(
    transfer: OffsetsPart, group: str | None, checkpoint: str | None, offsets: str | None
) -> SourceOffsets:
    """Return the position of the one source that the options select."""
    sources = {"--from-group": group, "--from-checkpoint": checkpoint, "--offsets": offsets}
    chosen = [option for option, value in sources.items() if value is not None]
    if len(chosen) != 1:
        raise InvalidStart(
            source="these options",
            rule=f"one of: {', '.join(sources)}",
            seen=" and ".join(chosen) or "none of them",
        )
    if group is not None:
        return transfer.of_group(group)
    if checkpoint is not None:
        return transfer.of_checkpoint(checkpoint)
    return given_offsets(offsets or "")


def _print_start(pipeline: str, result: StartResult) -> None:
    print_table(
        f"{pipeline}: {result.reason}",
        ("partition", "begins at", "low watermark", "end", "named by source"),
        [
            (p.partition, p.offset, p.low_watermark, p.end, "yes" if p.named_by_source else "no")
            for p in result.partitions
        ],
    )
    for text in result.notes:
        err.print(f"note: {text}")
    for each in result.partitions:
        if each.lost:
            err.print(
                f"note: Kafka has deleted {counted(each.lost, 'offset')} of partition "
                f"{each.partition} from {each.offset} on; the first plan is refused with "
                "LostRange until you accept the loss"
            )
    is_draft = result.outcome is StartOutcome.DRAFT
    out.print("dry run: nothing was written" if is_draft else result.outcome.value)


@app.command("export", short_help="Write committed offsets to a consumer group.")
def export_offsets(
    pipeline: PipelineName,
    group: Annotated[
        str, typer.Option(help="A consumer group without members; created if it does not exist.")
    ],
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Write a pipeline's committed offsets to a consumer group, for tools that show its lag.

    No run exports offsets, and Tidemark never reads the exported offsets. They replace the group's
    offsets of the topic. The command needs Read on the group and the topic.
    """
    exported = App.from_environment().pipeline(pipeline).offsets.export(group, dry_run=dry_run)
    if as_json:
        print_json(
            {
                "outcome": "draft" if dry_run else "exported",
                "group": group,
                "partitions": plain(exported),
            }
        )
        return
    print_table(
        f"{pipeline}: consumer group {group}",
        ("partition", "before", "committed offset", "end"),
        [(p.partition, p.before, p.committed_offset, p.end) for p in exported],
    )
    out.print("dry run: nothing was written" if dry_run else "exported")
