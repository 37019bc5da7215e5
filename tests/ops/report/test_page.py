"""The owner's report: its texts, and the points of its charts."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from math import inf
from pathlib import Path
from typing import Any

import pytest

from tests.support.page_text import text_of
from tests.support.services import NOW
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.plan import PlanKind
from tidemark.ops.report.certificate import Certificate, LandedPlan, PartitionAccount
from tidemark.ops.report.owner_report import PipelineReport
from tidemark.ops.report.page import render, write_page
from tidemark.ops.report.removed_rows import Removal, RemovedRows
from tidemark.quality.check_results import CheckedPlan, CheckResult, Example, Severity
from tidemark.silver.typed.quarantine_record import QuarantinedRecord
from tidemark.spec.decode import QuarantineReason

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
    missing_rows=0,
    checked=(),
    plans_by_status={},
    quarantined=None,
)


QUARANTINED = QuarantinedRecord(
    topic_id="id-1",
    partition=3,
    offset=100,
    plan=1,
    reason=QuarantineReason.MALFORMED,
    part=None,
    detail=None,
    schema_id=None,
)


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


def landed(*plans: int, records: int = 3) -> Certificate:
    """Return a certificate of plans that landed one day after the other."""
    return replace(
        _CERTIFICATE,
        plans=tuple(
            LandedPlan(
                plan=plan,
                kind=PlanKind.LIVE,
                landed_at=NOW + timedelta(days=plan),
                records=records,
                gaps=0,
            )
            for plan in plans
        ),
    )


def page_of(checked: Sequence[CheckedPlan], **changes: Any) -> str:
    """Return the page of checked plans of equal size, all of which landed."""
    certificate = landed(*(each.sequence for each in checked))
    return render(replace(_REPORT, checked=checked, certificate=certificate, **changes))


def trends(checked: Sequence[CheckedPlan]) -> list[tuple[str, str, list[str]]]:
    """Return the label, the points and the red points of every chart on the page."""
    return [
        (label, points, re.findall(r'class="point" d="M([^"]+)h0"', rest))
        for label, points, rest in re.findall(
            r'<svg [^>]*aria-label="([^"]+)">.*?<polyline points="([^"]+)"/>(.*?)</svg>',
            page_of(checked),
        )
    ]


@pytest.mark.parametrize(
    ("certificate", "account", "words"),
    [
        ({}, {}, "Complete Every offset"),
        ({}, {"lost": 1234}, "Accepted losses: Kafka deleted the records at 1,234 offsets"),
        (
            {},
            {"lost": 1, "missing": SpanSet((Span(200, 210),))},
            "Accepted losses: Kafka deleted the records at 1 offset before",
        ),
        ({}, {"unproven_gaps": 7}, "7 of the gaps are unproven"),
        (
            {},
            {"unproven_gaps": 7, "missing": SpanSet((Span(200, 210),))},
            "7 of the gaps are unproven",
        ),
        ({"open_plans": (4, 5)}, {}, "Open plans: 4, 5. Their records are not counted yet."),
        (
            {"plans_of_other_incarnations": 2},
            {},
            "Not complete: the topic was recreated in this period",
        ),
        (
            {"plans_of_other_incarnations": 2},
            {},
            "Not counted and not certified: 2 plans of the period",
        ),
        (
            {},
            {"missing": SpanSet.of(Span(n, n + 1) for n in range(200, 214, 2))},
            "Not complete: 7 offsets between the first and the last of the period",
        ),
        (
            {},
            {"missing": SpanSet.of(Span(n, n + 1) for n in range(200, 214, 2))},
            "200 to 201 202 to 203 204 to 205 206 to 207 208 to 209 and 2 more",
        ),
        (
            {},
            {"landed_outside_period": 5, "lost": 6},
            "not in the table 3 100 2,100 1,990 10 5 6 none Gaps are",
        ),
        ({}, {"lost": 6}, "records 1,990 plans 0 gaps 10 accepted losses 6 not in the table 0"),
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
    css_class = {"not checked": "quiet", "published": "passed", "blocked": "failed"}[name]
    assert f'<td class="outcome {css_class}">{name}</td>' in page


def test_a_chart_rises_with_its_figure_over_time() -> None:
    """Its vertical axis begins at 0 and ends at a round number."""
    checked = [result(5, 30.0), result(1, 10.0), result(2, 20.0)]
    ((label, points, failed),) = trends(checked)
    assert label == "null_key_percent: 10 % to 30 %, newest 30 %"
    assert points == "0.0,80.0 250.0,60.0 1000.0,40.0"
    assert failed == []
    text = text_of(page_of(checked))
    assert "newest 30 % 50 % 25 % 0 % 2026-03-02 2026-03-04 2026-03-06" in text
    ((_, points, _),) = trends([result(1, -4.0), result(2, 5.0)])
    assert points == "0.0,90.0 1000.0,0.0"


def test_plans_that_landed_at_the_same_time_are_side_by_side() -> None:
    checked = [result(number, float(number)) for number in (1, 2, 3)]
    plans = tuple(replace(each, landed_at=NOW) for each in landed(1, 2, 3).plans)
    certificate = replace(_CERTIFICATE, plans=plans)
    page = render(replace(_REPORT, checked=checked, certificate=certificate))
    assert '<polyline points="0.0,80.0 500.0,60.0 1000.0,40.0"/>' in page
    assert "0 2026-03-01 12:00 2026-03-01 12:00" in text_of(page)


def test_a_failed_plan_has_a_red_point() -> None:
    """A plan without a figure, or without a finite one, may come before."""
    checked = [
        result(1, 10.0),
        result(2, None),
        result(3, 20.0, passed=False),
        result(4, inf),
        result(5, 30.0),
    ]
    ((_, points, failed),) = trends(checked)
    assert points == "0.0,80.0 500.0,60.0 1000.0,40.0"
    assert failed == ["500.0 60.0"]


def test_a_constant_figure_is_a_sentence_and_not_a_chart() -> None:
    checked = [result(1, 0.5), result(2, 0.5)]
    assert trends(checked) == []
    text = text_of(page_of(checked))
    assert "The same in every plan: landed records 3, null_key_percent 0.5 %." in text


def test_figures_are_rounded_and_have_units() -> None:
    share = [result(1, 1.0), result(2, 100 / 3)]
    assert "null_key_percent passed" not in text_of(page_of(share))
    assert "null_key_percent 33.3 %" in text_of(page_of(share))
    age = [result(1, 5400.25, check="seconds_behind", expectation="No limit")]
    assert "seconds_behind 1 h 30 min" in text_of(page_of(age))
    suite = [result(1, 1234.56789, check="expect_column_mean")]
    assert "expect_column_mean 1,235" in text_of(page_of(suite))


def test_a_chart_for_each_of_many_figures_is_folded() -> None:
    """The first charts are those of failed rules."""
    names = [f"rule_{number}" for number in range(6)]
    checked = [
        CheckedPlan(
            sequence=plan,
            results=[
                result(plan, float(plan), check=name, passed=name != "rule_5").results[0]
                for name in names
            ],
        )
        for plan in (1, 2)
    ]
    page = page_of(checked)
    assert next(label.partition(":")[0] for label, _, _ in trends(checked)) == "rule_5"
    assert page.index("<summary>3 more figures") > page.index('aria-label="rule_1')
    assert page.index("<summary>3 more figures") < page.index('aria-label="rule_2')


def test_a_built_in_check_with_several_limits_is_one_rule() -> None:
    """It shows the newest limit. The expectation distinguishes rules of a suite."""
    checked = [result(1, 10.0), result(2, 20.0, expectation="at most 25"), result(3, 30.0)]
    (rule,) = replace(_REPORT, checked=checked[:2]).rules
    assert (rule.plans, rule.values) == (2, ((1, 10.0), (2, 20.0)))
    assert rule.expectation == "at most 25"
    assert len(trends(checked)) == 1
    own = [result(n, None, check="prices", expectation=f"at most {n % 2}") for n in (1, 2, 3)]
    rules = [(rule.expectation, rule.plans) for rule in replace(_REPORT, checked=own).rules]
    assert rules == [("at most 1", 2), ("at most 0", 1)]


@pytest.mark.parametrize("values", [[], [10.0], [10.0, None]])
def test_a_rule_with_fewer_than_two_figures_has_no_chart(values: list[float | None]) -> None:
    """A page without charts has no section for them."""
    checked = [result(number, value) for number, value in enumerate(values, 1)]
    assert trends(checked) == []
    if len(checked) < 2:
        assert "Trends" not in text_of(page_of(checked))


def test_landed_records_have_one_chart() -> None:
    """The chart comes from the certificate, not from the check `records`."""
    plans = (*landed(1, records=2000).plans, *landed(2, records=1000).plans)
    checked = [result(1, 2000.0, check="records"), result(2, 1000.0, check="records")]
    certificate = replace(_CERTIFICATE, plans=plans)
    page = render(replace(_REPORT, certificate=certificate, checked=checked))
    labels = re.findall(r'aria-label="([^"]+)"', page)
    assert labels == ["landed records: 1,000 to 2,000, newest 1,000"]


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


@pytest.mark.parametrize(
    ("value", "changes", "expected"),
    [
        (1.0, {}, ("passed", "passed")),
        (1.0, {"passed": False}, ("failed", "failed")),
        (1.0, {"passed": False, "severity": Severity.WARNING}, ("warned", "failed")),
        (None, {}, ("quiet", "not checked")),
        (1.0, {"check": "records", "expectation": "No limit"}, ("quiet", "no limit")),
        (None, {"check": "largest_partition_percent"}, ("quiet", "not checked")),
        (1.0, {"passed": False, "severity": Severity.INFO}, ("quiet", "failed")),
        (None, {"check": "prices"}, ("passed", "passed")),
        (None, {"check": "prices", "unexpected_count": 0}, ("quiet", "not checked")),
        (
            0.0,
            {"check": "prices", "unexpected_count": 0, "unexpected_percent": 0.0},
            ("passed", "passed"),
        ),
    ],
)
def test_only_a_rule_with_something_to_check_is_green(
    value: float | None, changes: dict[str, Any], expected: tuple[str, str]
) -> None:
    """A rule without a figure or without a limit proves nothing."""
    page = page_of([result(1, value, **changes)])
    ((css, outcome),) = re.findall(r'<span class="outcome (\w+)">([^<]+)</span>', page)
    assert (css, outcome) == expected
    assert (">failed 0 of 1<" in page) == (outcome == "passed")


def test_a_rule_counts_only_plans_with_something_to_check() -> None:
    checked = [result(1, 10.0), result(2, None), result(3, None)]
    assert "failed 0 of 1, 2 not checked" in text_of(page_of(checked))


def test_a_rule_that_checked_nothing_in_the_newest_plan_is_not_green() -> None:
    """The older results of the table have a text such as `0 of 0 unexpected`."""
    share = {"check": "prices", "unexpected_count": 0}
    before = result(1, 0.0, unexpected_percent=0.0, **share)
    page = page_of([before, result(2, None, observed="0 of 0 unexpected", **share)])
    assert '<span class="outcome quiet">passed</span>' in page
    assert "nothing checked failed 0 of 1, 1 not checked" in text_of(page)
    assert "0 of 0" not in page


def pills(page: str) -> list[tuple[str, str]]:
    """Return the CSS class and the text of each pill."""
    return re.findall(r'<span class="pill ([^"]+)">([^<]+)</span>', page)


def test_complete_is_green_only_if_nothing_is_open() -> None:
    good = render(replace(_REPORT, checked=[result(1, 1.0)], certificate=landed(1)))
    assert pills(good) == [("good", "Complete")]
    assert '<section class="summary good">' in good


@pytest.mark.parametrize(
    ("changes", "pill"),
    [
        ({"missing_rows": 20}, ("bad", "20 rows removed from the table")),
        ({"missing_rows": None}, ("quiet-pill", "rows of the table not counted")),
        ({"checked": ()}, ("quiet-pill", "1 plan not checked")),
        ({"plans_by_status": {"not checked": [1]}}, ("quiet-pill", "1 plan not checked")),
        ({"plans_by_status": {"blocked": [1]}}, ("bad", "1 plan not published")),
        ({"plans_by_status": {"rejected": [1]}}, ("bad", "1 plan not published")),
        ({"checked": [result(1, 1.0, passed=False)]}, ("poor", "1 rule failed")),
        (
            {"checked": [result(1, 1.0, passed=False, severity=Severity.INFO)]},
            ("quiet-pill", "1 rule of severity info failed"),
        ),
        (
            {"certificate": replace(landed(1), partitions=(replace(_ACCOUNT, lost=8908),))},
            ("poor", "8,908 offsets accepted as lost"),
        ),
        ({"quarantined": [QUARANTINED]}, ("poor", "1 record in quarantine")),
        (
            {"certificate": replace(landed(1), open_plans=(2,))},
            ("quiet-pill", "1 plan open"),
        ),
        (
            {"certificate": replace(landed(1), partitions=(replace(_ACCOUNT, unproven_gaps=7),))},
            ("quiet-pill", "7 gaps unproven"),
        ),
    ],
)
def test_open_points_stand_beside_complete(changes: dict[str, Any], pill: tuple[str, str]) -> None:
    values: dict[str, Any] = {"checked": [result(1, 1.0)], "certificate": landed(1)} | changes
    page = render(replace(_REPORT, **values))
    assert pills(page) == [("poor", "Complete"), pill]
    assert '<section class="summary poor">' in page


def test_undone_and_replaced_plans_are_listed() -> None:
    removed = [
        RemovedRows(plan=7, removal=Removal.UNDONE, removed_at=NOW, reason="wrong <hour>"),
        RemovedRows(plan=5, removal=Removal.PARTLY_REPLACED, removed_at=None, replaced_by=(6, 8)),
    ]
    text = text_of(render(replace(_REPORT, removed=removed)))
    assert "7 undone 2026-03-01 12:00 wrong <hour>" in text
    assert "5 partly replaced - by plan 6, 8. The checks of plan 5 may be from before" in text
    assert "tidemark check events --plan 5" in text
    assert "Undone and replaced" not in text_of(render(_REPORT))


def test_charts_of_rules_on_rows_have_a_unit() -> None:
    checked = [
        result(n, 25.0 * n, check="prices", unexpected_count=n, unexpected_percent=25.0 * n)
        for n in (1, 2)
    ]
    ((label, _, _),) = trends(checked)
    assert label == "prices: 25 % to 50 %, newest 50 %"


def test_invisible_characters_are_escapes() -> None:
    text = text_of(render(replace(_REPORT, description="left\u202eright")))
    assert "left\\u{202E}right" in text


def test_a_page_is_written_into_a_pipe_and_through_a_link(tmp_path: Path) -> None:
    """Such as /dev/stdout, which root could replace by a file."""
    pipe, link, file = (tmp_path / name for name in ("pipe", "link", "file"))
    os.mkfifo(pipe)
    link.symlink_to(file)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_page(_REPORT, pipe)
        assert os.read(reader, 100_000).decode() == render(_REPORT)
    finally:
        os.close(reader)
    assert write_page(_REPORT, link) == file
    assert (link.is_symlink(), file.read_text()) == (True, render(_REPORT))
