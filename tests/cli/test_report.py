"""`tidemark report`: its text, file and JSON, over real tables without Spark or Kafka."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.support.browser import open_page
from tests.support.commands import Command
from tests.support.consoles import app_of
from tests.support.file_lake import FileLake, home_lake
from tests.support.publication import record_check
from tests.support.services import NOW
from tests.support.typed_lake import TypedLake, home_typed_lake
from tidemark.app.adapters import Adapters
from tidemark.core.errors import ExitCode
from tidemark.core.plan import PlanKind
from tidemark.quality.check_results import CheckResult, Example, QualityReport, Severity
from tidemark.quality.check_results_table import DeltaCheckResults

_SINCE, _UNTIL = (f"{NOW + timedelta(days=days):%Y-%m-%d}" for days in (-1, 1))
PERIOD = ("--since", _SINCE, "--until", _UNTIL)
_SCRIPT = "<script>alert(1)</script>"


@pytest.fixture
def lake(tmp_path: Path) -> FileLake:
    """Three plans of three records; the second was blocked."""
    lake = home_lake(tmp_path)
    for sequence in (1, 2, 3):
        passed = sequence != 2
        result = CheckResult(
            check="null_key_percent",
            column=None,
            severity=Severity.CRITICAL,
            passed=passed,
            observed=f"{sequence * 10} {_SCRIPT}",
            expectation="at most 15",
            value=sequence * 10.0,
        )
        low = CheckResult(
            check="expect_column_values_to_be_between",
            column="price",
            severity=Severity.WARNING,
            passed=passed,
            observed=f"{0 if passed else 2} of 3 unexpected",
            expectation="every price is above 0",
            unexpected_count=0 if passed else 2,
            unexpected_percent=0.0 if passed else 66.7,
            examples=() if passed else (Example(0, 4, f"-1 {_SCRIPT}"), Example(0, 5, None)),
        )
        report = QualityReport(
            pipeline="events",
            plan_sequence=sequence,
            table_version=sequence,
            kind=PlanKind.LIVE,
            run_at=NOW,
            results=(result, low),
            data_docs=None,
        )
        DeltaCheckResults(str(tmp_path / "lakehouse" / "quality" / "results")).append(report)
        record_check(lake.control, report)
    return lake


def decode_more_records(lake: FileLake, home: Path) -> TypedLake:
    """Land 30 more records, of which 2 are undecodable and 23 break a rule; return the lake."""
    with (home / "pipelines" / "events.yaml").open("a") as spec:
        spec.write("decode:\n  value: {format: string}\n")
    lake.run(30)
    rules = dict.fromkeys(range(10, 33), f"above_0 {_SCRIPT}")
    typed = TypedLake(root=lake.root, broken={4, 35}, rules=rules)
    typed.bronze = lake
    return typed


def report_file(offline: Command, folder: Path, *options: str) -> Path:
    """Write the report of `events` to a file, and return the file."""
    file = folder / "report.html"
    offline("report", "events", *options, "--output", str(file))
    return file


def printed_rows(text: str, title: str) -> list[list[str]]:
    """Return the cells of the printed table below a title."""
    table = text.split(f"{title}\n")[1].split("└")[0]
    return [
        [cell.strip() for cell in line.strip("│").split("│")]
        for line in table.splitlines()
        if line.startswith("│")
    ]


class Page(HTMLParser):
    """The text of a page, and the resources that it loads."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[tuple[str, Any]] = []
        self.texts: list[str] = []
        self.feed(file.read_text())

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        """Store elements with an end tag, and links to resources."""
        if tag not in ("meta", "br", "link", "polyline", "path"):
            self.open.append(tag)
        self.fetched += [each for each in attrs if each[0] in ("src", "href", "srcset", "data")]

    def handle_startendtag(self, tag: str, attrs: Any) -> None:  # noqa: ARG002  the parser's
        """Store elements without an end tag."""
        self.fetched += [each for each in attrs if each[0] in ("src", "href", "srcset", "data")]

    def handle_endtag(self, tag: str) -> None:
        """Check that elements are nested."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Store visible text."""
        if self.open and self.open[-1] != "style":
            self.texts.append(data)

    @property
    def text(self) -> str:
        """The visible text."""
        return " ".join(" ".join(self.texts).split())


def test_the_page_and_the_json_account_for_a_complete_period(
    lake: FileLake, offline: Command, tmp_path: Path
) -> None:
    """They contain status, rules and trends. The page is one file, with all text escaped."""
    file = tmp_path / "new" / "report.html"
    done = offline("report", "events", *PERIOD, "--output", str(file))
    assert (done.code, "3 plans, 9 records: complete" in done.out) == (ExitCode.OK, True)
    assert done.out.splitlines()[-1] == str(file)
    page = Page(file)
    assert "Every offset from the first to the last of the period" in page.text
    assert "published 2 1, 3" in page.text
    assert "blocked 1 2" in page.text
    assert "failed critical at most 15 null_key_percent" in page.text
    assert "1 of 3" in page.text
    # The page loads nothing, and all values are text.
    assert (page.open, page.fetched) == ([], [])
    assert _SCRIPT in page.text
    assert not re.search(r"url\(|@import|https?:", file.read_text())

    written = file.read_bytes()
    file.unlink()
    record = offline("report", "events", *PERIOD, "--json", "--output", str(file)).json
    assert len(file.read_bytes()) == len(written)
    assert record["certificate"]["complete"] is True
    (account,) = record["certificate"]["partitions"]
    rows = [offset for _, offset in lake.rows()]
    assert (account["start"], account["end"]) == (min(rows), max(rows) + 1)
    assert (account["records"], account["missing"]) == (len(rows), [])
    assert record["plans_by_status"] == {"published": [1, 3], "blocked": [2]}
    rule, low = record["rules"]
    assert (rule["failed_plans"], rule["values"]) == ([2], [[1, 10.0], [2, 20.0], [3, 30.0]])
    assert record["quarantine"] is None
    assert low["examples"] == [
        {"partition": 0, "offset": 4, "value": f"-1 {_SCRIPT}"},
        {"partition": 0, "offset": 5, "value": None},
    ]
    assert f"0 4 -1 {_SCRIPT} 0 5 null Records of plan 2" in page.text


@pytest.mark.e2e
@pytest.mark.parametrize("width", [1000, 500])
def test_a_browser_shows_the_whole_page(
    lake: FileLake, offline: Command, tmp_path: Path, width: int
) -> None:
    """It loads nothing, reports no error, and hides or cuts nothing, also on a phone."""
    decode_more_records(lake, tmp_path).run()
    lake.undo.undo(3, "test", "not meant")
    page = report_file(offline, tmp_path, *PERIOD)
    shown = open_page(page, tmp_path, width=width)
    assert (shown.fetched, shown.messages, shown.overflow) == ([], [], 0)
    headings = [text for tag, text in shown.elements if tag == "H2"]
    assert headings == [
        "Published",
        "Undone and replaced",
        "Checks",
        "Typed table",
        "In quarantine",
        "Trends",
    ]
    texts = [text for tag, text in shown.elements if tag == "TD"]
    assert "every price is above 0expect_column_values_to_be_between of column price" in texts
    assert {f"-1 {_SCRIPT}", "null"} <= set(texts)
    assert texts.count(f"above_0 {_SCRIPT}") == 1 + 19
    assert [tag for tag, _ in shown.elements].count("polyline") == 2
    assert [each for each in shown.unseen if each[1]] == []
    assert (tmp_path / "page.png").stat().st_size > 0


@pytest.mark.slow
def test_quarantined_records_are_counted_and_shown_without_content(
    lake: FileLake, offline: Command, tmp_path: Path
) -> None:
    """Reasons are ordered by frequency. The first twenty offsets are listed, and no value."""
    typed = decode_more_records(lake, tmp_path)
    assert "In quarantine No records." in Page(report_file(offline, tmp_path, *PERIOD)).text

    typed.run()
    file = report_file(offline, tmp_path, *PERIOD)
    page = Page(file)
    rule = f"above_0 {_SCRIPT}"
    printed = offline("report", "events", *PERIOD).out
    assert ", 25 records in quarantine, " in printed
    assert printed_rows(printed, "In quarantine") == [
        ["rule_broken", "-", rule, "23"],
        ["malformed", "value", "-", "2"],
    ]
    assert "25 records, not decoded or against a row rule" in page.text
    assert "The oldest of them is in plan 2." in page.text
    assert f"records rule_broken {rule} 23 malformed value 2 The first 20" in page.text
    assert f"rule 0 4 malformed 0 10 rule_broken {rule} 0 11" in page.text
    assert page.text.count(rule) == 1 + 19
    assert (_SCRIPT in page.text, _SCRIPT in file.read_text()) == (True, False)

    quarantine = offline("report", "events", *PERIOD, "--json").json["quarantine"]
    assert (quarantine["records"], quarantine["oldest_plan"], quarantine["reasons"]) == (
        25,
        2,
        [
            {"reason": "rule_broken", "part": None, "detail": rule, "records": 23},
            {"reason": "malformed", "part": "value", "detail": None, "records": 2},
        ],
    )
    assert [each["offset"] for each in quarantine["examples"]] == [4, *range(10, 29)]


@pytest.mark.slow
def test_typed_rows_and_quarantine_account_for_every_landed_record(
    offline: Command, tmp_path: Path
) -> None:
    """Another program deletes a typed row: the report names its plan, and how to find it."""
    typed = home_typed_lake(tmp_path)
    typed.land_and_run(3, 1)
    typed.land_and_run(2)
    typed.bronze.run(4)
    waiting = "9 landed records = 4 typed rows + 1 record in quarantine + 4 records in neither"
    printed = offline("report", "events", *PERIOD).out
    assert f"typed table: {waiting} (4 offsets to decode)" in printed.splitlines()
    record = offline("report", "events", *PERIOD, "--json").json["typed"]
    assert (record["undecoded"], record["unaccounted"], record["plans"]) == (4, 0, None)

    typed.run()
    equation = "9 landed records = 8 typed rows + 1 record in quarantine"
    assert f"typed table: {equation}" in offline("report", "events", *PERIOD).out.splitlines()
    assert equation in Page(report_file(offline, tmp_path, *PERIOD)).text
    record = offline("report", "events", *PERIOD, "--json").json["typed"]
    assert record["typed_rows"] + record["quarantined"] == record["records"] == 9
    assert record["unaccounted"] == 0
    assert record["plans"] == [
        {"plan": 1, "records": 3, "typed_rows": 2, "quarantined": 1},
        {"plan": 2, "records": 2, "typed_rows": 2, "quarantined": 0},
        {"plan": 3, "records": 4, "typed_rows": 4, "quarantined": 0},
    ]

    DeltaTable(typed.typed_uri).delete('"offset" = 3')
    problem = "1 landed record is neither in the typed table nor in quarantine"
    printed = offline("report", "events", *PERIOD).out
    remedy = "`tidemark verify events` finds the difference"
    assert f"typed table: {problem}: {remedy}" in printed.splitlines()
    assert ", 1 record not accounted for in the typed table" in printed
    assert printed_rows(printed, "Typed rows and quarantine differ from landed records") == [
        ["2", "2", "1", "0"]
    ]
    page = Page(report_file(offline, tmp_path, *PERIOD)).text
    assert f"{problem}. {remedy.replace('`', '')}." in page
    assert "plan records typed rows in quarantine 2 2 1 0" in page
    assert [str(each) for each in typed.verifier.verify().first] == [
        "missing topic events partition 0 offset 3 (plan 2)"
    ]


@pytest.mark.slow
def test_fields_without_a_name_in_the_schema_are_counted_by_name(
    offline: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page, the command and its JSON have the same counts. Masked values have no names."""
    decode = "flatten: true, value: {format: json, schema: {n: long}, keep_rest: true}"
    typed = home_typed_lake(tmp_path, decode)
    values = [b'{"n": 1}', b'{"n": 2, "venue": "X"}', b'{"venue": "X", "<b>&": 1}']
    typed.land_values(values)
    assert offline("report", "events", "--json").json["unnamed_fields"] is None
    spec = app_of(tmp_path)().pipeline("events").spec
    typed.decode = spec.decoding()
    typed.run()
    done = offline("report", "events")
    line = "newest 3 decoded records: 2 with unnamed fields: 'venue' (2), '<b>&' (1)"
    assert line in done.out.splitlines()
    text = Page(report_file(offline, tmp_path)).text
    assert "does not name are in 2 of the newest 3 decoded records, from plan 1 on." in text
    assert "field records venue 2 <b>& 1" in text
    assert offline("report", "events", "--json").json["unnamed_fields"] == {
        "first_plan": 1,
        "decoded": 3,
        "records": 2,
        "names": {"venue": 2, "<b>&": 1},
        "more": False,
    }
    monkeypatch.setattr(Adapters, "masked_columns", lambda _: ["value"])
    assert offline("report", "events", "--json").json["unnamed_fields"]["names"] == {}
    text = Page(report_file(offline, tmp_path)).text
    assert "venue" not in text
    assert "This page does not show the names of these fields." in text


def test_columns_that_a_suite_masks_now_are_masked_in_earlier_checks(
    lake: FileLake, offline: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report contains partition and offset, and no value of the results table."""
    monkeypatch.setenv("TIDEMARK_PROJECT", str(tmp_path))
    suites = tmp_path / "include" / "expectations"
    suites.mkdir(parents=True)
    suite = {
        "name": "prices",
        "meta": {"tidemark": {"columns": {"price": "value_text"}, "masked": ["price"]}},
        "expectations": [],
    }
    (suites / "prices.json").write_text(json.dumps(suite))
    with (tmp_path / "pipelines" / "events.yaml").open("a") as spec:
        spec.write("quality: {suite: prices}\n")
    text = Page(report_file(offline, tmp_path, *PERIOD)).text
    assert "0 4 (masked) 0 5 (masked) Records of plan 2" in text
    assert f"-1 {_SCRIPT}" not in text

    assert _SCRIPT not in "".join(
        row[-1]
        for row in printed_rows(
            offline("report", "events", *PERIOD).out, "Records that violate rules"
        )
    )
    printed = offline("report", "events", *PERIOD, "--json")
    low = printed.json["rules"][1]
    assert low["examples"] == [
        {"partition": 0, "offset": offset, "value": "(masked)"} for offset in (4, 5)
    ]
    assert f"-1 {_SCRIPT}" not in printed.out


def test_an_incomplete_period_ends_with_exit_code_65_on_request(
    lake: FileLake, offline: Command, tmp_path: Path
) -> None:
    """The plan was undone; the text, the page and the JSON have its offsets."""
    lake.undo.undo(2, "test", "not meant")
    done = offline("report", "events", *PERIOD, "--exit-code")
    assert (done.code, "NOT complete" in done.out) == (ExitCode.REFUSED, True)
    assert printed_rows(done.out, "Not in the table") == [["0", "3", "6"]]
    page = Page(report_file(offline, tmp_path, *PERIOD))
    assert "Not complete: 3 offsets between the first and the last of the period" in page.text
    certificate = offline("report", "events", *PERIOD, "--json").json["certificate"]
    assert (certificate["missing"], certificate["partitions"][0]["missing"]) == (3, [[3, 6]])


def test_a_period_of_a_recreated_topic_is_not_certified(lake: FileLake, offline: Command) -> None:
    """Its plans landed, so the command must not print that nothing landed."""
    lake.kafka.create("events", 2, "id-2")
    lake.decisions.accept_recreation("test", "recreated")
    done = offline("report", "events", *PERIOD, "--exit-code")
    assert done.code == ExitCode.REFUSED
    assert "0 plans, 0 records: NOT complete" in done.out
    assert "not counted here: 3 plans of the period" in done.out


def test_a_period_without_landings_certifies_nothing(
    lake: FileLake, offline: Command, tmp_path: Path
) -> None:
    """A period that ends before its start is wrong usage."""
    period = ("--since", "2001-01-01", "--until", "2001-02-01")
    done = offline("report", "events", *period)
    page = Page(report_file(offline, tmp_path, *period))
    assert "Nothing landed in this period" in page.text
    assert "0 plans, 0 records: nothing landed" in done.out
    checked = offline("report", "events", *period, "--exit-code", "--json")
    assert (checked.code, checked.json["certificate"]["complete"]) == (ExitCode.REFUSED, False)
    wrong = offline("report", "events", "--since", "2001-02-01", "--until", "2001-01-01")
    assert wrong.code == ExitCode.USAGE
    nothing = offline("report", "idle", "--json")
    assert (nothing.code, nothing.json["error"]) == (ExitCode.REFUSED, "NothingLanded")


def test_the_report_prints_failed_rules_with_records_and_writes_nothing(
    lake: FileLake, offline: Command, tmp_path: Path
) -> None:
    before = sorted(tmp_path.rglob("*"))
    printed = offline("report", "events", *PERIOD).out
    assert "2 rules: 2 failed" in printed
    assert printed_rows(printed, "Published") == [["published", "2", "1, 3"], ["blocked", "1", "2"]]
    assert [(row[0], row[-1]) for row in printed_rows(printed, "Failed rules")] == [
        ("critical", "2"),
        ("warning", "2"),
    ]
    assert [row[1:] for row in printed_rows(printed, "Records that violate rules")] == [
        ["2", "0", "4", f"-1 {_SCRIPT}"],
        ["2", "0", "5", "null"],
    ]
    assert sorted(tmp_path.rglob("*")) == before


def test_a_report_of_all_pipelines_has_one_line_for_each(lake: FileLake, offline: Command) -> None:
    done = offline("report")
    assert done.code == ExitCode.OK
    assert done.out.splitlines() == [
        "events: 0 plans, 0 records: nothing landed",
        "idle: nothing landed",
    ]
    records = {each["pipeline"]: each for each in offline("report", "--json").json}
    assert records["idle"]["outcome"] == "nothing landed"
    assert "certificate" in records["events"]
    for option in ("--since=2001-01-01", "--output=report.html"):
        assert offline("report", option).code == ExitCode.USAGE


@pytest.mark.slow
def test_the_report_lists_an_undone_plan(lake: FileLake, offline: Command, tmp_path: Path) -> None:
    """The undone plan's figures and failures do not count."""
    since = f"{NOW - timedelta(days=1):%Y-%m-%d}"
    before = offline("report", "events", "--since", since, "--json").json
    assert [rule["failed_plans"] for rule in before["rules"]] == [[2], [2]]
    undone = offline("undo", "events", "--plan", "2", "--reason", "wrong hour", "--allow-loss")
    assert undone.code == ExitCode.OK
    after = offline("report", "events", "--since", since, "--json").json
    assert [rule["failed_plans"] for rule in after["rules"]] == [[], []]
    assert [value for value, _ in after["rules"][0]["values"]] == [1, 3]
    (removed,) = after["removed"]
    assert (removed["plan"], removed["removal"], removed["reason"]) == (2, "undone", "wrong hour")
    printed = offline("report", "events", "--since", since).out
    ((plan, what, _, reason),) = printed_rows(printed, "Undone and replaced")
    assert (plan, what, reason) == ("2", "undone", "wrong hour")
    assert "2 undone" in Page(report_file(offline, tmp_path, "--since", since)).text
