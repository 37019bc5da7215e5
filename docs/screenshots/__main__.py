"""Writes pictures of the console's pages, light and dark, two of them also narrow.

The data are a copy of those of `make demo`, with the events of `scene.py`. The script starts the
broker and the Spark server of the copy, and stops them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from shutil import copytree, ignore_patterns
from tempfile import TemporaryDirectory

from docs.screenshots.scene import END, LOST, PARTITION, PIPELINE, extend
from tests.support.chromium import Tab, chromium_tab
from tests.support.consoles import served

from tidemark.app.app import App
from tidemark.app.connections import connection_variable, kafka_connection
from tidemark.cli.local import start_spark, stop_all
from tidemark.console.guard import LinkGuard
from tidemark.console.server import build_app
from tidemark.local.broker import home_broker

FOLDER = Path(__file__).parent.with_name("_static") / "screenshots"
PAGES: Mapping[str, str] = {
    "overview": "/?refresh=0",
    "pipeline": f"/pipelines/{PIPELINE}?period=hour&refresh=0",
    "zoom": f"/pipelines/{PIPELINE}?partition={PARTITION}&start=0&end={END}",
    "plan": f"/pipelines/{PIPELINE}/plans/5",
    "records": f"/pipelines/{PIPELINE}/records?partition={PARTITION}&offset={LOST.end - 2}",
    "quality": f"/pipelines/{PIPELINE}/quality",
    "cluster": "/cluster",
    "backfill": f"/pipelines/{PIPELINE}/backfill?retained=true&replace=true&reason=new+decoder",
}
"""Addresses of the pages, by the name of their pictures."""
NARROW = ("overview", "pipeline")
"""Pages with narrow pictures as well."""
TALLEST: Mapping[int, int] = {1280: 1_400, 400: 1_000}
"""Widths of pictures, and their largest heights, in pixels; the rest of a page is cut off."""


def pictures(name: str) -> Iterator[tuple[Path, int, str]]:
    """Yield the file of each picture of a page, its width in pixels, and its colour scheme."""
    for width in TALLEST if name in NARROW else (1280,):
        for scheme in ("light", "dark"):
            yield FOLDER / f"{name}-{width}-{scheme}.png", width, scheme


def main() -> None:
    """Write the files."""
    demo = App.from_environment().layout.home / "demo"
    if not demo.is_dir():
        raise SystemExit("the pictures need the data of `make demo`; run it first")
    with TemporaryDirectory() as folder:
        home = Path(folder, "home")
        copytree(demo, home, ignore=ignore_patterns("airflow", "spark", "pipelines"))
        _take_all(home, Path(folder, "browser"))


def _take_all(home: Path, profile: Path) -> None:
    environ = {"TIDEMARK_HOME": str(home), "LOGNAME": "operator"}
    app = App.from_environment(environ)
    try:
        bootstrap = home_broker(app.layout).start().bootstrap
        environ[connection_variable("kafka_default")] = kafka_connection(bootstrap)
        app = App.from_environment(environ)
        start_spark(app)
        extend(app, bootstrap)
        guard = LinkGuard()
        web = build_app(lambda: App.from_environment(environ), guard)
        profile.mkdir()
        with served(web) as base, chromium_tab(profile) as tab:
            tab.open(f"{base}/login?token={guard.link_token}")
            for name, path in PAGES.items():
                _take(tab, name, f"{base}{path}")
    finally:
        stop_all(app)


def _take(tab: Tab, name: str, address: str) -> None:
    for file, width, scheme in pictures(name):
        tab.open(address, width=width, dark=scheme == "dark")
        tab.screenshot(file, TALLEST[width])
        print(file.name, *tab.problems)  # noqa: T201  progress of a command


if __name__ == "__main__":
    main()
