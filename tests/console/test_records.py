"""Records of the console and of `tidemark records`: masked columns, and large records."""

from __future__ import annotations

import html
import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.support.commands import Command
from tests.support.consoles import SomeRights, app_of, console_of
from tests.support.file_lake import FileLake, Payload, home_lake
from tests.support.memory_consoles import memory_console
from tests.support.page_text import text_of
from tests.support.typed_lake import TypedLake, home_typed_lake
from tidemark.console.records import MAX_CHARACTERS, MAX_HEADERS, RecordPlace
from tidemark.core.errors import ExitCode
from tidemark.delta.columns import BRONZE_SCHEMA

JSON = json.dumps([{"a": "é"}] * 4_000, ensure_ascii=False).encode()
PAGE = "/pipelines/events/records?partition=1&offset={}"


@pytest.fixture
def lake(tmp_path: Path) -> FileLake:
    """Pipeline `events`; partition 1 has no record yet."""
    return home_lake(tmp_path)


@pytest.fixture
def typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TypedLake:
    """A decoded record with `alice`, `card` and `trace` in key, value and headers."""
    monkeypatch.setenv("TIDEMARK_PROJECT", str(tmp_path))
    typed = home_typed_lake(tmp_path)
    typed.bronze.land_payloads([(b"alice", b"card")], 0, headers=(("trace", b"trace"),))
    typed.run()
    return typed


@pytest.mark.slow
def test_records_of_flattened_values_are_the_same_as_of_values_in_one_column(
    unconnected: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names of fields are those of the values, even if their columns have other names."""
    values = [
        b'{"n": 1, "timestamp": "noon", "tombstone": "a", "deep": {"x": 2}, "venue": "X"}',
        b"{}",
        None,
    ]
    names = "{n: long, timestamp: string, tombstone: string, deep: {x: long}}"
    ask = ("records", "events", "--partition", "0", "--offset", "0", "--count", "3")
    seen = []
    for flatten in ("true", "false"):
        home = tmp_path / flatten
        home.mkdir()
        value = f"{{format: json, schema: {names}, keep_rest: true}}"
        typed = home_typed_lake(home, f"flatten: {flatten}, value: {value}")
        typed.decode = app_of(home)().pipeline("events").spec.decoding()
        typed.land_values(values)
        typed.run()
        monkeypatch.setenv("TIDEMARK_HOME", str(home))
        monkeypatch.setenv("TIDEMARK_PIPELINES", str(home / "pipelines"))
        shown = [record["decoding"] for record in unconnected(*ask, "--json").json["records"]]
        page = console_of(home).get("/pipelines/events/records").text
        seen.append(
            (unconnected(*ask).out, shown, re.findall(r"<pre[^>]*>(.*?)</pre>", page, re.S))
        )
    assert seen[0] == seen[1]
    _, shown, texts = seen[0]
    first, empty, tombstone = (each["values"]["value"] for each in shown)
    assert first == {
        "n": 1,
        "timestamp": "noon",
        "tombstone": "a",
        "deep": {"x": 2},
        "_rest": '{"venue": "X"}',
    }
    assert set(empty.values()) == {None}
    assert tombstone is None
    assert any("noon" in html.unescape(each) for each in texts)


@pytest.mark.parametrize(
    ("columns", "masked", "seen"),
    [
        ({}, [], {"alice", "card", "trace"}),
        ({}, ["key_text"], {"card", "trace"}),
        ({}, ["value"], {"alice", "trace"}),
        ({}, ["headers"], {"alice", "card"}),
        ({"last4": "substr(value_text, -4)"}, ["last4"], set()),
    ],
)
def test_no_page_and_no_command_shows_a_masked_column(
    typed: TypedLake,
    unconnected: Command,
    tmp_path: Path,
    columns: dict[str, str],
    masked: list[str],
    seen: set[str],
) -> None:
    """A column of the suite can be derived from every part of a record."""
    del typed
    suite = {
        "name": "masking",
        "meta": {"tidemark": {"columns": columns, "masked": masked}},
        "expectations": [],
    }
    folder = tmp_path / "include" / "expectations"
    folder.mkdir(parents=True)
    (folder / "masking.json").write_text(json.dumps(suite))
    with (tmp_path / "pipelines" / "events.yaml").open("a") as spec:
        spec.write("quality: {suite: masking}\n")
    page = console_of(tmp_path, project=tmp_path).get("/pipelines/events/records")
    ask = ("records", "events", "--partition", "0", "--offset", "0", "--count", "1")
    printed, as_json = unconnected(*ask).out, unconnected(*ask, "--json").out
    for text in (text_of(page.text), printed, as_json):
        assert {word for word in ("alice", "card", "trace") if word in text} == seen
        assert ("masked" in text) == bool(masked)
    assert "4 B" in page.text


def test_an_invalid_suite_shows_no_record(lake: FileLake, tmp_path: Path) -> None:
    """The columns that it masks are unknown."""
    lake.land_payloads([(b"alice", b"card")], 1)
    folder = tmp_path / "include" / "expectations"
    folder.mkdir(parents=True)
    (folder / "invalid.json").write_text("{}")
    with (tmp_path / "pipelines" / "events.yaml").open("a") as spec:
        spec.write("quality: {suite: invalid}\n")
    page = console_of(tmp_path, project=tmp_path).get(PAGE.format(0)).text
    assert "SpecError" in page
    assert "alice" not in page


def test_a_page_of_large_records_ends_its_texts_and_has_the_command(
    lake: FileLake, unconnected: Command, tmp_path: Path
) -> None:
    lake.land_payloads([(JSON, JSON)] * 50, 1)
    client = console_of(tmp_path)
    page = client.get(PAGE.format(0))
    assert MAX_CHARACTERS < len(page.text) < 5 * MAX_CHARACTERS
    texts = re.findall(r"<pre[^>]*>(.*?)</pre>", page.text, re.DOTALL)
    assert 1 < len(texts) < 20
    assert f"{len(JSON):,} B, not shown" in page.text
    (last,) = re.findall(r"<pre[^>]*>(.*?)</pre>", client.get(PAGE.format(49)).text, re.DOTALL)[:1]
    assert json.loads(html.unescape(last)) == json.loads(JSON)
    *_, command = re.findall(r"<code>tidemark (records .*?)</code>", page.text)
    shown = unconnected(*command.split())
    (record,) = shown.json["records"]
    assert record["offset"] == 49
    assert record["rows"][0]["value"]["text"] == JSON.decode()
    assert shown.code != ExitCode.USAGE


def test_a_record_shows_its_first_headers(lake: FileLake, tmp_path: Path) -> None:
    headers = (("n" * 100_000, b"first"), *((f"name-{n}", b"v") for n in range(100_000)))
    lake.land_payloads([(b"k", b"v")], 1, headers=headers)
    page = console_of(tmp_path).get(PAGE.format(0)).text
    assert len(page) < 100_000
    assert page.count("<dt>header ") == MAX_HEADERS
    assert f"{100_001 - MAX_HEADERS:,} more" in page
    assert "tidemark records events --partition 1 --offset 0" in page
    hidden = console_of(tmp_path, viewer=SomeRights(payloads=False)).get(PAGE.format(0)).text
    assert "headers 100,001" in text_of(hidden)
    assert "name-1" not in hidden


def test_all_rows_of_one_offset_are_shown(lake: FileLake, tmp_path: Path) -> None:
    """Another program has added the rows again, with other values."""
    lake.land_payloads([(b"k", b"v")], 1)
    rows = pa.table(DeltaTable(lake.uri).scan()).to_pylist()
    (row,) = (each for each in rows if each["partition"] == 1)
    schema = pa.schema(BRONZE_SCHEMA.to_arrow())
    changed = pa.Table.from_pylist([{**row, "value": b"changed"}], schema)
    write_deltalake(lake.uri, changed, mode="append")
    page = console_of(tmp_path).get(PAGE.format(0)).text
    assert page.count("<h3>Row of plan 4 ") == 2
    assert "1970-01-01T00:00:01.000Z" in page
    assert page.count("changed") >= 1
    hidden = console_of(tmp_path, viewer=SomeRights(payloads=False)).get(PAGE.format(0)).text
    assert "changed" not in hidden


def offsets_of(page: str) -> list[str]:
    """Return the text of each offset without the record's time and payloads."""
    articles = re.findall(r"<article.*?</article>", page, re.DOTALL)
    texts = (text_of(article.partition("<details")[0]) for article in articles)
    return [re.sub(r" 1970-01-01T\S+", "", text) for text in texts]


@pytest.mark.slow
def test_each_offset_has_the_state_of_its_record_or_the_reason_of_its_absence(
    tmp_path: Path,
) -> None:
    typed = home_typed_lake(tmp_path)
    lake = typed.bronze
    lake.land_payloads([(b"k", b"v"), (b"k", b"v")])
    lake.kafka.add_gaps("events", 0, 1)
    lake.run(1)
    lake.run(1)
    lake.undo.undo(3, "cli:ada:1", "wrong values")
    typed.broken = (3,)
    typed.run()
    lake.payloads[0, 1] = Payload(b"k", b"changed")
    lake.produce(2, 1)
    lake.kafka.delete_records("events", 1, 1)
    client = memory_console(tmp_path, lake)
    address = "/pipelines/events/records?partition={}&offset={}&topic_id=id-1"
    page = client.get(address.format(0, 0)).text
    *landed, undone = offsets_of(page)[:5]
    gap = (
        "No reader can see a record: an aborted transaction, a transaction marker, or a record "
        "that compaction removed. Kafka does not report which."
    )
    assert landed == [
        "0 Kafka: record table: plan 1 typed: decoded",
        "1 Kafka: record table: plan 1 typed: decoded differs: value",
        f"2 Kafka: no visible record table: gap, plan 2 {gap}",
        "3 Kafka: record table: plan 2 typed: quarantined malformed, value",
    ]
    reason = "The offset is unread again. cli:ada:1 undid plan 3: wrong values"
    assert undone == f"4 Kafka: record table: unread, plan 3 {reason}"
    assert offsets_of(client.get(address.format(1, 0)).text)[:2] == [
        "0 Kafka: deleted table: lost Kafka deleted the offset before a plan read it. The loss is "
        "not accepted.",
        "1 Kafka: record table: unread No plan contains the offset yet.",
    ]
    permanent = address.format(0, 4)
    assert f'<h2><a href="{html.escape(permanent)}">4</a>' in page
    assert offsets_of(client.get(permanent).text)[0] == undone


def test_a_page_without_the_control_table_marks_no_row_as_not_recorded(
    lake: FileLake, tmp_path: Path
) -> None:
    client = memory_console(tmp_path, lake)
    for file in (tmp_path / "lakehouse" / "control").rglob("*.parquet"):
        file.write_bytes(b"PAR1 no table")
    page = client.get("/pipelines/events/records?partition=0&topic_id=id-1").text
    assert "<h2>control table</h2>" in page
    assert offsets_of(page)[0] == "0 Kafka: record table: plan 1"


def test_both_forms_keep_the_incarnation_of_a_permanent_link(
    lake: FileLake, tmp_path: Path
) -> None:
    page = console_of(tmp_path).get(PAGE.format(0) + "&topic_id=id-1").text
    assert page.count('<input type="hidden" name="topic_id" value="id-1">') == 2


@pytest.mark.usefixtures("lake")
def test_the_form_keeps_the_place_of_a_page_that_cannot_be_read(tmp_path: Path) -> None:
    """Such a page has only the error beside the form."""
    page = console_of(tmp_path).get(PAGE.format(5) + "&topic_id=!").text
    assert "InvalidReference" in page
    values = re.findall(r'<input name="(partition|offset)"[^>]* value="([^"]*)"', page)
    assert values == [("partition", "1"), ("offset", "5")]


def test_a_viewer_without_payloads_sees_sizes_only(lake: FileLake, tmp_path: Path) -> None:
    lake.land_payloads([(None, b'{"a": 1}')], 1, headers=(("secret", b"x"),))
    page = console_of(tmp_path, viewer=SomeRights(payloads=False)).get(PAGE.format(0)).text
    (text,) = (text_of(each) for each in re.findall(r"<dl.*?</dl>", page, re.DOTALL))
    assert text == "key null value 8 B headers 1"
    assert "secret" not in page


@pytest.mark.parametrize(
    ("text", "hour"),
    [
        ("2026-03-01T12:00:00Z", 12),
        ("2026-03-01 12:00:00Z", 12),
        ("2026-03-01 12:00:00+01:00", 11),
        ("2026-03-01T12:00:00 01:00", 11),
        ("2026-03-01", 0),
    ],
)
def test_a_time_in_an_address_has_a_utc_offset_or_is_a_date(text: str, hour: int) -> None:
    """A `+` that a person has pasted into an address becomes a space."""
    place = RecordPlace.model_validate({"time": text})
    assert place.time == datetime(2026, 3, 1, hour, tzinfo=UTC)


@pytest.mark.parametrize(("count", "opened"), [(5, 5), (6, 1)])
def test_a_page_of_many_records_opens_the_first_one_only(
    lake: FileLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, opened: int
) -> None:
    monkeypatch.setattr("tidemark.console.records.COUNT", count)
    lake.land_payloads([(b"key-%d" % number, b"value") for number in range(count)], 1)
    page = console_of(tmp_path).get(PAGE.format(0)).text
    assert [each == " open" for each in re.findall("<details( open)?>", page)] == [
        number < opened for number in range(count)
    ]
    closed = re.findall("<summary>(.*?)</summary>", page, re.DOTALL)[-1]
    assert f"key-{count - 1}" in closed, "the summary shows the key"


def test_an_offset_with_several_rows_is_open(lake: FileLake, tmp_path: Path) -> None:
    lake.land_payloads([(b"k", b"v")] * 7, 1)
    rows = pa.table(DeltaTable(lake.uri).scan()).to_pylist()
    again = [row for row in rows if (row["partition"], row["offset"]) == (1, 3)]
    schema = pa.schema(BRONZE_SCHEMA.to_arrow())
    write_deltalake(lake.uri, pa.Table.from_pylist(again, schema), mode="append")
    page = console_of(tmp_path).get(PAGE.format(0)).text
    opened = re.findall(
        r'id="offset-([0-9]+)" hx-disable>(?:(?!</article>).)*<details open>', page, re.DOTALL
    )
    assert opened == ["0", "3"]
