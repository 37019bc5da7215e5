"""Metrics of pipelines: their text, their page, and the files that use them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml

from tests.conftest import PROJECT
from tests.support.plans import MemoryPipeline, make_spec
from tests.support.prometheus import RULES, promtool
from tests.support.services import NOW
from tests.test_docs import anchors
from tidemark.kafka.errors import TopicMissing
from tidemark.ops.report.metrics import METRICS, openmetrics
from tidemark.ops.report.status import status_row
from tidemark.spec.model import AlarmRules

NAMES = {"tidemark_pipelines", "tidemark_invalid_specs", *(metric.name for metric in METRICS)}
MONITORING = PROJECT / "include" / "monitoring"


def make_row(name: str = "events", **changes: Any) -> dict[str, Any]:
    """Return the status of a pipeline with five landed records, two unread ones and an alarm."""
    pipeline = MemoryPipeline(spec=make_spec(alarms=AlarmRules(lag_records=1)))
    pipeline.produce(0, 5)
    pipeline.run("first")
    pipeline.produce(0, 2)
    return {**pipeline.status().as_row(), "pipeline": name, **changes}


def samples(text: str) -> dict[str, float]:
    """Return the values of a text by name and labels."""
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def names_in(text: str) -> set[str]:
    """Return the names of metrics in a text."""
    return set(re.findall(r"\btidemark_[a-z_]+\b", text))


def test_each_value_of_a_status_is_a_sample_of_its_pipeline() -> None:
    found = samples(openmetrics([make_row()], NOW + timedelta(minutes=3)))
    expected = {
        "tidemark_pipelines": 1,
        'tidemark_pipeline_info{pipeline="events",topic="events"}': 1,
        'tidemark_status_age_seconds{pipeline="events"}': 180,
        'tidemark_lag_offsets{pipeline="events"}': 2,
        'tidemark_landed_records{pipeline="events"}': 5,
        'tidemark_missing_rows{pipeline="events"}': 0,
        'tidemark_last_landed_records{pipeline="events"}': 5,
        'tidemark_last_landed_bytes{pipeline="events"}': 5,
        'tidemark_last_landed_timestamp_seconds{pipeline="events"}': NOW.timestamp(),
        'tidemark_forecast{pipeline="events",forecast="with the next run"}': 1,
        'tidemark_forecast{pipeline="events",forecast="caught up"}': 0,
        'tidemark_plans{pipeline="events",status="blocked"}': 0,
        'tidemark_alarms{pipeline="events",error="LagTooLarge"}': 1,
    }
    assert {name: found.get(name) for name in expected} == expected
    # Without a typed table and without a problem.
    assert not any(name.startswith("tidemark_quarantined_records") for name in found)
    assert not any(name.startswith("tidemark_problem") for name in found)


def test_a_failed_status_has_only_its_age_and_its_error() -> None:
    row = status_row("gone", TopicMissing(topic="t"), NOW)
    assert samples(openmetrics([row], NOW)) == {
        "tidemark_pipelines": 1,
        'tidemark_status_age_seconds{pipeline="gone"}': 0,
        'tidemark_alarms{pipeline="gone",error="TopicMissing"}': 1,
        'tidemark_problem{pipeline="gone",error="TopicMissing"}': 1,
    }


def test_values_that_cannot_be_right_are_absent() -> None:
    """The clocks of two machines differ, or a rate has no finite value."""
    usual = samples(openmetrics([make_row(last_landed_seconds=0.0)], NOW))
    assert usual['tidemark_last_landed_duration_seconds{pipeline="events"}'] == 0
    assert usual['tidemark_status_age_seconds{pipeline="events"}'] == 0
    wrong = make_row(
        last_landed_seconds=-30.0,
        new_offsets_per_second=float("inf"),
        runway_seconds=float("nan"),
    )
    found = samples(openmetrics([wrong], NOW))
    assert {*usual} - {*found} == {
        f'tidemark_{name}{{pipeline="events"}}'
        for name in (
            "arriving_offsets_per_second",
            "last_landed_duration_seconds",
        )
    }
    assert {*found} <= {*usual}


def test_a_status_of_the_future_has_no_value() -> None:
    """A recorder with a fast clock may have ended, and its lag would seem current for days."""
    soon, late = (
        make_row(checked_at=NOW + ahead, lag_checked_at=NOW + ahead)
        for ahead in (timedelta(seconds=59), timedelta(minutes=2))
    )
    assert samples(openmetrics([soon], NOW)) == samples(openmetrics([make_row()], NOW))
    assert samples(openmetrics([late], NOW)) == {
        "tidemark_pipelines": 1,
        f'tidemark_pipeline_info{{pipeline="events",topic="{late["topic"]}"}}': 1,
    }


def test_values_of_an_earlier_check_of_kafka_are_absent() -> None:
    """While Kafka is away, the row keeps the last known lag, and other values are current."""
    row = make_row()
    usual = samples(openmetrics([row], NOW))
    kept = {**row, "lag_checked_at": row["checked_at"] - timedelta(hours=1)}
    missing = {name.partition("{")[0] for name in {*usual} - {*samples(openmetrics([kept], NOW))}}
    assert missing == {
        f"tidemark_{name}"
        for name in (
            *("lag_offsets", "lag_seconds", "held_back_offsets"),
            *("runway_seconds", "arriving_offsets_per_second"),
        )
        if any(each.startswith(f"tidemark_{name}{{") for each in usual)
    }
    assert "tidemark_lag_offsets" in missing


def test_repeated_alarms_of_a_pipeline_are_one_sample() -> None:
    """Prometheus refuses a scrape in which a sample occurs twice."""
    found = samples(openmetrics([make_row(alarms="PlanStuck, PlanStuck")], NOW))
    assert found['tidemark_alarms{pipeline="events",error="PlanStuck"}'] == 2


def test_label_values_are_escaped() -> None:
    text = openmetrics([make_row(topic='a"b\\c\nd')], NOW)
    assert 'topic="a\\"b\\\\c\\nd"' in text
    promtool("check", "metrics", standard_input=text)


def test_promtool_accepts_the_text_with_and_without_rows() -> None:
    full = make_row() | {
        **dict.fromkeys(("quarantined", "undecoded", "runway_seconds", "lag_seconds"), 3),
        **dict.fromkeys(("caught_up_at", "open_since"), NOW),
        "problem": "LostRange",
    }
    text = openmetrics([full, {**full, "pipeline": "other"}], NOW, invalid_specs=0)
    assert {name.partition("{")[0] for name in samples(text)} >= NAMES
    for each in (text, openmetrics([], NOW)):
        assert each.endswith("\n# EOF\n")
        promtool("check", "metrics", standard_input=each)


def test_the_page_lists_every_metric_with_its_labels_and_text() -> None:
    page = (PROJECT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(tidemark_\w+)` \| (.*) \| (.*) \|$", page, flags=re.MULTILINE)
    expected = [
        (metric.name, ", ".join(f"`{label}`" for label in metric.labels), metric.text)
        for metric in METRICS
    ]
    assert listed == expected
    assert names_in(page) - {"tidemark_status"} == NAMES


# -- alarm rules -----------------------------------------------------------------------------------


def rules() -> list[dict[str, Any]]:
    """Return the alarm rules."""
    (group,) = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def test_alarm_rules_fire_and_stay_silent_as_their_unit_tests_expect() -> None:
    tests = Path(__file__).with_name("prometheus-alarms.test.yaml")
    promtool("check", "rules", str(RULES))
    promtool("test", "rules", str(tests))
    fired: dict[str, set[bool]] = {}
    for test in yaml.safe_load(tests.read_text(encoding="utf-8"))["tests"]:
        for case in test["alert_rule_test"]:
            fired.setdefault(case["alertname"], set()).add("exp_alerts" in case)
    assert fired == {rule["alert"]: {True, False} for rule in rules()}


def test_alarm_rules_use_existing_metrics_and_link_to_sections_of_the_runbook() -> None:
    sections = anchors(PROJECT / "docs" / "runbook.md")
    for rule in rules():
        assert names_in(rule["expr"]) <= NAMES
        assert names_in(rule["expr"]) or "up{" in rule["expr"]
        link = rule["annotations"]["runbook"]
        page, _, section = link.partition("#")
        assert page == "docs/runbook.md"
        assert section in sections | {"{{ $labels.error | toLower }}"}


def test_the_page_lists_every_alarm_rule() -> None:
    page = (PROJECT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`(Tidemark\w+)`", page)) == {rule["alert"] for rule in rules()}


# -- dashboard -------------------------------------------------------------------------------------


def dashboard_expressions() -> Iterator[str]:
    """Yield the expressions of the dashboard's panels."""
    dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text(encoding="utf-8"))
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield target["expr"]


def test_the_dashboard_shows_every_metric_and_no_other() -> None:
    assert {name for each in dashboard_expressions() for name in names_in(each)} == NAMES


def test_panels_of_the_dashboard_do_not_overlap() -> None:
    dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text(encoding="utf-8"))
    cells: list[tuple[int, int]] = []
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells += [(x, y) for x in range(at["x"], at["x"] + at["w"])
                  for y in range(at["y"], at["y"] + at["h"])]  # fmt: skip
    assert len(cells) == len(set(cells))
