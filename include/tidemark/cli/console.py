"""`tidemark console`: the console's pages on this machine."""

from __future__ import annotations

import os
import socket
from typing import Annotated

import typer

from tidemark.app import option_texts
from tidemark.app.app import App
from tidemark.cli.arguments import AsJson, port_option
from tidemark.cli.output import out, print_json
from tidemark.console.observer import KAFKA_TIMEOUT_S
from tidemark.core.errors import SetupError

HOST = "127.0.0.1"
TOKEN_VARIABLE = "TIDEMARK_CONSOLE_TOKEN"  # noqa: S105  a name, not a password
"""Variable with the bearer token of programs, such as Prometheus."""


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(short_help="Serve web pages about topics, pipelines and plans.")(console)


def console(
    port: Annotated[int, port_option(f"{option_texts.PORT} 0 selects a free port.")] = 8081,
    base_path: Annotated[
        str, typer.Option(help="Path prefix of all pages, behind a proxy that keeps the prefix.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Serve the console on 127.0.0.1 until Ctrl-C, and print its address.

    The printed link works once and logs in one browser. No page changes a table, a topic
    or a plan. The pages read Kafka with the connections of the pipelines, without a consumer group.

    Programs such as Prometheus send the value of TIDEMARK_CONSOLE_TOKEN as a bearer token. It
    opens /metrics and /health only.

    \b
    tidemark console
    tidemark console --port 9000
    """  # noqa: D301  click does not rewrap a paragraph that begins with \b
    import uvicorn

    from tidemark.console.guard import COOKIE, LinkGuard
    from tidemark.console.server import build_app

    # An error in the folder of specs is reported here, before a page is opened.
    _ = App.from_environment().specs
    listening = _listen(port)
    bound = listening.getsockname()[1]
    bearer = os.environ.get(TOKEN_VARIABLE) or None
    guard = LinkGuard(bearer=bearer, cookie=f"{COOKIE}_{bound}")
    prefix = f"/{base_path.strip('/')}" if base_path.strip("/") else ""
    hosts = ["*"] if prefix else [HOST, "localhost"]
    web = build_app(_load_app, guard, allowed_hosts=hosts, prefix=prefix)
    address = f"http://{HOST}:{bound}{prefix}"
    link = f"{address}/login?token={guard.link_token}"
    if as_json:
        print_json({"address": address, "link": link})
    else:
        out.print(f"console   {link}")
        out.print("stop      Ctrl-C")
    # Without a log configuration of its own, uvicorn uses the one of this process.
    config = uvicorn.Config(
        web, log_config=None, log_level="warning", access_log=False, server_header=False
    )
    uvicorn.Server(config).run(sockets=[listening])


def _load_app() -> App:
    return App(environ=dict(os.environ), kafka_timeout_s=KAFKA_TIMEOUT_S)


def _listen(port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
        # The printed link works at once: requests wait until the server accepts them.
        listening.listen()
    except OSError as error:
        listening.close()
        raise SetupError(
            finding=f"The console cannot listen on port {port}.",
            needed="a free port that this user may open",
            seen=str(error),
            advice="Choose another one: `tidemark console --port 0` takes any free port.",
        ) from error
    return listening
