"""The charts of the lag in a browser: no blocked style, no overflow, values under the pointer."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.accessibility import violations
from tests.support.chromium import chromium_tab
from tests.support.consoles import Admits, SomeRights, app_of, served
from tests.support.file_lake import home_lake
from tidemark.console.server import build_app
from tidemark.delta.status_history import append_statuses

pytestmark = pytest.mark.e2e

UNDER_THE_POINTER = """
(() => {
  const chart = document.querySelector(".lag-chart .plot");
  chart.scrollIntoView({ block: "center" });
  const plot = chart.getBoundingClientRect();
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
    with served(build_app(app_of(tmp_path), Admits(SomeRights()))) as address:
        yield address


def test_charts_fit_into_wide_and_narrow_pages_and_show_values(
    tmp_path: Path, console: str
) -> None:
    (tmp_path / "browser").mkdir()
    with chromium_tab(tmp_path / "browser") as tab:
        for width, dark in ((1280, False), (400, True)):
            for path, chart in {"/": ".sparkline", "/pipelines/events": ".lag-chart"}.items():
                tab.open(f"{console}{path}", width=width, dark=dark)
                tab.wait_for(f"document.querySelector({chart!r}) !== null")
                assert tab.value("document.documentElement.scrollWidth") <= width
                assert violations(tab) == []
            assert "1,000,000,000,000,0" in tab.value(UNDER_THE_POINTER)
        assert tab.problems == []
