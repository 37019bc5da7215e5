"""`tidemark schema`: schemas of typed tables."""

from __future__ import annotations

import json

import typer
import yaml

from tidemark.app import App
from tidemark.cli.arguments import AsJson, LandedRecords, PipelineName
from tidemark.cli.output import note, out, print_json
from tidemark.spec.decode import Format
from tidemark.typed.profile_service import DEFAULT_SAMPLE

_BY_ID = ", ".join(each for each in Format if each.has_schema_ids)

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
    as_json: AsJson = False,
) -> None:
    """Print a section `decode` for the spec of a pipeline, drafted from its newest landed records.

    The command starts no Spark, does not read Kafka, and writes nothing: add the output to the spec
    and edit it. Later records that do not fit the schema go into quarantine. A comment lists fields
    without a type, because they were always null.
    """
    found = App.from_environment().pipeline(pipeline).profiling.decode_draft(records)
    left_out = [{"field": path, "why": why} for path, why in found.left_out]
    if as_json:
        section = {"records": found.records, "decode": found.as_section()}
        print_json({**section, "left_out": left_out, "framed": found.is_framed})
        return
    note(f"read {found.records:,} record(s) of {pipeline}")
    # A producer chooses the names of fields, so they are quoted.
    lines = [f"# left out: {json.dumps(each['field'])} ({each['why']!a})" for each in left_out]
    if found.is_framed:
        lines.append(f"# values begin with a schema id: their format may be {_BY_ID}")
    lines.append(yaml.safe_dump({"decode": found.as_section()}, sort_keys=False).rstrip())
    out.print("\n".join(lines))
