"""Writes a picture of each page of the console, wide and narrow, light and dark.

The data are those of `make demo`. The script starts the broker of the demo's folder again and
produces a few records, so that the pages show a lag. It stops everything that it started.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.chromium import chromium_tab
from tests.support.consoles import served

from tidemark.app import App
from tidemark.connections import connection_variable, kafka_connection
from tidemark.console.guard import LinkGuard
from tidemark.console.server import build_app
from tidemark.dev.broker import home_broker
from tidemark.dev.producer import produce

FOLDER = Path(__file__).parent
WIDTHS = (1280, 400)
PAGES: Mapping[str, str] = {
    "overview": "/?refresh=0",
    "coverage": "/pipelines/prices?period=hour&refresh=0",
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
        guard = LinkGuard()
        web = build_app(lambda: App.from_environment(environ), guard)
        with served(web) as base, TemporaryDirectory() as profile:
            _take(base, guard.link_token, Path(profile))
    finally:
        broker.stop()


def _take(base: str, token: str, profile: Path) -> None:
    with chromium_tab(profile) as tab:
        tab.open(f"{base}/login?token={token}")
        for name, path in PAGES.items():
            for width in WIDTHS:
                for scheme in ("light", "dark"):
                    tab.open(f"{base}{path}", width=width, dark=scheme == "dark")
                    file = FOLDER / f"{name}-{width}-{scheme}.png"
                    tab.screenshot(file)
                    print(file.name, *tab.problems)  # noqa: T201  progress of a command


if __name__ == "__main__":
    main()
