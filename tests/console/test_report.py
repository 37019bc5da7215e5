"""The owner's report in the console: the content of the file, by the rights of the viewer."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from html import unescape
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.console.test_pages import cells
from tests.support.consoles import SomeRights, app_of, console_of
from tests.support.file_lake import FileLake, home_lake
from tests.support.publication import record_check
from tests.support.quality_reports import REPORT
from tests.support.services import NOW
from tests.support.typed_lake import home_typed_lake
from tidemark.console import pipelines, quality
from tidemark.quality.check_results import Example, Severity

PAGE = "/pipelines/events/quality/report?days=1"


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileLake:
    """Three plans of the last hour. The third failed a rule and has a rule without a figure."""
    monkeypatch.setattr(quality, "utc_now", lambda: NOW + timedelta(hours=1))
    lake = home_lake(tmp_path)
    (counts,) = REPORT.results
    failed = replace(
        counts,
        check="expect_column_values_to_be_in_set",
        column="name",
        passed=False,
        severity=Severity.WARNING,
        observed="alice",
        expectation="every name is known",
        unexpected_count=1,
        unexpected_percent=100 / 3,
        value=100 / 3,
        examples=(Example(0, 7, "alice"),),
    )
    empty = replace(counts, check="seconds_behind", observed=None, value=None)
    size = replace(
        counts,
        check="records",
        severity=Severity.INFO,
        observed=1234.5678,
        value=1234.5678,
        expectation="No limit",
    )
    results = (replace(counts, value=0), failed, empty, size)
    report = replace(REPORT, pipeline="events", plan_sequence=3, results=results)
    pipeline = app_of(tmp_path)().pipeline("events")
    pipeline.check_results.append(report)
    record_check(pipeline.control, report)
    return lake


def files(home: Path) -> set[Path]:
    """Return every file of a home."""
    return {path for path in home.rglob("*") if path.is_file()}


def test_the_console_shows_the_report_and_writes_no_file(lake: FileLake, tmp_path: Path) -> None:
    before = files(tmp_path)
    page = console_of(tmp_path).get(PAGE).text
    assert "Report of events" in page
    assert '<span class="pill poor">Complete</span>' in page
    assert '<span class="pill quiet-pill">2 plans not checked</span>' in page
    assert ["0", "7", "alice"] in cells(page)
    assert files(tmp_path) == before
    quality = console_of(tmp_path).get("/pipelines/events/quality").text
    link = re.search('href="([^"]+)">Owner.s report', quality)
    assert link
    assert console_of(tmp_path).get(link[1]).status_code == 200


def test_values_in_the_report_need_the_right_to_payloads(lake: FileLake, tmp_path: Path) -> None:
    hidden = console_of(tmp_path, viewer=SomeRights(payloads=False)).get(PAGE).text
    assert "every name is known" in hidden
    assert "1 record" in hidden
    assert "alice" not in hidden
    assert "/quality/docs" not in hidden


def test_figures_that_are_values_of_a_column_need_the_right_to_payloads(
    lake: FileLake, tmp_path: Path
) -> None:
    """The chart of a rule about a column's maximum would show the maximum."""
    (counts,) = REPORT.results
    highest = replace(
        counts,
        check="expect_column_max_to_be_between",
        column="salary",
        observed="91234",
        expectation="every salary is below 100,000",
        value=91_234.0,
    )
    report = replace(REPORT, pipeline="events", plan_sequence=2, results=(highest,))
    app_of(tmp_path)().pipeline("events").check_results.append(report)
    assert re.search("91[,.]?2", console_of(tmp_path).get(PAGE).text)
    hidden = console_of(tmp_path, viewer=SomeRights(payloads=False)).get(PAGE).text
    assert "every salary is below 100,000" in hidden
    assert not re.search("91[,.]?2", hidden)


def test_names_of_unnamed_fields_need_the_right_to_payloads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name can be a value, such as a customer number as a key."""
    monkeypatch.setattr(quality, "utc_now", lambda: NOW + timedelta(hours=1))
    decode = "value: {format: json, schema: {n: long}, keep_rest: true}"
    typed = home_typed_lake(tmp_path, decode)
    typed.decode = app_of(tmp_path)().pipeline("events").spec.decoding()
    typed.land_values([b'{"n": 1, "alice": 2}'])
    typed.run()
    assert ["alice", "1"] in cells(console_of(tmp_path).get(PAGE).text)
    hidden = console_of(tmp_path, viewer=SomeRights(payloads=False)).get(PAGE).text
    assert "1 of the newest 1 decoded record," in hidden
    assert "alice" not in hidden


def test_a_large_quarantine_has_the_command_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quality, "utc_now", lambda: NOW + timedelta(hours=1))
    typed = home_typed_lake(tmp_path)
    typed.broken = {1, 2}
    typed.bronze.run(3)
    typed.run()
    assert "2 records in quarantine" in console_of(tmp_path).get(PAGE).text
    monkeypatch.setattr(quality, "REPORTED_RECORDS", 1)
    page = console_of(tmp_path).get(PAGE).text
    assert "events has more than 1 records in quarantine" in page


def test_the_report_links_to_the_plans_that_failed_or_lost_rows(
    lake: FileLake, tmp_path: Path
) -> None:
    lake.undo.undo(2, "test", "not meant")
    client = console_of(tmp_path)
    links = links_of(client.get(PAGE).text)
    assert {links[plan] for plan in ("2", "3")} == {f"/pipelines/events/plans/{n}" for n in (2, 3)}
    assert "undone" in client.get(links["2"]).text


def test_a_plan_links_to_its_checks_and_to_a_report_that_contains_it(
    lake: FileLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = console_of(tmp_path)
    for days, report in ((366, None), (29, "?days=30"), (0, "?days=1"), (365, "?days=366")):
        for module in (pipelines, quality):
            monkeypatch.setattr(module, "utc_now", lambda days=days: NOW + timedelta(days=days))
        links = links_of(client.get("/pipelines/events/plans/2").text)
        assert links.get("Report with this plan") == (
            report and f"/pipelines/events/quality/report{report}"
        )
    assert "<dt>plans</dt><dd>3</dd>" in client.get(links["Report with this plan"]).text
    listed = client.get(links["Checks by plan"]).text
    assert [row[0] for row in cells(listed) if row] == ["2", "1"]


def test_a_plan_has_all_of_its_checks_with_their_data_docs(lake: FileLake, tmp_path: Path) -> None:
    run_at = NOW - timedelta(hours=1)
    results = app_of(tmp_path)().pipeline("events").check_results
    results.append(replace(REPORT, pipeline="events", plan_sequence=3, run_at=run_at))
    suite = tmp_path / "data_docs" / "events" / "validations" / "water levels"
    page = suite / "plan-000003" / f"{run_at:%Y%m%dT%H%M%S.%fZ}" / "rows.html"
    page.parent.mkdir(parents=True)
    page.write_text("<p>rules of plan 3</p>")
    client = console_of(tmp_path)
    shown = client.get("/pipelines/events/plans/3").text
    assert [row for row in cells(shown) if len(row) == 5 and row[0].startswith("2026")] == [
        ["2026-03-01 12:00:00", "warned", "1 of 4", "0", "-"],
        ["2026-03-01 11:00:00", "passed", "0 of 1", "0", "Data Docs"],
    ]
    assert client.get(links_of(shown)["Data Docs"]).text == "<p>rules of plan 3</p>"
    assert "History of checks" not in client.get("/pipelines/events/plans/1").text
    hidden = console_of(tmp_path, viewer=SomeRights(payloads=False))
    assert "Data Docs" not in links_of(hidden.get("/pipelines/events/plans/3").text)


def links_of(page: str) -> dict[str, str]:
    """Return the addresses of the links of a page, by text."""
    return {text: unescape(href) for href, text in re.findall(r'<a href="([^"]+)">([^<]+)<', page)}


def test_a_pipeline_of_many_plans_has_the_command_instead(
    lake: FileLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report reads every plan, which takes too long for a page."""
    monkeypatch.setattr(quality, "REPORTED_PLANS", 2)
    page = console_of(tmp_path).get(PAGE).text
    assert "events has 3 plans, more than 2, which take too long for this page" in page
    assert "<pre>tidemark report events --output report.html</pre>" in page
    assert 'class="summary' not in page


def test_a_rule_without_a_figure_is_grey_on_all_pages(lake: FileLake, tmp_path: Path) -> None:
    client = console_of(tmp_path)
    plan = [row for row in cells(client.get("/pipelines/events/plans/3").text) if len(row) == 4]
    assert [
        "not checked",
        "all counts match seconds_behind",
        "-",
        "critical",
    ] in plan
    assert ["passed", "all counts match range_count_mismatches", "0", "critical"] in plan
    assert ["no limit", "No limit records", "1,235", "info"] in plan
    (row,) = [
        row for row in cells(client.get("/pipelines/events/quality").text) if row[:1] == ["3"]
    ]
    assert row[2] == "3 of 4"


@pytest.mark.parametrize("days", ["0", "367", "x"])
def test_an_invalid_period_is_refused(lake: FileLake, tmp_path: Path, days: str) -> None:
    response = console_of(tmp_path).get(f"/pipelines/events/quality/report?days={days}")
    assert response.status_code == 400


def test_a_pipeline_without_landings_has_a_named_error(lake: FileLake, tmp_path: Path) -> None:
    response = console_of(tmp_path).get("/pipelines/idle/quality/report")
    assert response.status_code == 422
    assert "NothingLanded" in response.text


def test_a_complete_report_shows_rows_that_another_program_deleted(
    lake: FileLake, tmp_path: Path
) -> None:
    DeltaTable(lake.uri).delete('"offset" = 1')
    page = console_of(tmp_path).get(PAGE).text
    assert '<span class="pill poor">Complete</span>' in page
    assert '<span class="pill bad">1 row removed from the table</span>' in page
    assert "The table lacks 1 landed row" in page
