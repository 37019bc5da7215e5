"""Pages of the console over real tables: without Kafka, and with a hostile name in every place."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.support.consoles import SomeRights, app_of, console_of
from tests.support.file_lake import FileLake, home_lake
from tests.support.quality_reports import REPORT
from tests.support.typed_lake import home_typed_lake
from tests.support.waiting import wait_until
from tidemark.console import home
from tidemark.delta.status_history import LagSample, append_statuses, read_lags


@pytest.fixture
def lake(tmp_path: Path) -> FileLake:
    """Pipeline `events` with three landed plans; no Kafka connection is defined."""
    return home_lake(tmp_path)


def cells(html: str) -> list[list[str]]:
    """Return the texts of the cells of each table row."""
    rows = re.findall(r"<tr.*?</tr>", html, re.DOTALL)
    return [
        [
            re.sub(r"<[^>]+>", "", cell).strip()
            for cell in re.findall(r"<td.*?</td>", row, re.DOTALL)
        ]
        for row in rows
    ]


def test_pages_open_without_kafka_and_show_the_error(lake: FileLake, tmp_path: Path) -> None:
    client = console_of(tmp_path)
    overview = client.get("/")
    assert overview.status_code == 200
    assert overview.text.count("<strong>EmbeddedBrokerStopped</strong>") == 1, "one for all rows"
    page = client.get("/pipelines/events")
    assert page.status_code == 200
    assert "EmbeddedBrokerStopped" in page.text
    assert [row[:4] for row in cells(page.text) if row[:1] == ["3"]] == [
        ["3", "landed", "not checked", "3"]
    ]


def test_a_new_console_without_kafka_shows_what_the_tables_have(
    lake: FileLake, tmp_path: Path
) -> None:
    lake.plan(2)
    DeltaTable(lake.uri).delete('partition = 0 AND "offset" = 4')
    client = console_of(tmp_path)
    page = client.get("/pipelines/events").text
    unknown = "Kafka could not be read, so the start and the end of the log are unknown."
    assert unknown in page
    assert re.search(r"<details open>\s*<summary>Offsets by state", page)
    # Partition, low watermark, committed offset, end, lag, behind, runway; offsets in open plans,
    # landed offsets.
    assert ["0", "-", "9", *(4 * "-"), "2", "9"] in cells(page)
    assert "<dt>records landed</dt><dd>9</dd>" in page
    assert "<dt>last landed</dt><dd>-</dd>" not in page
    assert "plan 4</a> has been open" in page
    assert "no known offsets" in page
    zoomed = client.get("/pipelines/events?partition=0&start=3").text
    assert unknown in zoomed
    assert ["0", "-", "9", *(4 * "-"), "1", "2", "5"] in cells(zoomed)
    assert ["4", "9", "11"] in cells(zoomed)
    absent = client.get("/pipelines/events?partition=7")
    assert (absent.status_code, unknown in absent.text) == (200, True)
    assert 'class="coverage"' not in absent.text


def test_plans_are_listed_newest_first_with_their_states(lake: FileLake, tmp_path: Path) -> None:
    lake.undo.undo(2, "cli:ada:1", "test")
    lake.plan(2)
    lake.land_again((0, 6, 9))
    client = console_of(tmp_path)
    rows = [row[:4] for row in cells(client.get("/pipelines/events/plans").text) if row]
    assert [(row[0], row[1].split()[0]) for row in rows] == [
        ("5", "landed"),
        ("4", "open"),
        ("3", "replaced"),
        ("2", "undone"),
        ("1", "landed"),
    ]
    older = client.get("/pipelines/events/plans?before=3").text
    assert [row[0] for row in cells(older) if row] == ["2", "1"]


def test_the_page_of_a_plan_has_its_ranges_events_and_counts(
    lake: FileLake, tmp_path: Path
) -> None:
    page = console_of(tmp_path).get("/pipelines/events/plans/2").text
    rows = cells(page)
    assert ["0", "3", "6", "3", "0", "6"] in rows
    assert ["0", "3", "6", "3", "0", "0"] in rows
    assert [row[2] for row in rows if len(row) == 5 and row[2] in ("planned", "landed")] == [
        "planned",
        "landed",
    ]
    assert "not checked" in page


def test_the_page_of_a_plan_has_the_version_of_the_table_with_its_rows(
    lake: FileLake, tmp_path: Path
) -> None:
    """The undo of plan 3 is a version, so versions and plan numbers differ."""
    lake.undo.undo(3, "cli:ada:1", "test")
    lake.run(1)
    page = console_of(tmp_path).get("/pipelines/events/plans/4").text
    (version,) = map(int, re.findall(r"<dt>table version</dt><dd>(\d+)</dd>", page))
    assert (len(lake.rows(version - 1)), len(lake.rows(version))) == (6, 10)


@pytest.mark.parametrize(("most", "error"), [(5, "PageTooLarge"), (6, "EmbeddedBrokerStopped")])
def test_the_preview_of_a_replacement_reads_a_limited_number_of_ranges(
    lake: FileLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, error: str
) -> None:
    """It reads every plan, which takes gigabytes with a million ranges."""
    monkeypatch.setattr("tidemark.console.backfills.MOST_RANGES", most)
    client = console_of(tmp_path)
    address = "/pipelines/events/backfill?offsets=0:0-3"
    refused = client.get(f"{address}&replace=true&reason=the+`key`").text
    assert f"<strong>{error}</strong>" in refused
    options = "--offsets 0:0-3 --reason &#39;the `key`&#39; --replace --dry-run"
    command = f"<code>tidemark backfill events {options}</code>"
    assert (command in refused) == (error == "PageTooLarge")
    assert "PageTooLarge" not in client.get(address).text


def test_an_unknown_plan_is_a_named_error(lake: FileLake, tmp_path: Path) -> None:
    client = console_of(tmp_path)
    response = client.get("/pipelines/events/plans/99")
    assert response.status_code == 422
    assert "has no plan 99" in response.text
    assert client.get("/pipelines/events/plans/x").status_code == 400


def test_markup_in_a_spec_or_a_reason_is_text(lake: FileLake, tmp_path: Path) -> None:
    mark = "<script>alert(1)</script>\"'"
    spec = tmp_path / "pipelines" / "events.yaml"
    spec.write_text(spec.read_text() + f"description: {json.dumps(mark)}\n")
    lake.undo.undo(2, "cli:ada:1", mark)
    client = console_of(tmp_path)
    for path in ("/pipelines/events", "/pipelines/events/plans/2"):
        page = client.get(path).text
        assert "&lt;script&gt;alert(1)" in page
        assert "<script>alert" not in page


def test_links_keep_the_prefix_of_a_proxy_or_of_airflow(lake: FileLake, tmp_path: Path) -> None:
    from fastapi import FastAPI
    from starlette.testclient import TestClient

    outer = FastAPI()
    outer.mount("/data/tidemark", console_of(tmp_path).app)
    client = TestClient(outer)
    for path in ("/", "/pipelines/events", "/pipelines/events/plans/1", "/nothing"):
        page = client.get(f"/data/tidemark{path}").text
        links = re.findall(r'(?:href|src|hx-get)="([^"]+)"', page)
        assert len(links) > 4
        assert [link for link in links if not link.startswith(("/data/tidemark/", "#"))] == []


def test_quarantine_shows_places_and_reasons_without_content(tmp_path: Path) -> None:
    typed = home_typed_lake(tmp_path)
    typed.broken = (1, 2)
    typed.land_values([b"good", b"secret-1", b"secret-2"])
    typed.run()
    client = console_of(tmp_path)
    page = client.get("/pipelines/events/quarantine").text
    total, *rows = [row for row in cells(page) if row]
    assert total == ["-", "malformed", "value", "2"]
    assert rows == [["0", each, "-", "malformed", "value", "1"] for each in ("1", "2")]
    assert "schema id" not in page, "no record has a schema id"
    assert "secret" not in page
    _, link = re.findall(r'<a href="([^"]*)">\d+</a>', page)
    assert link == "/pipelines/events/records?partition=0&amp;offset=2&amp;topic_id=id-1"
    record, *_ = client.get(unescape(link)).text.partition("<article")[2].split("</article>")
    assert "typed: quarantined" in record
    assert "secret-2" in record


def test_a_pipeline_without_a_typed_table_has_no_quarantine(lake: FileLake, tmp_path: Path) -> None:
    client = console_of(tmp_path)
    assert "has no typed table" in client.get("/pipelines/events/quarantine").text
    assert "/quarantine" not in client.get("/pipelines/events").text


def test_quality_shows_the_publication_of_each_plan(lake: FileLake, tmp_path: Path) -> None:
    app = app_of(tmp_path)()
    app.pipeline("events").publication.release(1, "cli:ada:1", "checked by hand")
    rows = [row for row in cells(console_of(tmp_path).get("/pipelines/events/quality").text) if row]
    assert [row[:2] for row in rows] == [
        ["3", "not checked"],
        ["2", "not checked"],
        ["1", "released"],
    ]


def test_data_docs_need_the_right_to_read_payloads_and_stay_in_their_folder(
    lake: FileLake, tmp_path: Path
) -> None:
    site = tmp_path / "data_docs" / "events"
    site.mkdir(parents=True)
    (site / "page.html").write_text("<p>checks of events</p>")
    (site.parent / "secret.html").write_text("secret")
    (site / "link.html").symlink_to(site.parent / "secret.html")
    docs = "/pipelines/events/quality/docs"
    page = console_of(tmp_path).get(f"{docs}/page.html")
    assert page.text == "<p>checks of events</p>"
    assert "script" not in page.headers["content-security-policy"]
    for path in (
        "/../secret.html",
        "/%2e%2e/secret.html",
        "/link.html",
        "//etc/passwd",
        "/none",
        "/",
        "/%00",
        f"/{300 * 'x'}",
    ):
        assert console_of(tmp_path).get(f"{docs}{path}").status_code == 404
    without = console_of(tmp_path, viewer=SomeRights(payloads=False))
    assert without.get(f"{docs}/page.html").status_code == 404


# -- lag -----------------------------------------------------------------------------------------


def record(
    root: Path, pipeline: str, *lags: int | None, state: str = "ok", every_min: int = 15
) -> None:
    """Record lags at regular times until now."""
    now = datetime.now(UTC)
    rows = [
        {
            "pipeline": pipeline,
            "checked_at": now - number * timedelta(minutes=every_min),
            "lag": lag,
            "state": state,
        }
        for number, lag in enumerate(reversed(lags))
    ]
    append_statuses(app_of(root)().layout.status_history, rows)


def test_the_page_of_a_pipeline_has_its_recorded_lags_as_chart_and_table(
    lake: FileLake, tmp_path: Path
) -> None:
    record(tmp_path, "events", 5, 1_234_567, None, 0)
    record(tmp_path, "idle", 77)
    page = console_of(tmp_path).get("/pipelines/events").text
    values = page.partition("<summary>Values</summary>")[2].partition("</details>")[0]
    assert [row[1:] for row in cells(values) if row] == [
        ["0", "-", "ok"],
        ["-", "-", "ok"],
        ["1,234,567", "-", "ok"],
        ["5", "-", "ok"],
    ]
    assert "lag of events in offsets: highest 1,234,567, newest 0" in page
    assert "1.5 M</text>" in page
    assert len(re.findall("<polyline", page)) == 1
    assert "style=" not in page


def test_a_pipeline_without_recorded_lags_shows_how_to_record_them(
    lake: FileLake, tmp_path: Path
) -> None:
    page = console_of(tmp_path).get("/pipelines/events")
    assert page.status_code == 200
    assert "tidemark status --record" in page.text
    assert 'class="lag-chart' not in page.text
    record(tmp_path, "events", None, None)
    unknown = console_of(tmp_path).get("/pipelines/events").text
    assert "Fewer than two lags are known for the last day" in unknown
    assert "tidemark status --record" not in unknown


def test_the_address_has_the_period_of_the_chart(lake: FileLake, tmp_path: Path) -> None:
    record(tmp_path, "events", 9, 8, 1, every_min=3 * 24 * 60)
    client = console_of(tmp_path)
    shown = {}
    for period in ("hour", "day", "week", "month"):
        address = f"/pipelines/events?period={period}"
        page = client.get(address).text
        assert f'<a href="{escape(address)}" aria-current="true">{period}</a>' in page
        assert f'hx-get="{address}"' in page
        shown[period] = re.findall(r"in offsets: highest (\d+)", page)
    assert shown == {"hour": [], "day": [], "week": ["9"], "month": ["9"]}
    zoomed = client.get("/pipelines/events?partition=0&start=1&end=5&period=week").text
    assert "<h2>Lag</h2>" not in zoomed
    wrong = client.get("/pipelines/events?period=year")
    assert (wrong.status_code, "period" in wrong.text) == (400, True)


def test_recorded_states_are_text(lake: FileLake, tmp_path: Path) -> None:
    state = "<script>alert(1)</script>\u202e"
    record(tmp_path, "events", 1, 2, state=state)
    page = console_of(tmp_path).get("/pipelines/events").text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\u{202E}" in page
    assert "<script>alert" not in page


def test_a_damaged_history_is_shown_and_spoils_no_page(lake: FileLake, tmp_path: Path) -> None:
    log = Path(app_of(tmp_path)().layout.status_history) / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{7:020}.json").write_text("{}\n")
    client = console_of(tmp_path)
    for path in ("/", "/pipelines/events"):
        page = client.get(path)
        assert page.status_code == 200
        assert "DeltaLogDamaged" in page.text


@pytest.mark.slow
def test_an_overview_of_many_pipelines_reads_the_history_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A viewer sees the lags of visible pipelines only."""
    names = [f"p{number}" for number in range(200)]
    (tmp_path / "pipelines").mkdir()
    for name in names:
        text = f"name: {name}\ntopic: {name}\nschedule: '@daily'\n"
        (tmp_path / "pipelines" / f"{name}.yaml").write_text(text)
    now = datetime.now(UTC)
    rows = [
        {"pipeline": name, "checked_at": now - timedelta(hours=hours), "lag": hours}
        for name in names
        for hours in range(30)
    ]
    append_statuses(app_of(tmp_path)().layout.status_history, rows)
    reads: list[object] = []

    def counted(*arguments: Any) -> Mapping[str, Sequence[LagSample]]:
        reads.append(arguments)
        return read_lags(*arguments)

    monkeypatch.setattr(home, "read_lags", counted)
    # No Kafka connection is defined, so the status of each pipeline is an error at once.
    client = console_of(tmp_path)
    wait_until(lambda: client.get("/").text.count("EmbeddedBrokerStopped") >= 200, what="statuses")
    page = client.get("/").text
    assert len(reads) == 1
    assert len(re.findall(r'<svg class="sparkline"', page)) == 200
    assert "lag of p7: highest 23, newest 0" in page
    some = console_of(tmp_path, viewer=SomeRights(pipelines=["p7"])).get("/").text
    assert "p7" in some
    assert "p8" not in some


def test_values_that_a_check_observed_need_the_right_to_payloads(
    lake: FileLake, tmp_path: Path
) -> None:
    """The observation of a check can contain a key or a value of a record."""
    (first,) = REPORT.results
    key = replace(first, check="records", observed="12.3 (key b'alice')", value=12.3)
    value = replace(
        first, check="expect_column_max", column="value", observed="alice", passed=False
    )
    checked = replace(REPORT, pipeline="events", plan_sequence=3, results=(key, value))
    app_of(tmp_path)().pipeline("events").check_results.append(checked)
    assert "alice" in console_of(tmp_path).get("/pipelines/events/plans/3").text
    hidden = console_of(tmp_path, viewer=SomeRights(payloads=False))
    for path in ("/pipelines/events/quality", "/pipelines/events/plans/3"):
        page = hidden.get(path).text
        assert "alice" not in page
        assert "(hidden)" in page
    assert "12.3" in hidden.get("/pipelines/events/plans/3").text


def test_an_undone_plan_is_not_shown_as_published(lake: FileLake, tmp_path: Path) -> None:
    app_of(tmp_path)().pipeline("events").publication.release(2, "cli:ada:1", "checked by hand")
    lake.undo.undo(2, "cli:ada:1", "test")
    client = console_of(tmp_path)
    rows = [row for row in cells(client.get("/pipelines/events/quality").text) if row]
    assert [row[1] for row in rows if row[0] == "2"] == ["undone"]
    figures = client.get("/pipelines/events/plans/2").text.partition("</dl>")[0]
    assert "released" not in figures
