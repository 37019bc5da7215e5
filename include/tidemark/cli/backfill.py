"""`tidemark backfill`: land offsets that somebody names, chunk by chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from tidemark.app import App
from tidemark.backfill.errors import BackfillUnfinished
from tidemark.backfill.selection import select
from tidemark.backfill.service import Backfills, ChunkState, check_finished
from tidemark.cli.arguments import AsJson, DryRun, Master, PipelineName, requester
from tidemark.cli.console import note, out, print_error_record, print_json, print_table, step
from tidemark.cli.spark import exit_with, on_engine
from tidemark.core.errors import ExitCode, InvalidSelection, TerminalError, TidemarkError
from tidemark.pipelines import Outcomes, Pipelines


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(short_help="Land offsets of your choice, chunk by chunk.")(backfill)


def backfill(
    pipeline: PipelineName,
    offsets: Annotated[
        list[str] | None,
        typer.Option(help="PARTITION:START-END, END is not landed; as often as you like."),
    ] = None,
    start: Annotated[
        str | None, typer.Option("--from", help="Time window: its beginning, with a time zone.")
    ] = None,
    end: Annotated[
        str | None, typer.Option("--until", help="Time window: the first moment after it.")
    ] = None,
    retained: Annotated[bool, typer.Option("--retained", help="All that Kafka has now.")] = False,
    plan_number: Annotated[
        int | None,
        typer.Option(
            "--plan", min=1, help="What this earlier plan was about, whoever holds it now."
        ),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option(min=0, help="With --from or --retained: only this; as often as you like."),
    ] = None,
    chunk: Annotated[
        int | None,
        typer.Option(min=1, help="Most offsets of one plan; limits.records_per_chunk if left out."),
    ] = None,
    readable_only: Annotated[
        bool,
        typer.Option(
            "--readable-only", help="Leave out what Kafka has deleted, instead of refusing it."
        ),
    ] = False,
    replaces: Annotated[
        bool,
        typer.Option(
            "--replace",
            help="Land again what has landed, in place of the rows that are there.",
        ),
    ] = False,
    reason: Annotated[
        str | None, typer.Option(help="With --replace: why, kept in the control table.")
    ] = None,
    into: Annotated[
        str | None,
        typer.Option(help="Another table: pipeline PIPELINE@INTO, which has backfills alone."),
    ] = None,
    yes: Annotated[
        bool,
        typer.Option("--yes", help="Approve one above the spec's limits.records_per_backfill."),
    ] = False,
    resume: Annotated[
        str | None,
        typer.Option(
            help="Go on with the backfill of this requester, which it printed when it began."
        ),
    ] = None,
    master: Master = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Land offsets that you name, as far as they have not landed: a fill, never a double.

    With --replace what has landed is read again as well, and the new rows take the place of the old
    ones: each chunk in one commit, which readers see whole or not at all.

    Which offsets a time window or the retained log means is decided once and recorded. They land
    in chunks, each a plan and a transaction of its own, one after the other. Stop it whenever you
    like: whole chunks are in the table or not at all, and --resume goes on with the rest.

    \b
    tidemark backfill prices --offsets 1:0-5000 --offsets 2:100-200
    tidemark backfill prices --from 2026-03-01T00:00:00Z --until 2026-03-02T00:00:00Z --dry-run
    tidemark backfill prices --retained --partition 3 --chunk 1000000
    tidemark backfill prices --plan 7 --replace --reason "rows changed by hand"
    tidemark backfill prices --plan 7 --into checked
    """  # noqa: D301  click's mark for lines that stay lines
    app = App.from_environment()
    origin, pipeline = pipeline, f"{pipeline}@{into}" if into else pipeline
    backfills = app.pipeline(pipeline).backfills
    named = offsets or start or end or retained or plan_number or partition or chunk
    if resume is not None:
        if named or readable_only or replaces or reason or yes:
            raise InvalidSelection(
                rule="--resume without anything about offsets: what was asked for is recorded",
                seen="--resume and other options",
            )
        if dry_run:
            _print_chunks(pipeline, resume, backfills.progress(resume), None, as_json=as_json)
            return
        _land(on_engine(app, master, [pipeline]), backfills, pipeline, resume, as_json=as_json)
        return
    selection = select(
        offsets=offsets or (),
        start=start,
        end=end,
        retained=retained,
        plan=plan_number,
        plan_of=origin if into else None,
        partitions=partition or (),
    )
    seen = backfills.preview(selection, chunk, readable_only=readable_only, replaces=replaces)
    if dry_run or not seen.offsets:
        print_json(seen.as_record()) if as_json else out.print(seen.explain(), markup=False)
        return
    if not as_json:
        out.print(seen.explain(), markup=False)
    chosen = on_engine(app, master, [pipeline])
    asked_by = requester()
    backfills.request(seen, asked_by, approved=yes, reason=reason)
    _land(chosen, backfills, pipeline, asked_by, as_json=as_json)


def _land(
    chosen: Pipelines, backfills: Backfills, pipeline: str, asked_by: str, *, as_json: bool
) -> None:
    """Land the chunks that are not in the table yet, until a job fails."""
    chunks = backfills.progress(asked_by)
    note(f"if it stops, go on with: tidemark backfill {pipeline} --resume {asked_by}")
    outcomes = Outcomes()
    refused: TidemarkError | None = None
    for each in chunks:
        if each.done:
            continue
        try:
            plan = backfills.plan_chunk(asked_by, each.number).plan
        except TerminalError as error:
            # Nothing is open because of it: the other chunks can land.
            refused = error
            continue
        if plan is None:
            continue
        step(f"chunk {each.number} of {len(chunks)}: plan {plan.sequence}, {plan.size:,} offset(s)")
        outcomes.extend(chosen.execute("ingest", [plan.ref]))
        if outcomes.exit_code != ExitCode.OK:
            break
    chunks = backfills.progress(asked_by)
    failed = outcomes.by_pipeline[pipeline] if outcomes.exit_code != ExitCode.OK else None
    if failed is None:
        try:
            check_finished(pipeline, asked_by, chunks)
        except BackfillUnfinished as unfinished:
            refused = refused or unfinished
        failed = refused.as_record() if refused else None
    _print_chunks(pipeline, asked_by, chunks, failed, as_json=as_json)
    exit_with(outcomes)
    if refused is not None:
        raise typer.Exit(refused.exit_code)


def _print_chunks(
    pipeline: str,
    asked_by: str,
    chunks: Sequence[ChunkState],
    failed: Mapping[str, Any] | None,
    *,
    as_json: bool,
) -> None:
    if as_json:
        records = [asdict(each) for each in chunks]
        print_json(
            {"pipeline": pipeline, "requested_by": asked_by, "chunks": records, "failed": failed}
        )
        return
    print_table(
        f"{pipeline}: chunks of {asked_by}",
        ("chunk", "offsets", "plan", "state"),
        [
            (each.number, each.offsets, each.plan, "landed" if each.done else "not whole")
            for each in chunks
        ],
    )
    if failed and "error" in failed:
        print_error_record(failed)
