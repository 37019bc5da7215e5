"""`tidemark schema`: schemas of typed tables."""

from __future__ import annotations

import typer

from tidemark.app.app import App
from tidemark.cli.arguments import AsJson, LandedRecords, PipelineName, ValueFormat, fields_required
from tidemark.cli.output import note, out, print_json
from tidemark.core.texts import counted
from tidemark.draft.profiler import DEFAULT_SAMPLE, Profiler

app = typer.Typer(
    help="Draft the schema of a typed table: the types of JSON fields.",
    short_help="Draft the schema of a typed table.",
    no_args_is_help=True,
)


@app.callback()
def _group() -> None:
    """Without a callback, typer makes the only command the group itself."""


@app.command(short_help="Draft the section `decode` of a spec from landed records.")
def init(
    pipeline: PipelineName,
    records: LandedRecords = DEFAULT_SAMPLE,
    value_format: ValueFormat = None,
    as_json: AsJson = False,
) -> None:
    """Print a section `decode` for the spec of a pipeline, drafted from its newest landed records.

    The values have the format of at least 95 % of them, or --format. A field has the type of at
    least 95 % of its values, otherwise string. A comment counts the values that fit; records with
    other values go to quarantine. Other comments list fields without a type, because they were
    always null.

    The command starts no Spark, does not read Kafka, and writes nothing: add the output to the spec
    and edit it. Before the first run, `tidemark pipeline init TOPIC` drafts a spec from the topic.
    """
    profiling = Profiler.of(App.from_environment().pipeline(pipeline))
    with fields_required():
        found = profiling.decode_draft(records, value_format)
    if as_json:
        print_json(found.as_record())
        return
    note(f"read {counted(found.records, 'record')} of {pipeline}")
    out.print("\n".join(found.yaml_lines()))
