"""`tidemark schema`: schemas of typed tables."""

from __future__ import annotations

import json
from typing import Annotated

import typer
import yaml

from tidemark.app import App
from tidemark.cli.arguments import AsJson, PipelineName
from tidemark.cli.console import note, out, print_json
from tidemark.spec.decode import Format
from tidemark.typed.profile_service import DEFAULT_SAMPLE

_BY_ID = ", ".join(each for each in Format if each.has_schema_ids)

app = typer.Typer(
    help="Schemas of typed tables: what the fields of JSON are.",
    short_help="Schemas of typed tables.",
    no_args_is_help=True,
)


@app.callback()
def _group() -> None:
    """Or the only command would be the group itself."""


@app.command(short_help="Draft the section `decode` of a spec from what has landed.")
def init(
    pipeline: PipelineName,
    records: Annotated[
        int, typer.Option(min=1, help="How many of the newest landed records are looked at.")
    ] = DEFAULT_SAMPLE,
    as_json: AsJson = False,
) -> None:
    """Print a section `decode` for the spec of a pipeline, as its newest landed records are.

    No Spark is started, Kafka is not asked, and nothing is written: put what is printed into the
    spec and edit it. The schema is frozen there, and what does not fit later goes into quarantine.
    Fields of which nothing is known yet, because they were always null, are named in a comment.
    """
    found = App.from_environment().pipeline(pipeline).profiling.decode_draft(records)
    left_out = [{"field": path, "why": why} for path, why in found.left_out]
    if as_json:
        section = found.as_section()
        told = {"records": found.records, "decode": section, "left_out": left_out}
        print_json({**told, "framed": found.is_framed})
        return
    note(f"looked at {found.records:,} record(s) of {pipeline}")
    # A name is whatever a producer has made it: it must not be YAML of its own.
    lines = [f"# not in it: {json.dumps(each['field'])} ({each['why']!a})" for each in left_out]
    if found.is_framed:
        lines.append(f"# values begin with ids of schemas: is the format one of {_BY_ID}?")
    lines.append(yaml.safe_dump({"decode": found.as_section()}, sort_keys=False).rstrip())
    out.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
