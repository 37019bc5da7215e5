"""Arguments that several commands take."""

from __future__ import annotations

import getpass
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any

import typer

from tidemark.app import option_texts
from tidemark.app.app import App
from tidemark.core.texts import TIME_RULE, parse_time
from tidemark.draft.decode import NoUsableField
from tidemark.spec.decode import Format
from tidemark.spec.layout import spec_files


def complete_pipeline(incomplete: str) -> list[str]:
    """Return the names of pipelines that begin with a text, for the completion of a shell.

    Reads no spec: each spec has the name of its file.
    """
    try:
        files = spec_files(App.from_environment().specs_path)
    except OSError:
        return []
    return sorted({file.stem for file in files if file.stem.startswith(incomplete)})


PipelineName = Annotated[
    str,
    typer.Argument(help="Name of a spec in include/pipelines.", autocompletion=complete_pipeline),
]
PipelineTable = Annotated[
    str,
    typer.Argument(
        help="Name of a spec in include/pipelines. NAME@typed is its typed table.",
        autocompletion=complete_pipeline,
    ),
]
PipelineNames = Annotated[
    list[str],
    typer.Argument(help=option_texts.PIPELINES, autocompletion=complete_pipeline),
]
PipelineNamesOrAll = Annotated[
    list[str] | None,
    typer.Argument(
        help=f"{option_texts.PIPELINES} By default all.", autocompletion=complete_pipeline
    ),
]


def port_option(text: str) -> Any:
    """Return a command-line option for the number of a port. 0 stands for a free port.

    Args:
        text: The help text of the option.
    """
    return typer.Option(help=text, min=0, max=65535)


def time_option(text: str) -> datetime:
    """Parse the value of an option that is a time."""
    try:
        return parse_time(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not {TIME_RULE}.") from None


@contextmanager
def fields_required() -> Iterator[None]:
    """Turn the error of a format without usable fields into an error of usage."""
    try:
        yield
    except NoUsableField as wrong:
        raise typer.BadParameter(f"{wrong}; choose another --format") from None


Topic = Annotated[str, typer.Argument(help="Name of the topic in Kafka.")]
KafkaConnection = Annotated[
    str,
    typer.Option(
        "--connection",
        help="Connection id of the Kafka cluster. Without a definition, kafka_default is the "
        "embedded broker.",
    ),
]
LandedPlan = Annotated[int, typer.Option("--plan", min=1, help=option_texts.LANDED_PLAN)]
Partition = Annotated[int | None, typer.Option(min=0, help=option_texts.ONE_PARTITION)]
FirstOffset = Annotated[
    int | None, typer.Option("--start", min=0, help="Only offsets from this one on.")
]
EndOffset = Annotated[
    int | None, typer.Option("--end", min=1, help="Only offsets before this one.")
]
LandedRecords = Annotated[
    int, typer.Option(min=1, help="Number of the newest landed records to read.")
]
ValueFormat = Annotated[
    Format | None,
    typer.Option(
        "--format",
        help="Format of the values. Default: the format of at least 95 % of them.",
        show_default=False,
    ),
]
Seed = Annotated[int, typer.Option(help="Selects the random values of the records.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]
Reason = Annotated[str, typer.Option(help=option_texts.REASON)]
DryRun = Annotated[bool, typer.Option("--dry-run", help=option_texts.DRY_RUN)]
DryRunOrApply = Annotated[
    bool, typer.Option("--dry-run/--apply", help="Only show the change, or apply it.")
]

Master = Annotated[
    str | None,
    typer.Option(
        envvar="TIDEMARK_MASTER",
        help="Where Spark runs; `tidemark spark --help` has the values and the default.",
    ),
]


def requester() -> str:
    """Return a new requester: the user name and a random id of the command."""
    return f"cli:{getpass.getuser()}:{uuid.uuid4().hex[:12]}"
