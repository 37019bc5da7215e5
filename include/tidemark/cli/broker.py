"""`tidemark broker`: the embedded Kafka, for the demo, for experiments and for tests."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.app import option_texts
from tidemark.app.app import App
from tidemark.cli.arguments import AsJson, port_option
from tidemark.cli.output import print_status
from tidemark.cli.progress import phase
from tidemark.core.texts import counted
from tidemark.local.broker import DEFAULT_PORT, home_broker

app = typer.Typer(
    help="Start and stop an embedded Apache Kafka in KRaft mode, data below TIDEMARK_HOME.",
    short_help="Start and stop an embedded Apache Kafka.",
    no_args_is_help=True,
)


@app.command()
def start(
    port: Annotated[
        int | None, port_option(f"{option_texts.PORT} {option_texts.LAST_PORT} {DEFAULT_PORT}.")
    ] = None,
    nodes: Annotated[
        int, typer.Option(help="Nodes, each a broker and a controller.", min=1, max=5)
    ] = 1,
    as_json: AsJson = False,
) -> None:
    """Start the broker unless it runs, and wait until it answers."""
    layout = App.from_environment().layout
    if port is None:
        port = home_broker(layout).last_port() or DEFAULT_PORT
    with phase(f"starting Kafka, {counted(nodes, 'node')}"):
        started = home_broker(layout, port=port, nodes=nodes).start()
    print_status(started, as_json=as_json)


@app.command()
def stop(as_json: AsJson = False) -> None:
    """Stop the broker; its data stays."""
    stopped = home_broker(App.from_environment().layout).stop()
    print_status(stopped, as_json=as_json)


@app.command(short_help="Show whether the broker runs, and where.")
def status(as_json: AsJson = False) -> None:
    """Show whether the broker runs, where it listens, and where its data and logs are."""
    found = home_broker(App.from_environment().layout).status()
    print_status(found, as_json=as_json)
