"""The `tidemark` command."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable
from functools import cache, reduce
from importlib.metadata import version
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tidemark.cli import (
    backfill,
    broker,
    console,
    coverage,
    decode,
    demo,
    ingest,
    local,
    maintenance,
    offsets,
    pipeline,
    publication,
    records,
    repairs,
    report,
    run,
    sample,
    schema,
    shell,
    spark,
    sql,
    status,
    suite,
    topics,
    verify,
)
from tidemark.cli.output import TerminalHandler, err, note, out, print_error_record, print_json
from tidemark.cli.progress import waiting
from tidemark.core.errors import TidemarkError
from tidemark.core.logs import LogFormat, configure_logging

HEADINGS = {
    "Every day": "status coverage records console run backfill verify report",
    "Steps of a run": "plan ingest check decode upsert",
    "Data": "sql shell topics pipeline offsets schema suite maintain",
    "Repair": (
        "quarantine publication abandon undo accept-loss accept-recreation rewind deduplicate "
        "control"
    ),
    "This machine": "up down airflow demo broker spark sample",
}
"""The commands under each heading of `tidemark --help`, in the order of the page."""

PHASES = {
    "status": "reading the lag of {pipelines}",
    "coverage": "reading the offsets of {pipeline}",
    "records": "reading records of {pipeline}",
    "run": "planning {pipelines}",
    "backfill": "selecting offsets of {pipeline}",
    "verify": "comparing {pipeline} with Kafka",
    "report": "reporting on {pipeline}",
    "plan": "planning {pipeline}",
    "ingest": "planning {pipelines}",
    "check": "reading the plans of {pipeline}",
    "decode": "looking for records of {pipelines} to decode",
    "upsert": "planning the merges of {pipelines}",
    "topics list": "reading the topics of {connection}",
    "topics describe": "reading topic {topic}",
    "topics create": "creating topic {topic}",
    "topics peek": "reading records of topic {topic}",
    "pipeline init": "reading records of topic {topic}",
    "pipeline check": "checking the specs of {pipelines}",
    "offsets import": "reading the first offsets of {pipeline}",
    "offsets export": "exporting the offsets of {pipeline} to group {group}",
    "publication list": "reading the plans of {pipeline}",
    "publication release": "releasing plan {plan_number} of {pipeline}",
    "publication reject": "rejecting plan {plan_number} of {pipeline}",
    "quarantine list": "reading the quarantine of {pipeline}",
    "quarantine replay": "reading the quarantine of {pipeline}",
    "schema init": "reading landed records of {pipeline}",
    "suite init": "reading landed records of {pipeline}",
    "maintain": "maintaining the tables of {pipelines}",
    "abandon": "abandoning plan {plan_number} of {pipeline}",
    "undo": "undoing plan {plan_number} of {pipeline}",
    "accept-loss": "reading the deleted offsets of {pipeline}",
    "accept-recreation": "reading the topic of {pipeline}",
    "rewind": "comparing the plans of {pipeline} with its data table",
    "deduplicate": "reading the rows of {pipeline}",
    "control rebuild": "reading the data table of {pipeline}",
    "control repair": "reading the control table",
    "broker stop": "stopping Kafka",
    "broker status": "checking whether Kafka runs",
    "spark stop": "stopping Spark",
    "spark status": "checking whether Spark runs",
}
"""Text that a terminal shows while a command prints nothing. Braces contain parameter names."""


CONTINUED = (
    *("run", "ingest", "check", "decode", "upsert", "replay"),
    *("abandon", "undo", "rewind", "rebuild", "maintain"),
)
"""Last words of commands that continue their work if they run again after an interrupt."""
_INTERRUPTED = 128 + signal.SIGINT


class _CommandsUnderHeadings(TyperGroup):
    """Lists the commands under `HEADINGS`, and runs the chosen command."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Remove Pydantic's prefix from the message about a wrong option."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as wrong:
            wrong.message = wrong.message.removeprefix("Value error, ")
            raise

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """Return the names in the order of `HEADINGS`."""
        return " ".join(HEADINGS.values()).split()

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        limit = formatter.width - 6 - max(map(len, self.list_commands(ctx)))
        for heading, names in HEADINGS.items():
            commands = [(name, self.commands[name]) for name in names.split()]
            with formatter.section(heading):
                formatter.write_dl(
                    [(name, command.get_short_help_str(limit)) for name, command in commands]
                )


app = typer.Typer(
    name="tidemark",
    cls=_CommandsUnderHeadings,
    help=(
        "Copy Kafka topics into Delta Lake in scheduled batches of explicit offset ranges.\n\n"
        "`run` brings pipelines up to date. Its steps are commands too: `plan` records which "
        "offsets to read, `ingest` lands them, `check` checks them, `decode` and `upsert` make "
        "further tables. `status` shows the lag of each pipeline. Airflow runs the same steps "
        "from dags/.\n\n"
        "Exit codes: 0 done or nothing to do, 1 unexpected error, 2 wrong usage, 65 refused, "
        "66 a check failed, 75 and 76 try again. A retry does not help against 65. After 66 the "
        "data stays landed."
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
status.register(app)
run.register(app)
ingest.register(app)
decode.register(app)
backfill.register(app)
repairs.register(app)
maintenance.register(app)
verify.register(app)
report.register(app)
coverage.register(app)
records.register(app)
sql.register(app)
shell.register(app)
console.register(app)
app.add_typer(topics.app, name="topics")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(schema.app, name="schema")
app.add_typer(suite.app, name="suite")
app.add_typer(offsets.app, name="offsets")
app.add_typer(publication.app, name="publication")
app.add_typer(sample.app, name="sample")
app.add_typer(broker.app, name="broker")
app.add_typer(spark.app, name="spark")
local.register(app)
demo.register(app)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        out.print(f"tidemark {version('tidemark-lakehouse')}")
        raise typer.Exit


@app.callback()
def _options(
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log each step on standard error.")
    ] = False,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    terminal = TerminalHandler(verbose=verbose) if err.is_terminal else None
    configure_logging(LogFormat.of(os.environ), terminal)
    logging.getLogger("tidemark").setLevel(logging.INFO if verbose else logging.WARNING)


def main() -> None:
    """Run the command line. Only this function converts a named error into an exit code."""
    # The exit on SIGTERM lets a command end its work on a server, or its job.
    before = signal.signal(signal.SIGTERM, _leave)
    default = signal.getsignal(signal.SIGINT)
    if default is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    try:
        _command()(prog_name="tidemark")
    except TidemarkError as error:
        (print_json if "--json" in sys.argv else print_error_record)(error.as_record())
        sys.exit(error.exit_code)
    except SystemExit as ended:
        if ended.code == _INTERRUPTED and any(name in sys.argv for name in CONTINUED):
            note("Interrupted. Landed rows stay. Run the command again to continue.")
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, default)


@cache
def _command() -> Any:
    """Return the click command; a process that runs several commands builds it once."""
    root: Any = typer.main.get_command(app)
    for words, text in PHASES.items():
        command = reduce(lambda group, word: group.commands[word], words.split(), root)
        command.callback = _with_phase(command.callback, text)
    return root


def _with_phase(callback: Callable[..., Any], text: str) -> Callable[..., Any]:
    """Return a callback that shows its phase on a terminal while it prints nothing."""

    def call(**values: Any) -> Any:
        names = {name: _names(value) for name, value in values.items()}
        dry_run = " (dry run)" if values.get("dry_run") else ""
        with waiting(text.format_map(names) + dry_run):
            return callback(**values)

    return call


def _names(value: Any) -> str:
    match value:
        case None:
            return "all pipelines"
        case list() | tuple():
            return ", ".join(map(str, value)) or "all pipelines"
        case _:
            return str(value)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Interrupt the command, without log lines of the steps that end with it."""
    logging.getLogger("tidemark").setLevel(logging.CRITICAL + 1)
    signal.default_int_handler(number, frame)


def _leave(number: int, _: object) -> None:
    sys.exit(128 + number)
