"""`tidemark quarantine list | replay` on real tables, with files that are written without Spark."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from tests.support.commands import Command
from tests.support.typed_lake import TypedLake, decode_with_files, home_typed_lake
from tidemark.app.adapters import Adapters
from tidemark.app.app import App
from tidemark.app.run import execute
from tidemark.cli import engine as cli_engine
from tidemark.core.errors import ExitCode
from tidemark.core.payload_text import MAX_SHOWN_BYTES
from tidemark.spark.engine import Engine, JobRun
from tidemark.spec.ref import DecodeRef

pytestmark = pytest.mark.slow


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TypedLake:
    """A lake whose jobs run in this process."""
    lake = home_typed_lake(tmp_path)
    decode_with_files(lake, monkeypatch.setattr)

    def run(
        app: App,
        engine: Engine,
        job: str,
        refs: Sequence[DecodeRef],
        print_line: Callable[[str], None],
        show_tasks: object,
    ) -> JobRun:
        results, code = execute(app, job, refs, nullcontext(app.sessions))
        return JobRun(exit_code=code, results=results)

    monkeypatch.setattr(cli_engine, "run", run)
    return lake


def test_one_partition_is_replayed_and_the_others_stay_open(
    lake: TypedLake, offline: Command
) -> None:
    """The dry run shows the same number of records."""
    for partition in (0, 1):
        lake.land_values([b"a", b"b", b"c"], partition)
    lake.broken, lake.broken_in = {1}, (0, 1)
    assert offline("decode", "events").code == ExitCode.OK
    assert lake.quarantined() == [(0, 1), (1, 1)]
    lake.broken = ()
    only = ("quarantine", "replay", "events", "--partition", "1")
    assert "1 record would be replayed: 1 decoded" in offline(*only, "--dry-run").out
    (done,) = offline(*only, "--json").json
    assert (done["records"], done["quarantined"]) == (1, 0)
    assert lake.quarantined() == [(0, 1)]
    lake.check()


def test_a_large_replay_is_split_into_several_commits(
    lake: TypedLake, offline: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each record is replayed once, even if it fails again."""
    monkeypatch.setattr("tidemark.silver.typed.following.MAX_RUNS", 2)
    lake.land_values([b"%d" % n for n in range(8)])
    lake.broken = {0, 2, 4, 6, 7}
    offline("decode", "events")
    lake.broken = {2}
    before = DeltaTable(lake.typed_uri).version()
    (done,) = offline("quarantine", "replay", "events", "--json").json
    assert (done["records"], done["quarantined"]) == (5, 1)
    assert done["table_version"] == before + 2
    (nothing,) = offline("quarantine", "replay", "events", "--partition", "1", "--json").json
    assert nothing["outcome"] == "nothing to do"
    assert lake.quarantined() == [(0, 2)]
    lake.check()


def test_the_dry_run_of_a_replay_reports_reasons_by_the_current_spec_and_writes_nothing(
    lake: TypedLake, offline: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several commits count as one. Records that left the bronze table stay unchanged."""
    monkeypatch.setattr("tidemark.silver.typed.following.MAX_RUNS", 2)
    lake.land_values([b"%d" % n for n in range(6)])
    lake.broken = {0, 2, 3, 4, 5}
    offline("decode", "events")
    lake.broken = {2, 4}
    before = sorted(lake.root.rglob("*"))
    dry_run = ("quarantine", "replay", "events", "--dry-run")
    (draft,) = offline(*dry_run, "--json").json
    failed = {"reason": "malformed", "part": "value", "detail": None, "records": 2}
    assert draft["reasons"] == [failed]
    assert (draft["offsets"], draft["decoded"], draft["quarantined"]) == (5, 3, 2)
    shown = offline(*dry_run)
    assert "5 records would be replayed: 3 decoded, 2 quarantined again" in shown.out
    assert "Would be quarantined again" in shown.out
    (other,) = offline(*dry_run, "--reason", "not_utf8", "--json").json
    assert (other["offsets"], other["reasons"]) == (0, [])
    assert sorted(lake.root.rglob("*")) == before
    lake.bronze.undo.undo(1, "test", "wrong topic")
    assert offline(*dry_run, "--json").json[0]["skipped"] == 5


def test_the_content_of_chosen_records_is_shown_up_to_a_limit_with_visible_characters(
    lake: TypedLake, offline: Command
) -> None:
    """Without --show, no byte of a record is printed."""
    long = b"z" * (MAX_SHOWN_BYTES + 1)
    lake.land_values([b"good", b"a\x1b[31m", b"\xff\xfe", long], headers=(("h", b"\x07"),))
    lake.land_values([b"elsewhere", b"secret"], 1)
    lake.broken, lake.broken_in = {1, 2, 3}, (0, 1)
    decoded = offline("decode", "events")
    assert "events: records are left to decode" in decoded.err
    assert "events: 2 records decoded, 4 quarantined" in decoded.out
    listing = ("quarantine", "list", "events")
    assert "elsewhere" not in offline(*listing).out
    assert "secret" not in offline(*listing, "--json").out + offline(*listing).out
    one = ("--show", "--partition", "0")
    shown = offline(*listing, *one, "--limit", "2").out
    assert r"value     UTF-8, 6 bytes: a\u{001B}[31m" in shown
    assert "value     hex, 2 bytes: ff fe" in shown
    assert "2 of 3 listed; --limit 3 lists all" in shown
    assert "zzz" not in shown
    assert "secret" not in shown
    text, other, cut = offline(*listing, *one, "--reason", "malformed", "--json").json
    (row,) = text["rows"]
    assert (text["offset"], row["plan"]) == (1, 1)
    assert row["value"] == {"encoding": "UTF-8", "text": "a\x1b[31m"}
    assert row["headers"] == [{"name": "h", "value": {"encoding": "UTF-8", "text": "\x07"}}]
    assert other["rows"][0]["value"] == {"encoding": "base64", "text": "//4="}
    assert len(cut["rows"][0]["value"].pop("text")) == MAX_SHOWN_BYTES
    assert cut["rows"][0]["value"] == {"encoding": "UTF-8", "truncated": True, "size": len(long)}
    assert offline(*listing, "--reason", "rule_broken", "--json").json == []
    assert offline(*listing, "--partition", "1", "--json").json[0]["offset"] == 1


def test_a_quarantined_record_without_a_bronze_row_differs_from_a_tombstone(
    lake: TypedLake, offline: Command
) -> None:
    """Another program deleted one row and copied another; then an undo removes all of them."""
    lake.land_values([None, b"gone", b"twice"])
    lake.broken = {0, 1, 2}
    offline("decode", "events")
    bronze = DeltaTable(lake.bronze.uri)
    twice = QueryBuilder().register("t", bronze).execute('SELECT * FROM t WHERE "offset" = 2')
    write_deltalake(bronze, twice.read_all(), mode="append")
    bronze.delete('"offset" = 1')
    listing = ("quarantine", "list", "events", "--show")
    tombstone, gone, copied = offline(*listing, "--json").json
    assert [row["value"] for row in tombstone["rows"]] == [None]
    assert gone["rows"] == []
    assert [row["value"]["text"] for row in copied["rows"]] == ["twice", "twice"]
    shown = offline(*listing).out
    assert re.search(r"offset 0 .*\n  row of plan 1, .*\n.*\n  value     null", shown)
    page = "tidemark records events --partition 0 --offset 1 --topic-id id-1"
    assert re.search(f"offset 1 .*\n  no row in the bronze table; the reason: {page}\n", shown)
    assert shown.count("UTF-8, 5 bytes: twice") == 2
    lake.bronze.undo.undo(1, "test", "wrong topic")
    undone = offline(*listing)
    assert (undone.code, undone.out.count("no row in the bronze table")) == (ExitCode.OK, 3)
    assert [each["rows"] for each in offline(*listing, "--json").json] == [[], [], []]


def test_masked_content_of_quarantined_records_is_never_shown(
    lake: TypedLake, offline: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The suite's masks hold for text and JSON."""
    lake.land_values([b"secret"])
    lake.broken = {0}
    offline("decode", "events")
    monkeypatch.setattr(Adapters, "masked_columns", lambda _: {"value", "value_text"})
    for form in ((), ("--json",)):
        shown = offline("quarantine", "list", "events", "--show", *form).out
        assert "masked" in shown
        assert "secret" not in shown
