"""The charts of the lag in a browser: no blocked style, no overflow, values under the pointer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import uvicorn

from tests.support.chromium import Tab, chromium_tab
from tests.support.consoles import Admits, SomeRights, app_of
from tests.support.file_lake import home_lake
from tidemark.console.server import build_app
from tidemark.lake.status_history import append_statuses
from tidemark.spark.sockets import free_ports

pytestmark = pytest.mark.e2e

UNDER_THE_POINTER = """
(() => {
  const plot = document.querySelector(".lag-chart .plot").getBoundingClientRect();
  const [x, y] = [plot.left + plot.width / 2, plot.top + plot.height / 2];
  return document.elementFromPoint(x, y).parentElement.querySelector("title").textContent;
})()
"""


@pytest.fixture
def console(tmp_path: Path) -> Iterator[str]:
    """The address of a console whose pipeline `events` has a recorded lag for each hour."""
    home_lake(tmp_path)
    now = datetime.now(UTC)
    rows = [
        {"pipeline": "events", "checked_at": now - timedelta(hours=hours), "lag": 10**15 + hours}
        for hours in range(24)
    ]
    append_statuses(app_of(tmp_path)().layout.status_history, rows)
    web = build_app(app_of(tmp_path), Admits(SomeRights()))
    (port,) = free_ports("127.0.0.1", 1)
    server = uvicorn.Server(uvicorn.Config(web, port=port, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()


@pytest.fixture
def tab(tmp_path: Path) -> Iterator[Tab]:
    (tmp_path / "browser").mkdir()
    with chromium_tab(tmp_path / "browser") as tab:
        yield tab


def test_charts_fit_into_wide_and_narrow_pages_and_show_values(tab: Tab, console: str) -> None:
    for width in (1280, 400):
        for path, chart in {"/": ".sparkline", "/pipelines/events": ".lag-chart"}.items():
            tab.open(f"{console}{path}", width=width)
            tab.wait_for(f"document.querySelector({chart!r}) !== null")
            assert tab.value("document.documentElement.scrollWidth") <= width
        assert "1,000,000,000,000,0" in tab.value(UNDER_THE_POINTER)
    assert tab.problems == []


def test_a_refresh_keeps_the_opened_table_of_values(tab: Tab, console: str) -> None:
    tab.open(f"{console}/pipelines/events")
    tab.wait_for("document.querySelector('#content details') !== null")
    tab.value("document.querySelector('#content details').open = true")
    tab.value("document.getElementById('content').dataset.old = 'yes'")
    tab.wait_for("!document.getElementById('content').dataset.old")
    assert tab.value("document.querySelector('#content details').open") is True
