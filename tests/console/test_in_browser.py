"""The pages in a real browser: rules of accessibility, the keyboard, and the refresh of a page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.conftest import TopicFactory
from tests.support.accessibility import violations
from tests.support.chromium import Tab, chromium_tab
from tests.support.commands import Command
from tests.support.consoles import Admits, SomeRights, app_of, served
from tests.support.file_lake import home_lake
from tests.support.kafka_file_lake import KafkaFileLake
from tests.support.memory_consoles import memory_app, memory_web
from tests.support.plans import make_spec
from tests.support.services import NOW
from tests.support.topics import delete_records
from tests.support.transactions import Record, produce_aborted, produce_values
from tests.support.typed_lake import TypedLake
from tidemark.app.app import App
from tidemark.bronze.backfill.selection import select
from tidemark.console.server import build_app
from tidemark.core.errors import ExitCode
from tidemark.core.plan import PlanKind
from tidemark.local.broker import BrokerStatus
from tidemark.quality.check_results import (
    CheckResult,
    Example,
    QualityReport,
    Severity,
)

pytestmark = [pytest.mark.broker, pytest.mark.e2e]

_SPEC = """\
name: events
topic: {topic}
target: bronze/events
schedule: "@daily"
start: earliest
description: Water levels
decode: {{publish: always, value: {{format: string}}}}
"""
_REQUESTER = "airflow:tidemark_backfill:manual__2026-03-01T12:00:00.000000+00:00_Xq3rT9Zb"
_FAILED = CheckResult(
    check="expect_column_values_to_be_between",
    column="level",
    severity=Severity.CRITICAL,
    passed=False,
    observed="1 of 3 unexpected",
    expectation="every level is above 0",
    value=33.3,
    unexpected_count=1,
    examples=(Example(0, 1, "-1"),),
)


@pytest.fixture
def app(broker: BrokerStatus, admin: AdminClient, topic: TopicFactory, tmp_path: Path) -> App:
    """Pipeline `events` with plans, failed checks, a quarantine, a backfill, a loss and a lag."""
    name = topic(partitions=2)
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "events.yaml").write_text(_SPEC.format(topic=name))
    lake = KafkaFileLake(
        tmp_path / "lakehouse", spec=make_spec(topic=name), bootstrap=broker.bootstrap
    )
    produce_aborted(broker.bootstrap, name, [Record(value=b"aborted")])
    for _ in range(3):
        lake.run(3)
    typed = TypedLake(lake.root, broken={3})
    typed.bronze = lake
    typed.run()
    app = app_of(tmp_path, broker.bootstrap)()
    _check(app)
    backfills = app.pipeline("events").backfills
    preview = backfills.preview(select(offsets=["0:2-6"]), 2, readable_only=False, replaces=True)
    backfills.request(preview, _REQUESTER, approved=False, reason="new decoder")
    produce_values(broker.bootstrap, name, 6)
    delete_records(admin, name, before=13)
    return app


def _check(app: App) -> None:
    """Record a passed and a failed check."""
    pipeline = app.pipeline("events")
    for plan, passed in ((1, True), (2, False)):
        report = QualityReport(
            pipeline="events",
            plan_sequence=plan,
            table_version=plan,
            kind=PlanKind.LIVE,
            run_at=NOW,
            results=(_FAILED,) if not passed else (),
            data_docs=None,
        )
        pipeline.check_results.append(report)


@pytest.fixture
def address(app: App, broker: BrokerStatus) -> Iterator[str]:
    """The address of a console that shows the button of Airflow."""
    load = app_of(app.layout.home, broker.bootstrap)
    with served(build_app(load, Admits(SomeRights()), airflow="")) as address:
        yield address


@pytest.fixture
def tab(tmp_path: Path) -> Iterator[Tab]:
    """A browser."""
    (tmp_path / "browser").mkdir()
    with chromium_tab(tmp_path / "browser") as tab:
        yield tab


def test_every_page_follows_the_rules_of_accessibility(
    app: App, address: str, tab: Tab, offline: Command
) -> None:
    """In both colour schemes, and on a phone."""
    topic = app.spec("events").topic
    report = app.layout.home / "report.html"
    period = ("--since", f"{NOW:%Y-%m-%d}")
    assert offline("report", "events", *period, "--output", str(report)).code == ExitCode.OK
    pipeline = f"{address}/pipelines/events"
    pages = [
        f"{address}/",
        pipeline,
        f"{pipeline}?partition=0&start=0&end=12",
        f"{pipeline}/plans",
        f"{pipeline}/plans/2",
        f"{pipeline}/records?partition=0&offset=0",
        f"{pipeline}/quality",
        f"{pipeline}/quality/report",
        f"{pipeline}/quarantine",
        f"{pipeline}/backfill?offsets=0:2-6&replace=true&reason=new+decoder",
        f"{pipeline}/backfills",
        f"{address}/cluster",
        f"{address}/cluster/kafka_default/topics/{topic}",
        f"{address}/dags/tidemark_events/runs/manual",
        f"{address}/nothing",
        f"{pipeline}/plans/99",
        report.as_uri(),
    ]
    found: list[str] = []
    for page in pages:
        tab.open(page)
        for width, dark in ((1280, False), (1280, True), (400, False)):
            tab.look(width=width, dark=dark)
            found += [f"{page} {width=} {dark=} {rule}" for rule in violations(tab)]
    assert not found, "\n".join(found)


def test_the_keyboard_reaches_a_zoom_link_and_a_refresh_keeps_the_place(
    address: str, tab: Tab
) -> None:
    """A refresh replaces the content; focus, closed details and both scroll positions stay."""
    tab.hurry(20)
    tab.open(f"{address}/pipelines/events", width=400)
    # The details are open, because there is a lag.
    tab.value("document.querySelector('summary').click()")
    tab.value("document.querySelector('.bars').scrollIntoView()")
    tab.value("document.querySelectorAll('.scroll')[1].scrollLeft = 30")
    tab.press_until("Tab", 9, "document.activeElement.closest('svg.coverage')")
    link = "document.activeElement.getAttribute('aria-label')"
    shown = "getComputedStyle(document.activeElement.querySelector('rect')).stroke"
    place = (
        "JSON.stringify([scrollY, document.querySelector('details').open, "
        f"document.querySelectorAll('.scroll')[1].scrollLeft, {link}])"
    )
    assert tab.value(shown) != "none"
    before = tab.value(place)
    assert json.loads(before)[0] > 0
    assert json.loads(before)[1:3] == [False, 30]
    tab.value("document.getElementById('content').isOld = true")
    tab.wait_for("!document.getElementById('content').isOld")
    assert tab.value(place) == before
    tab.press("Enter", 13)
    tab.wait_for("location.search.includes('start=')")
    assert tab.problems == []


def test_a_page_whose_refresh_is_not_answered_shows_the_time_of_its_values(
    tmp_path: Path, tab: Tab
) -> None:
    (tmp_path / "home").mkdir()
    lake = home_lake(tmp_path / "home")
    with served(memory_web(memory_app(tmp_path / "home", lake))) as address:
        tab.hurry(20)
        tab.open(f"{address}/pipelines/events")
        assert 5_000 < tab.value("htmx.config.timeout") <= 60_000
        # No answer takes as little as a millisecond.
        tab.value("htmx.config.timeout = 1")
        tab.wait_for("document.querySelector('#content.stale #not-refreshed') !== null")
