"""Arguments that many commands take."""

from __future__ import annotations

import getpass
import uuid
from typing import Annotated

import typer

Pipeline = Annotated[str, typer.Argument(help="Name of a spec in include/pipelines.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]
Reason = Annotated[str, typer.Option(help="Why; kept with your name.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done; write nothing.")]


def requester() -> str:
    """Who asks: the user, and which of their commands."""
    return f"cli:{getpass.getuser()}:{uuid.uuid4().hex[:12]}"
