"""The owner's page: its texts, and the points of its charts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.support.services import NOW
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.plan import PlanKind
from tidemark.quality.check_results import CheckedPlan, CheckResult, Example, Severity
from tidemark.report.certificate import Certificate, LandedPlan, PartitionAccount
from tidemark.report.owner_report import PipelineReport
from tidemark.report.page import render

_ACCOUNT = PartitionAccount(
    partition=3,
    start=100,
    end=2100,
    records=1990,
    gaps=10,
    unproven_gaps=0,
    landed_outside_period=0,
    lost=0,
    missing=SpanSet(),
    undone=0,
)
_CERTIFICATE = Certificate(
    pipeline="events",
    topic="events",
    topic_id="id-1",
    since=NOW,
    until=NOW,
    partitions=(_ACCOUNT,),
    plans=(),
    open_plans=(),
    plans_of_other_incarnations=0,
)
_REPORT = PipelineReport(
    created_at=NOW,
    description="",
    certificate=_CERTIFICATE,
    checked=(),
    plans_by_status={},
    quarantined=None,
)


def text_of(page: str) -> str:
    """Return the text of a page, with single spaces."""
    body = page.partition("<body>")[2]
    return " ".join(re.sub(r"<[^>]+>", " ", body).split())


def result(plan: int, value: float | None, **changes: Any) -> CheckedPlan:
    """Return the result of a rule in a plan."""
    found = CheckResult(
        check="null_key_percent",
        column=None,
        severity=Severity.CRITICAL,
        passed=True,
        observed=value,
        expectation="at most 15",
        value=value,
    )
    return CheckedPlan(sequence=plan, results=[replace(found, **changes)])


def trends(checked: Sequence[CheckedPlan]) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """Return the label, the points and the circles of every chart on the page."""
    page = render(replace(_REPORT, checked=checked))
    return [
        (label, points, re.findall(r'<circle cx="([^"]+)" cy="([^"]+)"', circles))
        for label, points, circles in re.findall(
            r'aria-label="([^"]+)"><polyline points="([^"]+)"/>(.*?)</svg>', page
        )
    ]


@pytest.mark.parametrize(
    ("certificate", "account", "words"),
    [
        ({}, {}, "Complete. Every offset"),
        ({}, {"lost": 1234}, "1,234 offset(s) are accepted losses"),
        ({}, {"unproven_gaps": 7}, "7 of the gaps are unproven"),
        ({"open_plans": (4, 5)}, {}, "Open plans: 4, 5. Their records are not counted yet."),
        (
            {"plans_of_other_incarnations": 2},
            {},
            "Not complete: the topic was recreated in this period",
        ),
        ({"plans_of_other_incarnations": 2}, {}, "2 plan(s) of the period read an earlier topic"),
        (
            {},
            {"missing": SpanSet.of(Span(n, n + 1) for n in range(200, 214, 2))},
            "Not complete: 7 offset(s) between the first and the last of the period are not",
        ),
        (
            {},
            {"missing": SpanSet.of(Span(n, n + 1) for n in range(200, 214, 2))},
            "200 to 201 202 to 203 204 to 205 206 to 207 208 to 209 and 2 more",
        ),
        (
            {},
            {"landed_outside_period": 5, "lost": 6},
            "missing 3 100 2100 1,990 10 5 6 none Gaps are",
        ),
        ({}, {"lost": 6}, "1,990 records 0 plans 10 gaps 6 accepted losses 0"),
        ({"partitions": ()}, {}, "Nothing landed in this period."),
        (
            {"partitions": (), "plans_of_other_incarnations": 2},
            {},
            "Not complete: the topic was recreated after this period",
        ),
    ],
)
def test_the_page_states_losses_gaps_open_plans_and_earlier_topics(
    certificate: dict[str, Any], account: dict[str, Any], words: str
) -> None:
    """A page without them omits these sentences."""
    partitions = (replace(_ACCOUNT, **account),)
    changes: dict[str, Any] = {"partitions": partitions, **certificate}
    changed = replace(_CERTIFICATE, **changes)
    assert words in text_of(render(replace(_REPORT, certificate=changed)))
    if certificate or account:
        assert words not in text_of(render(_REPORT))


@pytest.mark.parametrize("name", ["not checked", "published", "blocked"])
def test_the_page_lists_the_newest_ten_plans_of_each_status(name: str) -> None:
    """Unchecked plans have no color."""
    page = render(replace(_REPORT, plans_by_status={name: range(1, 13)}))
    assert f"{name} 12 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 (the newest ten)" in text_of(page)
    css_class = {"not checked": "", "published": "passed", "blocked": "failed"}[name]
    assert f'<td class="outcome {css_class}">{name}</td>' in page


def test_a_chart_rises_with_its_figure() -> None:
    """The oldest plan is on the left, and the highest figure at y = 0."""
    checked = [result(3, 30.0), result(1, 10.0), result(2, 20.0)]
    assert trends(checked) == [("null_key_percent: 10 to 30", "0.0,60.0 120.0,30.0 240.0,0.0", [])]
    falls = [result(1, 30.0), result(2, 15.0), result(3, 10.0)]
    ((_, points, _),) = trends(falls)
    assert points == "0.0,0.0 120.0,45.0 240.0,60.0"
    assert "10 to 30, newest 10" in text_of(render(replace(_REPORT, checked=falls)))


def test_a_failed_plan_has_a_circle_at_its_point() -> None:
    """A plan without a figure may come before."""
    checked = [
        result(1, 10.0),
        result(2, None),
        result(3, 20.0, passed=False),
        result(4, 30.0),
    ]
    assert trends(checked) == [
        ("null_key_percent: 10 to 30", "0.0,60.0 120.0,30.0 240.0,0.0", [("120.0", "30.0")])
    ]


def test_a_constant_figure_is_a_line_in_the_middle() -> None:
    """No division by zero occurs."""
    checked = [result(1, 0.5), result(2, 0.5)]
    assert trends(checked) == [("null_key_percent: 0.5 to 0.5", "0.0,30.0 240.0,30.0", [])]


def test_a_built_in_check_with_several_limits_is_one_rule() -> None:
    """It shows the newest limit. The expectation distinguishes rules of a suite."""
    checked = [result(1, 10.0), result(2, 20.0, expectation="at most 25"), result(3, 30.0)]
    (rule,) = replace(_REPORT, checked=checked[:2]).rules
    assert (rule.plans, rule.values) == (2, ((1, 10.0), (2, 20.0)))
    assert rule.expectation == "at most 25"
    assert [label for label, _, _ in trends(checked)] == ["null_key_percent: 10 to 30"]
    own = [result(n, None, check="prices", expectation=f"at most {n % 2}") for n in (1, 2, 3)]
    rules = [(rule.expectation, rule.plans) for rule in replace(_REPORT, checked=own).rules]
    assert rules == [("at most 1", 2), ("at most 0", 1)]


@pytest.mark.parametrize("values", [[], [10.0], [10.0, None]])
def test_a_rule_with_fewer_than_two_figures_has_no_chart(values: list[float | None]) -> None:
    """A page without charts has no section for them."""
    checked = [result(number, value) for number, value in enumerate(values, 1)]
    assert trends(checked) == []
    assert "Trends" not in text_of(render(replace(_REPORT, checked=checked)))


def test_landed_records_have_one_chart() -> None:
    """The chart comes from the certificate, not from the check `records`."""
    plans = tuple(
        LandedPlan(plan=number, kind=PlanKind.LIVE, landed_at=NOW, records=records, gaps=0)
        for number, records in ((1, 2000), (2, 1000))
    )
    checked = [result(1, 2000.0, check="records"), result(2, 1000.0, check="records")]
    certificate = replace(_CERTIFICATE, plans=plans)
    page = render(replace(_REPORT, certificate=certificate, checked=checked))
    assert re.findall(r'aria-label="([^"]+)"', page) == ["landed records: 1,000 to 2,000"]


def test_examples_are_those_of_the_newest_failed_plan() -> None:
    """Failed rules come first, each with its newest ten failed plans."""
    failed = [
        result(number, None, passed=False, check="prices", examples=(Example(0, number, "-1"),))
        for number in range(1, 13)
    ]
    checked = [result(1, 10.0), *failed, result(13, None, check="prices")]
    page = text_of(render(replace(_REPORT, checked=checked)))
    assert page.index("prices") < page.index("null_key_percent")
    assert "failed in plan 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 (the newest ten)" in page
    assert "12 of 13" in page
    assert "value 0 12 -1 Records of plan 12. At most ten examples are stored" in page


def test_a_drift_check_without_history_is_grey() -> None:
    """It passes without a figure, and must not look like a passed check."""
    checked = [
        result(1, None, check="records_drift", observed="not enough history"),
    ]
    page = render(replace(_REPORT, checked=checked))
    assert '<td class="number quiet">not enough history</td>' in page
    assert "0 of 1" not in text_of(page)
