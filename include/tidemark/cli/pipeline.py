"""`tidemark pipeline`: specs of pipelines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer

from tidemark.app.app import App
from tidemark.app.connections import LOCAL_CONNECTION
from tidemark.cli.arguments import (
    AsJson,
    DryRun,
    KafkaConnection,
    PipelineNamesOrAll,
    Topic,
    ValueFormat,
    fields_required,
)
from tidemark.cli.output import err, note, out, print_error_record, print_json, print_table
from tidemark.core.errors import ExitCode, TidemarkError
from tidemark.core.texts import counted
from tidemark.draft.spec import DEFAULT_SCHEDULE, SpecDraft
from tidemark.draft.suite import check_no_suite, draft_suite, write_suite
from tidemark.quality.suite import load_suite
from tidemark.spec.decode import DEFAULT_REGISTRY
from tidemark.spec.errors import SpecError, UnknownPipeline
from tidemark.spec.model import PIPELINE_NAME, PipelineSpec

app = typer.Typer(
    help="Draft the spec of a pipeline from a topic, and check specs.",
    short_help="Draft and check the specs of pipelines.",
    no_args_is_help=True,
)

_SECONDS = 30.0
_BYTES = 64 * 2**20


@app.command(short_help="Draft a spec from the records of a topic.")
def init(
    topic: Topic,
    name: Annotated[
        str | None,
        typer.Option(help="Name of the pipeline; by default the topic's.", metavar="NAME"),
    ] = None,
    schedule: Annotated[
        str, typer.Option(help="Cron expression, or a preset such as @daily.")
    ] = DEFAULT_SCHEDULE,
    value_format: ValueFormat = None,
    upsert: Annotated[
        bool | None,
        typer.Option(
            "--upsert/--no-upsert",
            help="Whether to draft an upsert table. The default is yes if nearly all "
            "records have a key, keys repeat, and values can be decoded.",
        ),
    ] = None,
    suite: Annotated[
        bool,
        typer.Option(
            "--suite/--no-suite",
            help="Also draft a quality suite, include/expectations/NAME.json. Its rules make each "
            "check start Spark.",
        ),
    ] = False,
    records: Annotated[
        int, typer.Option(min=1, help="Number of the newest records of the topic to read.")
    ] = 5_000,
    connection: KafkaConnection = LOCAL_CONNECTION,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Draft a spec from the newest records of a topic, and write it to the folder of specs.

    A format or a type is what at least 95 % of the records have; --format chooses the format of the
    values. The draft counts the records that do not fit; a run puts them into quarantine. For
    values that begin with a schema id, the command reads the registry of the connection
    schema_registry_default, if it is defined.

    The command reads committed records, for 30 seconds and 64 MB at most. It uses no consumer
    group, changes nothing in Kafka, and starts no Spark. It never overwrites a spec or a suite.
    Without --suite, tidemark suite init drafts a quality suite later, from the landed records.

    \b
    tidemark pipeline init payments
    tidemark run payments
    tidemark suite init payments
    """  # noqa: D301  click does not rewrap a paragraph that begins with \b
    if name is not None and not re.fullmatch(PIPELINE_NAME, name):
        raise typer.BadParameter(f"the name of a pipeline must match {PIPELINE_NAME}; got {name!r}")
    tidemark = App.from_environment()
    sample = tidemark.topics(connection).newest(topic, records, seconds=_SECONDS, size=_BYTES)
    with fields_required():
        draft = SpecDraft.of(
            sample,
            name=name,
            connection=connection,
            schedule=schedule,
            upsert=upsert,
            registry=tidemark.connections.registry_answers(DEFAULT_REGISTRY),
            with_suite=suite,
            value_format=value_format,
        )
    file = draft.check(
        tidemark.specs_path, tidemark.layout, tidemark.recorded_pipelines, tidemark.table_owner
    )
    draft, rules = _with_suite(tidemark, draft, dry_run=dry_run)
    if not dry_run:
        draft.write(file)
    if as_json:
        written = {"file": str(file), "written": not dry_run, **draft.as_record()}
        print_json(written if rules is None else {**written, "suite": rules})
        return
    note(f"read {len(sample.records):,} of {counted(sample.offsets, 'offset')} of {topic}")
    if not sample.is_complete:
        note(f"reading stopped after {_SECONDS:.0f} seconds or {_BYTES >> 20} MB")
    if dry_run:
        out.print(draft.text.rstrip())
        return
    _print(draft)
    out.print(f"wrote     {file}")
    if problem := draft.decode.registry_problem:
        out.print(f"no format: {problem.rendered('problem')}")
        out.print("           Correct this, remove the file, and run the command again.")
    if rules is not None:
        drafted = counted(len(rules["expectations"]), "rule")
        out.print(f"wrote     {tidemark.layout.suite(draft.name)} with {drafted}")
    out.print(f"edit it, then: tidemark pipeline check {draft.name}")
    out.print(f"               tidemark run {draft.name}")
    out.print(f"               tidemark status {draft.name}")
    if tidemark.airflow().status().running:
        out.print(f"on a schedule: tidemark airflow dags unpause tidemark_{draft.name}")


def _with_suite(
    tidemark: App, draft: SpecDraft, *, dry_run: bool
) -> tuple[SpecDraft, dict[str, Any] | None]:
    """Return a draft and its suite; None if it has none. Write the suite, except in a dry run.

    If the records support no rule, the returned draft has no suite.
    """
    if draft.suite is None:
        return draft, None
    rules = draft_suite(draft.name, draft.profile)
    if not rules["expectations"]:
        note(f"no suite: the records support no rule. {rules['notes']}")
        others = [each for each in draft.assumptions if each.key != "quality.suite"]
        return replace(draft, suite=None, assumptions=others), None
    file = tidemark.layout.suite(draft.name)
    if dry_run:
        check_no_suite(file)
    else:
        write_suite(file, rules)
    return draft, rules


def _print(draft: SpecDraft) -> None:
    """Print what a draft assumes, and how many records do not fit."""
    print_table(
        f"Assumed from {counted(draft.decode.records, 'record')}",
        ("key of the spec", "value", "because"),
        [(each.key, each.value, each.evidence) for each in draft.assumptions],
    )
    for path, why in draft.decode.left_out:
        out.print(f"left out: {path!a} ({why!a})")
    if draft.decode.unfit and draft.is_decoded:
        out.print(
            f"at most {draft.decode.unfit:,} of {counted(draft.decode.records, 'record')} go to "
            "quarantine, because they do not fit"
        )


@app.command(short_help="Check specs and their quality suites.")
def check(
    pipelines: PipelineNamesOrAll = None,
    as_json: AsJson = False,
) -> None:
    """Check specs and the quality suites that they name, and print every problem.

    Each problem has its file, its key, the expected and the actual value. The command reads files
    only, and needs neither Kafka nor Spark. If specs contradict each other, it also reads the
    control table, and data tables if necessary. The exit code is 65 if a spec is invalid.

    A warning names a connection to Kafka or to a schema registry that this environment does not
    define. It does not change the exit code, because Airflow may define the connection.
    """
    tidemark = App.from_environment()
    folder = tidemark.spec_folder
    known = sorted({*folder.specs, *folder.broken})
    names = list(dict.fromkeys(pipelines or known))
    for name in names:
        if name not in known:
            raise UnknownPipeline(pipeline=name, known=tuple(known))
    problems = {name: _problem(tidemark, name) for name in names}
    valid = [folder.specs[name] for name in names if problems[name] is None]
    warnings = {spec.name: tidemark.connections.problems(spec) for spec in valid}
    if as_json:
        print_json([_record(name, problems[name], warnings.get(name, ())) for name in names])
    else:
        rows = [(spec.name, spec.topic, spec.schedule, ", ".join(_tables(spec))) for spec in valid]
        if rows:
            print_table("Valid specs", ("pipeline", "topic", "schedule", "tables"), rows)
        for name, some in warnings.items():
            for each in some:
                text = f"{name}: warning: {each.rendered('problem')} {each.rendered('fix')}"
                err.print(text, style="yellow")
        for name, problem in problems.items():
            if problem is not None:
                print_error_record({"pipeline": name, **problem.as_record()})
    if any(problems.values()):
        raise typer.Exit(ExitCode.REFUSED)


def _problem(tidemark: App, name: str) -> TidemarkError | None:
    """Return the problems of a spec, or of its quality suite."""
    if name in tidemark.spec_folder.broken:
        return tidemark.spec_folder.broken[name]
    suite = tidemark.specs[name].suite
    try:
        if suite:
            load_suite(tidemark.layout.suite(suite))
    except SpecError as error:
        return error
    return None


def _tables(spec: PipelineSpec) -> list[str]:
    """Return the paths of the tables of a pipeline."""
    tables = [spec.target]
    if spec.decode:
        tables.append(spec.decode.target)
        if spec.decode.upsert:
            tables.append(spec.decode.upsert.target)
    return tables


def _record(
    name: str, problem: TidemarkError | None, warnings: Sequence[TidemarkError]
) -> dict[str, object]:
    """Return the result of one spec for `--json`."""
    if problem is None:
        records = [each.as_record() for each in warnings]
        return {"pipeline": name, "valid": True, "warnings": records}
    return {"pipeline": name, "valid": False, **problem.as_record()}
