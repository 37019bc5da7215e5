"""`tidemark suite`: quality suites."""

from __future__ import annotations

import json
import re
from typing import Annotated

import typer

from tidemark.app.app import App
from tidemark.cli.arguments import AsJson, DryRun, LandedRecords, PipelineName
from tidemark.cli.output import note, out, print_json
from tidemark.core.texts import counted
from tidemark.draft.profiler import DEFAULT_SAMPLE, Profiler
from tidemark.draft.suite import check_no_suite, draft_suite, write_suite
from tidemark.spec.model import SUITE_NAME

app = typer.Typer(
    help="Draft a quality suite: rules for the records that a pipeline lands.",
    short_help="Draft a quality suite.",
    no_args_is_help=True,
)


@app.command(short_help="Draft a suite from landed records.")
def init(
    pipeline: PipelineName,
    name: Annotated[
        str | None,
        typer.Option(help="Name of the suite; by default the pipeline's.", metavar="NAME"),
    ] = None,
    records: LandedRecords = DEFAULT_SAMPLE,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Draft a suite from a profile of landed records, for you to edit.

    Reads the newest records of each partition in the data table; starts no Spark and does not read
    Kafka. For values with a schema id, it uses stored schemas, and requests missing schemas from
    the registry. Properties of these records become rules in include/expectations/NAME.json, each
    with the severity warning. Examples are required fields, limits of numbers, fields with few
    values, unique fields, and a key that is a field of the value. The file contains some of the
    values: read it before you share it.

    The command never overwrites a suite. Edit the draft, name it in the pipeline's spec (`quality:
    {suite: NAME}`), and try it: `tidemark check PIPELINE`.
    """
    tidemark = App.from_environment()
    spec = tidemark.spec(pipeline)
    chosen = spec.origin if name is None else name
    if not re.fullmatch(SUITE_NAME, chosen):
        raise typer.BadParameter(f"the name of a suite must match {SUITE_NAME}; got {chosen!r}")
    file = tidemark.layout.suite(chosen)
    if not dry_run:
        check_no_suite(file)
    profile = Profiler.of(tidemark.pipeline(pipeline)).profile(records)
    suite = draft_suite(chosen, profile)
    if not dry_run:
        write_suite(file, suite)
    if as_json:
        print_json({"file": str(file), "profile": profile.as_record(), "suite": suite})
        return
    note(f"read {counted(profile.records, 'record')} of {pipeline}")
    if dry_run:
        out.print(json.dumps(suite, indent=2))
        return
    out.print(f"{counted(len(suite['expectations']), 'rule')} drafted in {file}")
    if not suite["expectations"]:
        note(suite["notes"])
    if spec.suite != chosen:
        out.print(f"to use it, write in the spec of {spec.origin}: quality: {{suite: {chosen}}}")
