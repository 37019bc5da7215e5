"""`tidemark records`: the records of a partition from an offset or a time on."""

from __future__ import annotations

import json
from collections.abc import Collection
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.app import option_texts
from tidemark.app.app import App
from tidemark.cli.arguments import AsJson, PipelineName, time_option
from tidemark.cli.output import out, print_error_record, print_json
from tidemark.cli.payloads import note_undecoded, payload_lines
from tidemark.core.errors import ExitCode
from tidemark.core.payload_text import PayloadText
from tidemark.core.texts import visible
from tidemark.ops.report.absence import KafkaState
from tidemark.ops.report.record_page import DecodingState, RecordEntry, RecordPage, decoded_values
from tidemark.ops.report.records import MAX_COUNT

if TYPE_CHECKING:
    from tidemark.silver.typed.decoded_payloads import PayloadDecoder


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(short_help="Show the records at offsets, in Kafka and in the tables.")(records)


def records(
    pipeline: PipelineName,
    partition: Annotated[int, typer.Option(min=0, help=option_texts.ONE_PARTITION)],
    offset: Annotated[
        int | None, typer.Option(min=0, help="First offset; required without --time.")
    ] = None,
    time: Annotated[
        datetime | None,
        typer.Option(
            parser=time_option,
            metavar="TIME",
            help=f"First record with a timestamp at or after this time. {option_texts.TIME}",
        ),
    ] = None,
    count: Annotated[int, typer.Option(min=1, max=MAX_COUNT, help="Number of offsets.")] = 5,
    topic_id: Annotated[
        str | None,
        typer.Option(help="Incarnation of the topic; by default the one that the pipeline reads."),
    ] = None,
    no_payloads: Annotated[
        bool, typer.Option("--no-payloads", help="Omit keys, values and headers.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show consecutive offsets of a partition: Kafka's record, the rows, and why a row is absent.

    Topic id, partition and offset identify a record permanently. The command reads Kafka without a
    consumer group, for two seconds and 1 MB at most, and changes nothing. If Kafka or a table
    fails, the other parts are shown, and the command ends with the exit code of the error.

    \b
    tidemark records prices --partition 3 --offset 1000
    tidemark records prices --partition 3 --time 2026-03-01T12:00:00Z --count 5
    tidemark records prices --partition 3 --offset 1000 --no-payloads --json

    Keys and values that begin with a schema id are decoded with stored schemas or the registry.
    With --json, payloads are complete and not decoded: as text if they are UTF-8, otherwise in
    base64. Columns that the suite masks are never shown.
    """  # noqa: D301  click does not rewrap a paragraph that begins with \b
    from tidemark.silver.typed.decoded_payloads import PayloadDecoder

    if (offset is None) == (time is None):
        raise typer.BadParameter("give either --offset or --time")
    read = App.from_environment().pipeline(pipeline)
    start = read.offsets.at(partition, time, topic_id) if time else offset or 0
    page = read.report.records.page(partition, start, count, topic_id)
    if as_json:
        print_json(page.as_record(payloads=not no_payloads))
    else:
        shown = [row.record for entry in page.entries for row in entry.rows]
        shown += [entry.record for entry in page.entries if entry.record]
        decoder = None if no_payloads else PayloadDecoder.of(shown, read.registry_answers)
        _print_page(page, decoder)
        for part, error in page.errors.items():
            print_error_record({"pipeline": f"{pipeline}: {part}", **error.as_record()})
    if page.errors:
        raise typer.Exit(ExitCode.worst(error.exit_code for error in page.errors.values()))


def _print_page(page: RecordPage, decoder: PayloadDecoder | None) -> None:
    """Print the offsets of a page. Without a decoder, keys, values and headers are left out."""
    here = page.watermarks
    bounds = f", low watermark {here.low:,}, log end {here.end:,}" if here else ""
    topic = f"topic {page.topic}, id {page.topic_id}"
    out.print(f"{page.pipeline}: {topic}, partition {page.partition}{bounds}")
    for _, run in groupby(page.entries, _same_absence):
        first, *others = run
        if others:
            out.print(f"{first.offset:,} to {others[-1].offset:,}  {_state(first)}")
        else:
            _print_entry(first, page.masked, decoder)
    if decoder:
        note_undecoded(decoder)


def _same_absence(entry: RecordEntry) -> object:
    """Return equal values for offsets that one line describes."""
    return entry.offset if entry.shown or entry.decoding else (entry.kafka, entry.absence)


def _print_entry(
    entry: RecordEntry, masked: Collection[str], decoder: PayloadDecoder | None
) -> None:
    record = entry.shown
    at = f"  {record.timestamp_text}" if record else ""
    out.print(f"{entry.offset:,}{at}  {_state(entry)}")
    if record and decoder:
        for line in payload_lines(record, masked, decoder):
            out.print(line)
    if entry.differs:
        out.print(f"  DIFFERS   {', '.join(entry.differs)}")
        for row in entry.rows if decoder else ():
            out.print(f"  row of plan {row.plan}, {row.record.timestamp_text}")
            for line in payload_lines(row.record, masked, decoder):
                out.print(f"  {line}")
    if decoding := entry.decoding:
        out.print(f"  typed     {_decoding(entry)}")
        if decoder and decoding.state is DecodingState.DECODED:
            text = json.dumps(decoded_values(decoding, masked), ensure_ascii=False)
            shown = PayloadText.of(text.encode("utf-8", "replace"))
            for line in shown.text.split("\n"):
                out.print(f"    {line}")
            if shown.truncated:
                out.print("    (cut)")


def _state(entry: RecordEntry) -> str:
    """Return where the record is, or why it is nowhere, in a sentence."""
    kafka = f"Kafka: {entry.kafka}"
    if entry.rows:
        plans = ", ".join(
            f"{row.plan} (not recorded)" if row.is_recorded is False else str(row.plan)
            for row in entry.rows
        )
        landed = f"{len(entry.rows)} rows, of plans" if len(entry.rows) > 1 else "landed in plan"
        suffix = "" if entry.kafka is KafkaState.RECORD else f"; {kafka}"
        return f"{landed} {plans}{suffix}"
    if entry.absence is None:
        return f"row unknown; {kafka}"
    absence = entry.absence
    plan = "" if absence.plan is None else f" (plan {absence.plan})"
    return f"no row: {absence.state}{plan}; {kafka}. {visible(absence.detail)}"


def _decoding(entry: RecordEntry) -> str:
    decoding = entry.decoding
    if decoding is None:
        return "-"
    plan = "" if decoding.plan is None else f" in plan {decoding.plan}"
    reason = "" if decoding.reason is None else f": {visible(decoding.reason)}"
    return f"{decoding.state}{plan}{reason}"
