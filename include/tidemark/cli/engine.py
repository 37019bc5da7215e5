"""The engine of commands that start Spark, and their exit code."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import typer

from tidemark.app.app import App
from tidemark.app.pipelines import Outcomes, Pipelines
from tidemark.app.run import run
from tidemark.app.steps import Ref, Result
from tidemark.cli.output import job_line, print_records, step
from tidemark.cli.progress import phase
from tidemark.core.errors import ExitCode
from tidemark.spark.engine import TOKEN_VARIABLE, Engine, JobRun, Server


def select_engine(app: App, master: str | None, names: Sequence[str] = ()) -> Engine:
    """Return the engine of a command, and print its name.

    A server is checked first; raises the errors of `Engines.check`.

    Args:
        app: Tidemark.
        master: As in `Engines.select`.
        names: The pipelines that use the engine.
    """
    if master and "token=" in master:
        raise typer.BadParameter(
            f"other users can read a token on the command line; set {TOKEN_VARIABLE} instead"
        )
    engine = app.engines.select(master)
    step(f"engine: {engine}")
    if isinstance(engine, Server):
        app.engines.check(engine, app.valid_specs(names))
    return engine


def on_engine(app: App, master: str | None, names: Sequence[str]) -> Pipelines:
    """Return the pipelines of a command on its engine; see `select_engine`."""
    engine = select_engine(app, master, names)

    def run_job(job: str, refs: Sequence[Ref]) -> JobRun:
        names = ", ".join(dict.fromkeys(ref.pipeline for ref in refs))
        text = f"{job.replace('_', ' ')} of {names}"
        # The total grows with each query of the job, so a bar would move backwards.
        with phase(text, unit="Spark tasks", has_bar=False) as show_tasks:
            return run(app, engine, job, refs, print_line=job_line, show_tasks=show_tasks)

    return Pipelines(
        app=app,
        names=names,
        run=run_job,
        progress=step,
    )


def print_outcomes(
    outcomes: Outcomes, line: Callable[[Result], str | None], *, as_json: bool
) -> None:
    """Print the outcomes as `print_records` does; end with the worst exit code after a failure."""
    print_records(outcomes.records, line, as_json=as_json)
    exit_with(outcomes)


def exit_with(outcomes: Outcomes) -> None:
    """End the command with the worst exit code if a pipeline has failed."""
    if outcomes.exit_code != ExitCode.OK:
        raise typer.Exit(outcomes.exit_code)
