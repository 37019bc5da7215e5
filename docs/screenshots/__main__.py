"""Writes a picture of each page of the console, wide and narrow, light and dark.

The data are those of `make demo`. The script starts the broker of the demo's folder again and
produces a few records, so that the pages show a lag. It stops everything that it started.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import uvicorn
from tests.support.chromium import chromium_tab

from tidemark.app import App
from tidemark.connections import connection_variable, kafka_connection
from tidemark.console.guard import LinkGuard
from tidemark.console.server import build_app
from tidemark.dev.broker import home_broker
from tidemark.dev.producer import produce
from tidemark.spark.sockets import free_ports

FOLDER = Path(__file__).parent
WIDTHS = (1280, 400)
PAGES: Mapping[str, str] = {
    "overview": "/?refresh=0",
    "coverage": "/pipelines/prices?refresh=0",
    "backfill": "/pipelines/prices/backfill?retained=true&replace=true&reason=new+decoder",
}
"""Addresses of the pages, by the name of their picture."""


def main() -> None:
    """Write the files."""
    home = App.from_environment().layout.home / "demo"
    if not home.is_dir():
        raise SystemExit("the pictures need the data of `make demo`; run it first")
    environ = {"TIDEMARK_HOME": str(home)}
    broker = home_broker(App.from_environment(environ).layout)
    bootstrap = broker.start().bootstrap
    try:
        produce({"bootstrap.servers": bootstrap}, "prices", records=400)
        environ[connection_variable("kafka_default")] = kafka_connection(bootstrap)
        with _served(environ) as login, TemporaryDirectory() as profile:
            _take(login, Path(profile))
    finally:
        broker.stop()


def _take(login: str, profile: Path) -> None:
    base = login.partition("/login")[0]
    with chromium_tab(profile) as tab:
        tab.open(login)
        for name, path in PAGES.items():
            for width in WIDTHS:
                for scheme in ("light", "dark"):
                    tab.open(f"{base}{path}", width=width, dark=scheme == "dark")
                    file = FOLDER / f"{name}-{width}-{scheme}.png"
                    tab.screenshot(file)
                    print(file.name, *tab.problems)  # noqa: T201  progress of a command


@contextmanager
def _served(environ: Mapping[str, str]) -> Iterator[str]:
    """Serve the console during the block, and return the link that logs in."""
    guard = LinkGuard()
    web = build_app(lambda: App.from_environment(environ), guard)
    (port,) = free_ports("127.0.0.1", 1)
    server = uvicorn.Server(uvicorn.Config(web, port=port, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}/login?token={guard.link_token}"
    finally:
        server.should_exit = True
        thread.join()


if __name__ == "__main__":
    main()
