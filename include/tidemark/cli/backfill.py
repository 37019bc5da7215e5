"""`tidemark backfill`: land offsets of your choice, chunk by chunk."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from tidemark.app import option_texts
from tidemark.app.app import App
from tidemark.app.pipelines import Outcomes, Pipelines
from tidemark.bronze.backfill.errors import BackfillUnfinished
from tidemark.bronze.backfill.selection import select
from tidemark.bronze.backfill.service import ChunkState, check_finished
from tidemark.cli.arguments import AsJson, DryRun, Master, PipelineName, requester
from tidemark.cli.engine import exit_with, on_engine
from tidemark.cli.output import note, out, print_error_record, print_json, print_table, step
from tidemark.cli.progress import phase, waiting
from tidemark.core.errors import ExitCode, InvalidSelection, TidemarkError
from tidemark.core.plan import Plan
from tidemark.core.texts import counted


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(short_help=option_texts.BACKFILL)(backfill)


def backfill(
    pipeline: PipelineName,
    offsets: Annotated[
        list[str] | None,
        typer.Option(help=f"{option_texts.OFFSETS} May be repeated."),
    ] = None,
    start: Annotated[
        str | None, typer.Option("--from", help=f"{option_texts.FROM} {option_texts.TIME}")
    ] = None,
    end: Annotated[
        str | None, typer.Option("--until", help=f"{option_texts.UNTIL} {option_texts.TIME}")
    ] = None,
    retained: Annotated[bool, typer.Option("--retained", help=option_texts.RETAINED)] = False,
    plan_number: Annotated[
        int | None,
        typer.Option("--plan", min=1, help=option_texts.PLAN),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option(min=0, help=f"{option_texts.PARTITIONS} May be repeated."),
    ] = None,
    chunk: Annotated[
        int | None,
        typer.Option(min=1, help=option_texts.CHUNK),
    ] = None,
    readable_only: Annotated[
        bool,
        typer.Option("--readable-only", help=option_texts.READABLE_ONLY),
    ] = False,
    replaces: Annotated[
        bool,
        typer.Option("--replace", help=option_texts.REPLACE),
    ] = False,
    reason: Annotated[
        str | None, typer.Option(help=f"{option_texts.REASON} {option_texts.REASON_OF_REPLACEMENT}")
    ] = None,
    yes: Annotated[
        bool,
        typer.Option("--yes", help=option_texts.APPROVED),
    ] = False,
    resume: Annotated[
        str | None,
        typer.Option(help="Continue the backfill of this requester; the command prints it."),
    ] = None,
    master: Master = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Ingest the given offsets. Offsets that are already ingested are skipped.

    With --replace, landed offsets are read again too, and the new rows replace the old ones, each
    chunk in one commit.

    The offsets of a time window or of the retained log are selected once and recorded. They land in
    chunks, each in a plan and a transaction of its own, one after the other. You can stop the
    command at any time: each chunk is in the table as a whole or not at all. --resume continues
    with the other chunks.

    \b
    tidemark backfill prices --offsets 1:0-5000 --offsets 2:100-200
    tidemark backfill prices --from 2026-03-01T00:00:00Z --until 2026-03-02T00:00:00Z --dry-run
    tidemark backfill prices --retained --partition 3 --chunk 1000000
    tidemark backfill prices --plan 7 --replace --reason "rows changed by hand"
    """  # noqa: D301  click does not rewrap a paragraph that begins with \b
    app = App.from_environment()
    named = offsets or start or end or retained or plan_number or partition or chunk
    if resume is not None:
        if named or readable_only or replaces or reason or yes:
            raise InvalidSelection.of_backfill(
                rule="--resume without other selections: the requested offsets are recorded",
                seen="--resume and other options",
            )
        if dry_run:
            chunks = app.pipeline(pipeline).backfills.progress(resume)
            _print_chunks(pipeline, resume, chunks, None, as_json=as_json)
            return
        _land(on_engine(app, master, [pipeline]), resume, as_json=as_json)
        return
    selection = select(
        offsets=offsets or (),
        start=start,
        end=end,
        retained=retained,
        plan=plan_number,
        partitions=partition or (),
    )
    # After the selection, whose errors need no Kafka.
    backfills = app.pipeline(pipeline).backfills
    preview = backfills.preview(selection, chunk, readable_only=readable_only, replaces=replaces)
    if not as_json:
        out.print(preview.explain())
    if dry_run or not preview.offsets:
        if as_json:
            print_json(preview.as_record())
        return
    requested_by = requester()
    with waiting(f"recording the backfill of {pipeline}"):
        chosen = on_engine(app, master, [pipeline])
        backfills.request(preview, requested_by, approved=yes, reason=reason)
    _land(chosen, requested_by, as_json=as_json)


def _land(chosen: Pipelines, requested_by: str, *, as_json: bool) -> None:
    """Land the chunks that are not in the table yet, until a job fails."""
    (pipeline,) = chosen.names
    backfills = chosen.app.pipeline(pipeline).backfills
    chunks = backfills.progress(requested_by)
    quoted = shlex.quote(requested_by)
    note(f"to continue after a stop: tidemark backfill {pipeline} --resume {quoted}")
    outcomes = Outcomes()
    refused: TidemarkError | None = None

    def show(number: int, plan: Plan) -> None:
        size = counted(plan.size, "offset")
        step(f"chunk {number} of {len(chunks)}: plan {plan.sequence}, {size}")

    missing = [chunk for chunk in chunks if not chunk.done]
    done = len(chunks) - len(missing)
    with phase(f"backfill of {pipeline}", unit="chunks") as show_chunks:
        for each in missing:
            show_chunks(done, len(chunks))
            done_now, refusal = chosen.land_chunk(requested_by, each.number, show)
            outcomes.extend(done_now)
            if outcomes.exit_code != ExitCode.OK:
                break
            # The other chunks can land after a refused one.
            refused = refusal or refused
            done += refusal is None
        show_chunks(done, len(chunks))
        chunks = backfills.progress(requested_by)
    failed = outcomes.by_pipeline[pipeline] if outcomes.exit_code != ExitCode.OK else None
    if failed is None:
        try:
            check_finished(pipeline, requested_by, chunks)
        except BackfillUnfinished as unfinished:
            refused = refused or unfinished
        failed = refused.as_record() if refused else None
    _print_chunks(pipeline, requested_by, chunks, failed, as_json=as_json)
    exit_with(outcomes)
    if refused is not None:
        raise typer.Exit(refused.exit_code)


def _print_chunks(
    pipeline: str,
    requested_by: str,
    chunks: Sequence[ChunkState],
    failed: Mapping[str, Any] | None,
    *,
    as_json: bool,
) -> None:
    if as_json:
        records = [asdict(each) for each in chunks]
        print_json(
            {
                "pipeline": pipeline,
                "requested_by": requested_by,
                "chunks": records,
                "failed": failed,
            }
        )
        return
    print_table(
        f"{pipeline}: chunks of {requested_by}",
        ("chunk", "offsets", "plan", "state"),
        [(each.number, each.offsets, each.plan, each.state) for each in chunks],
    )
    if failed and "error" in failed:
        print_error_record(failed)
