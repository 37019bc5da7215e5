"""`tidemark verify`: compare the tables of a pipeline with Kafka, record by record."""

from __future__ import annotations

from collections.abc import Iterator

import typer

from tidemark.app.app import App
from tidemark.cli.arguments import AsJson, EndOffset, FirstOffset, Partition, PipelineName
from tidemark.cli.output import note, out, print_json, print_table
from tidemark.cli.progress import SHORT_S, phase
from tidemark.core.errors import ExitCode
from tidemark.core.texts import counted
from tidemark.ops.report.typed_verification import TypedVerification
from tidemark.ops.report.verification import Verification


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(short_help="Compare the tables of a pipeline with Kafka, record by record.")(verify)


def verify(
    pipeline: PipelineName,
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
    offset.

    If the pipeline has a typed table, the command then decodes the landed rows again without Spark,
    and compares each column of the typed rows. Each row of the data table has to be in the typed
    table or in the quarantine, and only once. The command counts rows that are not decoded yet, and
    rows that a publication decision hides. A difference names the topic, the partition, the offset
    and the columns, and contains no value. Without differences, the last line about each table
    names the limits of the comparison.

    Ends with exit code 65 and the first differences if there are any. Needs no Spark.
    """
    compared = App.from_environment().pipeline(pipeline)
    with phase(f"comparing {pipeline} with Kafka, by partition", quiet_s=SHORT_S) as show_done:
        verifier = compared.bronze.verifier
        verification = verifier.verify(partition, start, end, note, show_done)
    typed: TypedVerification | None = None
    if compared.spec.decode:
        text = f"decoding rows of {pipeline} again, by chunk of offsets"
        with phase(text, quiet_s=SHORT_S) as show_done:
            typed = compared.typed.verifier.verify(partition, start, end, note, show_done)
    is_equal = not (verification.differences or (typed and typed.differences))
    if as_json:
        record = {"typed": typed and typed.as_record(), "equal": is_equal}
        print_json({**verification.as_record(), **record})
        if not is_equal:
            raise typer.Exit(ExitCode.REFUSED)
        return
    _print(verification)
    if typed:
        _print_typed(typed)
    if verification.differences and typed:
        # The error names the differences of one table only.
        for each in typed.first:
            out.print(f"{typed.pipeline}: {each}")
    verification.check()
    if typed:
        typed.check()


def _print(verification: Verification) -> None:
    print_table(
        f"{verification.pipeline}: topic {verification.topic} and the data table",
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
    if not verification.differences:
        levels = ", ".join(verification.isolation_levels)
        out.print(f"equal: every visible record ({levels}) is in the table once, as Kafka has it")
        out.print(f"not compared: {'; '.join(verification.not_compared)}")


def _print_typed(typed: TypedVerification) -> None:
    print_table(
        f"{typed.pipeline}: rows of the data table, decoded again",
        ("partition", "rows", "typed", "quarantined", "not decoded yet", "hidden"),
        [
            (v.partition, v.rows, v.typed, v.quarantined, v.undecoded, v.hidden)
            for v in typed.partitions
        ],
    )
    for line in _lines(typed):
        out.print(line)
    if not typed.differences:
        equal = "every decoded row is in the typed table once, with the values of its record"
        unless = ", except for the values above" if typed.unproven else ""
        out.print(f"equal: {equal}{unless}, or in the quarantine once")
        out.print(f"not compared: {'; '.join(typed.not_compared)}")


def _lines(typed: TypedVerification) -> Iterator[str]:
    """Yield a line for each count of rows that are neither equal nor a difference."""
    texts = {
        "withdrawn": "at hidden or undone offsets: the next decode removes them, except those of "
        "unchecked plans",
        "deleted": "without a row in the data table: another program has deleted it",
        "stale": "with other values, because the offsets have landed again since: the next decode "
        "replaces them",
        "earlier_rules": "with other values, and without a known decode with the present spec. "
        "An earlier spec can explain them: `tidemark decode --from-scratch` decodes them again",
        "unknown_spec": "with other values, and with an unknown spec. Either an earlier spec has "
        "decoded them, or another program has changed them",
    }
    for name, text in texts.items():
        if rows := sum(getattr(each, name) for each in typed.partitions):
            out_of = "decoded row"
            yield f"{counted(rows, out_of)} {text}"
    for reason, rows in typed.unjudged.items():
        yield f"{counted(rows, 'typed value')} not compared: {reason}"
