"""`tidemark spark`: the Spark Connect server of this machine, which shortens small runs."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.app import option_texts
from tidemark.app.app import App
from tidemark.cli.arguments import AsJson, port_option
from tidemark.cli.output import print_status
from tidemark.cli.progress import phase
from tidemark.spark.engine import DEFAULT_PORT

app = typer.Typer(
    help=(
        "Manage a Spark Connect server on this machine. While it runs, every command with "
        "`--master` uses it. Otherwise each command starts its own Spark, which takes longer than "
        "a small run.\n\n"
        "`--master` selects where a command runs Spark: a master of spark-submit, or "
        "sc://HOST:PORT of a Spark Connect server, with its token in "
        "SPARK_CONNECT_AUTHENTICATE_TOKEN. Default: the server of `tidemark spark start` while it "
        "runs, else local[*]. The DAGs use the connection spark_default instead."
    ),
    short_help="Start and stop a Spark Connect server, for short runs.",
    no_args_is_help=True,
)


@app.command(short_help="Start the server, and check it.")
def start(
    port: Annotated[int, port_option(f"{option_texts.PORT} 0 selects a free port.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Start the server unless it runs, wait until it answers, and check it.

    The server listens on this machine only and requires a token. Only you can read the file of the
    token.
    """
    engines = App.from_environment().engines
    with phase("starting Spark (about ten seconds)"):
        started = engines.server(port=port).start(engines.check_requirements)
    print_status(started, as_json=as_json)


@app.command(short_help="Run the server in the foreground.")
def serve(
    port: Annotated[int, typer.Option(help=option_texts.PORT, min=1, max=65535)] = DEFAULT_PORT,
) -> None:
    """Run the server in the foreground, for containers and service managers.

    The server listens on this machine only and logs to standard error. It requires the token of
    SPARK_CONNECT_AUTHENTICATE_TOKEN, or, if that is not set, the token of `tidemark spark start`.
    Commands use the server with `--master sc://localhost:PORT` and that token in the same variable.
    """
    App.from_environment().engines.server(port=port, log_to_file=False).serve()


@app.command(short_help="Stop the server.")
def stop(as_json: AsJson = False) -> None:
    """Stop the server. A run that uses the server fails; running it again is safe."""
    stopped = App.from_environment().engines.server().stop()
    print_status(stopped, as_json=as_json)


@app.command(short_help="Show whether the server runs, and where.")
def status(as_json: AsJson = False) -> None:
    """Show whether the server runs, where it listens, and where its log is."""
    found = App.from_environment().engines.server().status()
    print_status(found, as_json=as_json)
