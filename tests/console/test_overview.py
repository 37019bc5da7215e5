"""Current and old statuses on the overview and on the pages of pipelines and DAG runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event

import pytest

from tests.support.consoles import SomeRights, a_status
from tests.support.file_lake import FileLake, home_lake
from tests.support.memory_consoles import memory_app
from tests.support.page_text import text_of
from tidemark.console import pipelines, runs
from tidemark.console.context import Page, PageContext
from tidemark.console.guard import AirflowRun
from tidemark.console.home import Home
from tidemark.console.observer import FRESH_S, KEPT_S, OLD_S, StatusObserver
from tidemark.console.rendering import render
from tidemark.core.errors import Unforeseen
from tidemark.core.throughput import Forecast, Run
from tidemark.kafka.errors import KafkaUnavailable
from tidemark.ops.report.status import PipelineStatus
from tidemark.ops.report.unfinished_work import UnfinishedWork
from tidemark.silver.typed.state import TypedState

FRAME = {"root": "", "here": "", "refreshes": True, "toggle": ""}


class StatusPages:
    """Pages of a home whose statuses are given.

    Attributes:
        found: The next status of `events`, or the error of its read. `idle` has another status.
        checked_at: Time of this status.
        now: Monotonic time of the observer, in seconds.
        may_end: Set at first. While it is not set, reads of statuses hang.
    """

    def __init__(self, home: Path, lake: FileLake, found: PipelineStatus) -> None:
        self.found: PipelineStatus | KafkaUnavailable = found
        self.checked_at = found.checked_at
        self.now = 0.0
        self.may_end = Event()
        self.may_end.set()
        shown = Home(memory_app(home, lake))
        shown.statuses.close()
        shown.statuses = StatusObserver(self._status, clock=lambda: self.now)
        self.context = PageContext(
            home=shown, app=shown.app, viewer=SomeRights(), root="", airflow=None
        )

    def _status(self, pipeline: str) -> PipelineStatus:
        assert self.may_end.wait(60)
        if pipeline == "idle":
            return replace(a_status(0), pipeline=pipeline, forecast=Forecast.NEVER)
        if isinstance(self.found, KafkaUnavailable):
            raise self.found
        return self.found

    def rows(self) -> dict[str, tuple[str, dict[str, str]]]:
        """Return the class and the cells of each row of the overview, by pipeline."""
        html = _html(pipelines.overview(self.context))
        head, *rows = re.findall(r"<tr.*?</tr>", html, re.DOTALL)
        names = re.findall(r"<th[^>]*>(.*?)</th>", head)
        found = {}
        for row in rows:
            cells = [text_of(cell) for cell in re.findall(r"<td.*?</td>", row, re.DOTALL)]
            (kind,) = re.findall(r'^<tr(?: class="(.*?)")?>', row)
            found[cells[0].split()[0]] = (kind, dict(zip(names, cells, strict=True)))
        return found

    def state_now(self) -> tuple[str, str]:
        """Return the class and the text of the state of `events` on the page of a failed run."""
        viewer = SomeRights(run=AirflowRun(conf={}, tasks={"plan": "failed"}))
        context = replace(self.context, viewer=viewer)
        html = _html(runs.page(context, "tidemark_events", "manual__1", None))
        state = html.partition("State of the pipeline now")[2].partition("</section>\n</main>")[0]
        (kind,) = re.findall(r'<span class="pill (.*?)"', state)
        return kind, text_of(state)

    def figures(self, pipeline: str) -> tuple[str, dict[str, str], str]:
        """Return the class of the figures on the page of a pipeline, the figures, and the text."""
        html = _html(pipelines.pipeline(self.context, pipeline, None, None, None, None))
        ((kind, found),) = re.findall(r'<dl class="(.*?)">(.*?)</dl>', html, re.DOTALL)
        pairs = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", found)
        return kind, {title: text_of(value) for title, value in pairs}, text_of(html)


def _html(page: Page) -> str:
    return render(page.template, {**FRAME, **page.values})


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[StatusPages]:
    """Pages with a status of `events` whose values all differ, checked three hours ago."""
    now = datetime.now(UTC)
    status = a_status(1_234_567)
    (partition,) = status.partitions
    minute = timedelta(minutes=1)
    landed_at = now - timedelta(days=2, minutes=5)
    status = replace(
        status,
        pipeline="events",
        checked_at=now - timedelta(hours=3, seconds=30),
        partitions=(replace(partition, lag_time=7 * minute, runway=timedelta(days=4)),),
        last_run=Run(
            sequence=3, planned_at=landed_at - minute, landed_at=landed_at, offsets=9, records=9
        ),
        unfinished=UnfinishedWork(typed=TypedState(quarantined=4_321), last_check="blocked"),
        records=98_765,
        forecast=Forecast.LATER,
        caught_up_at=datetime(2026, 3, 2, 13, 14, 15, tzinfo=UTC),
    )
    found = StatusPages(tmp_path, home_lake(tmp_path), status)
    yield found
    found.may_end.set()
    found.context.home.statuses.close()


def test_a_row_of_the_overview_has_the_values_of_the_status(pages: StatusPages) -> None:
    rows = pages.rows()
    kind, cells = rows["events"]
    del cells["last 24 h"]
    assert kind == ""
    assert cells == {
        "pipeline": "events events",
        "state": "quarantined 3 h ago",
        "lag": "1,234,567",
        "behind": "7 min",
        "forecast": "2026-03-02 13:14:15",
        "runway": "4 d",
        "last landed": "plan 3 , 2 d ago",
        "quarantine": "4,321",
        "publication": "blocked",
    }
    _, idle = rows["idle"]
    assert (idle["lag"], idle["forecast"]) == ("0", "never at this rate")
    unknown = ("behind", "runway", "last landed", "quarantine", "publication")
    assert {idle[name] for name in unknown} == {"-"}


def test_the_page_of_a_pipeline_has_the_values_of_the_status(pages: StatusPages) -> None:
    kind, figures, text = pages.figures("events")
    assert kind == "figures"
    assert figures == {
        "lag": "1,234,567",
        "behind": "7 min",
        "forecast": "2026-03-02 13:14:15",
        "retention runway": "4 d",
        "records landed": "98,765",
        "last landed": "2 d ago",
        "quarantine": "4,321",
    }
    assert "the newest values that could be read" not in text
    _, idle, _ = pages.figures("idle")
    assert (idle["forecast"], "quarantine" in idle) == ("never at this rate", False)


def test_a_status_that_cannot_be_read_again_is_grey_with_its_time_and_the_error(
    pages: StatusPages,
) -> None:
    _, before = pages.rows()["events"]
    pages.found = KafkaUnavailable(operation="metadata", reason="slow")
    pages.now += 2 * OLD_S
    rows = pages.rows()
    state = "quarantined KafkaUnavailable 3 h ago"
    assert rows["events"] == ("stale", {**before, "state": state})
    assert rows["idle"][0] == ""
    kind, figures, text = pages.figures("events")
    assert (kind, figures["lag"]) == ("figures stale", "1,234,567")
    assert f"As of {pages.checked_at:%Y-%m-%d %H:%M:%S} UTC, the newest values that could" in text


def test_a_stale_status_is_grey_beside_current_coverage(pages: StatusPages) -> None:
    """Grey values: the state, and the lag, the age and the runway of each partition."""

    def stale() -> tuple[str, list[list[str]]]:
        """Return the class of the state, and the titles of the stale cells of each partition."""
        html = _html(pipelines.pipeline(pages.context, "events", None, None, None, None))
        (state,) = re.findall(r'<h1>events <span class="pill (.*?)">quarantined', html)
        table = html.partition("Offsets by state")[2].partition("</table>")[0]
        assert '<div class="scroll"' in table
        head, *rows = re.findall(r"<tr>.*?</tr>", table, re.DOTALL)
        titles = re.findall(r"<th.*?>(.*?)</th>", head)
        kinds = [re.findall(r'<td class="(.*?)"', row) for row in rows]
        found = [dict(zip(titles, row, strict=True)) for row in kinds]
        return state, [[title for title, kind in row.items() if "stale" in kind] for row in found]

    assert stale() == ("poor", [[], []])
    pages.found = KafkaUnavailable(operation="metadata", reason="slow")
    pages.now += FRESH_S + 1
    assert stale() == ("stale poor", 2 * [["lag", "behind", "runway"]])


# -- the page of a failed run ----------------------------------------------------------------------

NO_ERROR = "No error would refuse a run now."


def test_a_failed_run_waits_for_the_current_status(pages: StatusPages) -> None:
    """A status that is only slightly old is read again, too."""
    kind, text = pages.state_now()
    assert (kind, NO_ERROR in text) == ("poor", True)
    pages.found = replace(a_status(0), problem=Unforeseen(kind="E"))
    pages.now += FRESH_S + 1
    kind, text = pages.state_now()
    assert (kind, NO_ERROR in text) == ("bad", False)


def test_a_failed_run_shows_an_old_status_with_its_age_and_without_a_conclusion(
    pages: StatusPages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both while the next read hangs and after it failed."""
    pages.state_now()
    monkeypatch.setattr("tidemark.console.runs.STATUS_WAIT_S", 0)
    pages.may_end.clear()
    pages.now += KEPT_S - 1
    assert pages.state_now() == ("stale poor", "events quarantined 3 h ago, reading")
    monkeypatch.setattr("tidemark.console.runs.STATUS_WAIT_S", 60)
    pages.found = KafkaUnavailable(operation="metadata", reason="slow")
    pages.may_end.set()
    kind, text = pages.state_now()
    assert kind == "stale poor"
    assert text.startswith("events quarantined 3 h ago KafkaUnavailable Kafka is unavailable")
    assert NO_ERROR not in text
