"""`tidemark broker`: the embedded Kafka, for the demo, for trying things, for tests."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.app import App
from tidemark.cli.arguments import AsJson
from tidemark.cli.console import out, print_json, step
from tidemark.dev.broker import home_broker

app = typer.Typer(
    help="A real Apache Kafka on this machine, in KRaft mode, with its data below TIDEMARK_HOME.",
    short_help="A real Apache Kafka on this machine.",
    no_args_is_help=True,
)


@app.command()
def start(
    port: Annotated[
        int, typer.Option(help="Port on 127.0.0.1; 0 takes a free one.", min=0, max=65535)
    ] = 9092,
    nodes: Annotated[
        int, typer.Option(help="Nodes, each a broker and a controller.", min=1, max=5)
    ] = 1,
    as_json: AsJson = False,
) -> None:
    """Start the broker, or find that it runs; waits until it answers."""
    if not as_json:
        step(f"starting Kafka, {nodes} node(s)")
    state = home_broker(App.from_environment().layout, port=port, nodes=nodes).start()
    _show(state.as_record(), as_json)


@app.command()
def stop(as_json: AsJson = False) -> None:
    """Stop the broker; its data stays."""
    _show(home_broker(App.from_environment().layout).stop().as_record(), as_json)


@app.command(short_help="Say whether the broker runs, and where.")
def status(as_json: AsJson = False) -> None:
    """Say whether the broker runs, where it listens, where its data and logs are."""
    _show(home_broker(App.from_environment().layout).status().as_record(), as_json)


def _show(record: dict[str, object], as_json: bool) -> None:
    if as_json:
        print_json(record)
        return
    for key, value in record.items():
        out.print(f"{key:<12} {value}", markup=False)
