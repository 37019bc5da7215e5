"""`tidemark verify`: compare a data table with Kafka."""

from __future__ import annotations

import typer

from tidemark.app.app import App
from tidemark.cli.arguments import AsJson, EndOffset, FirstOffset, Partition, PipelineTable
from tidemark.cli.output import note, out, print_json, print_table
from tidemark.cli.progress import SHORT_S, phase
from tidemark.core.errors import ExitCode
from tidemark.core.texts import counted


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(short_help="Compare a data table with Kafka, record by record.")(verify)


def verify(
    pipeline: PipelineTable,
    partition: Partition = None,
    start: FirstOffset = None,
    end: EndOffset = None,
    as_json: AsJson = False,
) -> None:
    """Read the landed offsets from Kafka again, and compare every record with the data table.

    librdkafka, without a group, reads each landed offset that Kafka still has, at the isolation
    level of the plan that landed it. If that is not the present level of the spec, the command
    names the plans. Checksums of key, value, headers and timestamp are compared with the table's
    rows, to find missing, duplicate, unexpected and altered rows. A row is mislabelled if its
    topic, topic_id, plan_sequence or ingested_at differs from that of the plan that landed the
    offset. Ends with exit code 65 and the first differences if there are any. Needs no Spark.

    For NAME@typed, the bronze table takes the place of Kafka. Values of fields are not compared,
    and rows are never mislabelled.
    """
    compared = App.from_environment().table(pipeline)
    other = "its bronze table" if compared.spec.is_typed else "Kafka"
    text = f"comparing {pipeline} with {other}, by partition"
    with phase(text, quiet_s=SHORT_S) as show_done:
        verification = compared.verifier.verify(partition, start, end, note, show_done)
    if as_json:
        print_json(verification.as_record())
        if verification.differences:
            raise typer.Exit(ExitCode.REFUSED)
        return
    tables = f"topic {verification.topic} and the data table"
    if verification.is_typed:
        tables = "the bronze table, and the typed table with its quarantine"
    print_table(
        f"{pipeline}: {tables}",
        ("partition", "offsets", "records", "rows", "compacted since", "deleted since"),
        [
            (v.partition, v.offsets, v.records, v.rows, v.compacted, v.deleted)
            for v in verification.partitions
        ],
    )
    for each in verification.partitions:
        if each.lost:
            lost = counted(each.lost, "offset")
            out.print(f"partition {each.partition}: {lost} accepted as lost, not compared")
    if unread := sum(each.headers_unread for each in verification.partitions):
        records = counted(unread, "record")
        out.print(f"headers of {records} not compared: a header name is not UTF-8")
    for plans in verification.other_levels:
        out.print(f"{plans}; the spec has {verification.isolation_level} now")
    verification.check()
    levels = ", ".join(verification.isolation_levels)
    equal = f"every visible record ({levels}) is in the table once, as Kafka has it"
    if verification.is_typed:
        equal = (
            "every decoded record of the bronze table is in the typed table or its quarantine once"
        )
    out.print(f"equal: {equal}")
    out.print(f"not compared: {'; '.join(verification.not_compared)}")
