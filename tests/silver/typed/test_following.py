"""Decodes into a typed table and a quarantine that follow the ledger, on real tables."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.support.file_lake import double, landed_lake, remove_old_commits
from tests.support.follow_lake import Follower, at
from tests.support.registered_lake import MemoryRegistry, RegisteredLake
from tests.support.typed_lake import FileDecoder, TypedLake
from tidemark.bronze.ingest.errors import DuplicateRows
from tidemark.core import bookmark as bookmark_module
from tidemark.core import decode_round
from tidemark.core.bookmark import Bookmark
from tidemark.core.decode_work import EVERY_PLAN, Decoded, DecodeWork
from tidemark.core.errors import HistoriesDiverge, OnlyCopy, TableBehindLedger, TidemarkError
from tidemark.core.following import Batch, BatchOffsets, allowed, required
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.publication import PublishRule
from tidemark.delta.errors import ForeignTable
from tidemark.silver.typed import following
from tidemark.silver.typed.errors import RegistryUnavailable, SchemaConflict
from tidemark.silver.typed.state import FollowState
from tidemark.spec.decode import RegisteredSchema


class Killed(Exception):
    """The end of a killed decoder."""


class UnavailableRegistry:
    """A registry that does not answer."""

    def schema(self, schema_id: int) -> RegisteredSchema | None:
        raise RegistryUnavailable(connection="registry", schema_id=schema_id, reason="down")


@pytest.fixture
def lake(tmp_path: Path) -> TypedLake:
    """Three plans of three records; offset 4 cannot be decoded."""
    lake = TypedLake(tmp_path, broken={4})
    lake.bronze = landed_lake(tmp_path, plans=3)
    return lake


@pytest.fixture
def follower(lake: TypedLake) -> Follower:
    return follower_of(lake)


def follower_of(lake: TypedLake) -> Follower:
    return Follower(lake, FileDecoder(lake))


def kill_before(follower: Follower, step: str) -> None:
    def pause(name: str) -> None:
        if name == step:
            raise Killed

    follower.pause = pause
    with pytest.raises(Killed):
        follower.decode()
    follower.pause = lambda _: None


def once(follower: Follower, step: str, do: Callable[[], object]) -> None:
    """Do something before the next step of this name."""

    def pause(name: str) -> None:
        if name == step:
            follower.pause = lambda _: None
            do()

    follower.pause = pause


def check(follower: Follower) -> None:
    """Check that each bronze row is in one of both tables, under its bronze plan."""
    rows = follower.lake.bronze_rows()
    bronze = sorted((row["plan_sequence"], row["partition"], row["offset"]) for row in rows)
    assert sorted([*follower.typed_rows(), *follower.entries()]) == bronze


def bookmark_of(follower: Follower) -> Bookmark:
    notes = [
        commit["userMetadata"]
        for commit in DeltaTable(follower.typed_uri).history()
        if "bookmark" in commit.get("userMetadata", "")
    ]
    found = Bookmark.from_metadata(json.loads(notes[0])["bookmark"])
    assert found is not None
    return found


def test_decoded_rows_have_the_numbers_of_their_bronze_plans(follower: Follower) -> None:
    assert follower.decode() == 1
    check(follower)
    assert follower.entries() == [(2, 0, 4)]
    assert {plan for plan, _, _ in follower.typed_rows()} == {1, 2, 3}
    bookmark = bookmark_of(follower)
    assert bookmark.event == follower.lake.control.summary("events").event_number
    assert bookmark.decoded is not None
    assert bookmark.decoded.plans == SpanSet.of([Span(1, 4)])
    assert follower.decode() == 0


def test_a_first_decode_makes_a_commit_for_each_chunk(follower: Follower) -> None:
    follower.most = 3
    assert follower.decode() == 3
    check(follower)
    assert follower.compared == 0


@pytest.mark.parametrize("step", ["commit", "index"])
def test_a_decode_after_a_kill_completes_both_tables(follower: Follower, step: str) -> None:
    kill_before(follower, step)
    follower.decode()
    check(follower)
    assert follower.entries() == [(2, 0, 4)]


def test_an_entry_of_a_killed_decoder_has_a_reason_with_later_rules(follower: Follower) -> None:
    kill_before(follower, "index")
    follower.lake.broken = ()
    follower.decode()
    check(follower)
    (entry,) = DeltaTable(follower.index_uri).to_pyarrow_table().to_pylist()
    assert (entry["offset"], entry["reason"]) == (4, "decodable")


def test_an_undone_plan_leaves_both_tables(follower: Follower) -> None:
    follower.decode()
    follower.lake.bronze.undo.undo(2, "ops", "wrong")
    follower.decode()
    check(follower)
    assert follower.entries() == []
    assert follower.compared == 0


@pytest.mark.slow
def test_replaced_rows_are_decoded_again(follower: Follower) -> None:
    follower.decode()
    follower.lake.bronze.land_again((0, 1, 5))
    follower.lake.broken = {2, 4}
    follower.decode()
    check(follower)
    assert follower.entries() == [(4, 0, 2), (4, 0, 4)]
    # The record at offset 4 was in quarantine before, so it does not count for the limit again.
    request = follower.requests[-1]
    assert (request.offsets, request.quarantined) == (at(4, (1, 5)), 1)


@pytest.mark.slow
def test_rows_of_a_replacement_that_is_not_recorded_wait(follower: Follower) -> None:
    bronze = follower.lake.bronze
    plan = bronze.commit_again((0, 1, 5))
    follower.decode()
    assert {number for number, _, _ in follower.typed_rows()} == {3}
    assert bookmark_of(follower).pending == SpanSet.of([Span(1, 3)])
    bronze.ingest.execute(plan.sequence)
    follower.decode()
    check(follower)


def test_a_replay_types_a_record_and_removes_its_entry(follower: Follower) -> None:
    follower.decode()
    follower.lake.broken = ()
    assert follower.decode(at(2, (4, 5))) == 1
    check(follower)
    assert follower.entries() == []


def test_a_record_that_fails_again_has_its_new_reason(follower: Follower) -> None:
    follower.decode()
    follower.lake.broken, follower.lake.rules = (), {4: "small"}
    follower.decode(at(2, (4, 5)))
    check(follower)
    (entry,) = DeltaTable(follower.index_uri).to_pyarrow_table().to_pylist()
    assert (entry["offset"], entry["reason"], entry["detail"]) == (4, "rule_broken", "small")


def test_doubled_bronze_rows_are_not_decoded(follower: Follower) -> None:
    follower.service.check()
    assert not Path(follower.typed_uri).exists()
    double(follower.lake.bronze.uri)
    for use in (follower.service.check, follower.decode):
        with pytest.raises(DuplicateRows):
            use()


def test_a_plan_whose_schema_does_not_fit_waits(follower: Follower) -> None:
    """Later plans are decoded, then the error is raised. The plan follows after a correction."""
    follower.unreadable = [4]
    with pytest.raises(SchemaConflict):
        follower.decode()
    assert {plan for plan, _, _ in follower.typed_rows()} == {1, 3}
    assert bookmark_of(follower).pending == SpanSet.of_numbers([2])
    follower.unreadable = ()
    follower.decode()
    check(follower)


@pytest.mark.parametrize("is_idle", [True, False])
def test_a_replay_reports_records_whose_schema_does_not_fit(
    follower: Follower, *, is_idle: bool
) -> None:
    """It does so after other work. The records stay in quarantine, with their entries."""
    follower.decode()
    if not is_idle:
        follower.lake.bronze.run(3)
    follower.unreadable = [4]
    with pytest.raises(SchemaConflict):
        follower.decode(at(2, (4, 5)))
    check(follower)
    assert follower.entries() == [(2, 0, 4)]


def test_all_plans_are_decoded_from_scratch(follower: Follower) -> None:
    follower.decode()
    follower.clear()
    assert follower.typed_rows() == []
    follower.lake.broken = {7}
    follower.decode()
    check(follower)
    assert follower.entries() == [(3, 0, 7)]
    assert follower.compared == 0


@pytest.mark.slow
def test_rows_that_another_program_deletes_do_not_come_back(follower: Follower) -> None:
    follower.decode()
    DeltaTable(follower.typed_uri).delete('"offset" = 1')
    follower.lake.bronze.run(3)
    follower.decode()
    assert [place for place in follower.typed_rows() if place[2] == 1] == []
    assert len(follower.typed_rows()) == 10
    assert follower.compared == 0
    follower.lake.bronze.land_again((0, 0, 3))
    follower.decode()
    check(follower)


@pytest.mark.slow
@pytest.mark.parametrize("table", ["typed", "index"])
def test_a_restored_table_is_compared(follower: Follower, table: str) -> None:
    follower.most = 3
    follower.decode()
    DeltaTable(getattr(follower, f"{table}_uri")).restore(1)
    follower.decode()
    check(follower)
    assert bool(follower.compared) == (table == "typed")


@pytest.mark.slow
@pytest.mark.parametrize("table", ["typed", "index"])
def test_a_lost_table_gets_its_records_again(follower: Follower, table: str) -> None:
    follower.decode()
    shutil.rmtree(getattr(follower, f"{table}_uri"))
    assert follower.service.state().quarantine_behind == (table == "index")
    follower.decode()
    check(follower)
    assert follower.entries() == [(2, 0, 4)]


@pytest.mark.slow
@pytest.mark.parametrize("table", ["typed", "index"])
def test_a_table_without_old_commits_is_compared(follower: Follower, table: str) -> None:
    follower.decode()
    uri = getattr(follower, f"{table}_uri")
    DeltaTable(uri).optimize.compact()
    DeltaTable(uri).alter.set_table_properties({"a.b": "c"}, raise_if_not_exists=False)
    remove_old_commits(uri)
    follower.lake.bronze.run(3)
    follower.decode()
    check(follower)


@pytest.mark.slow
@pytest.mark.parametrize("table", ["typed", "index"])
def test_an_older_copy_of_a_table_catches_up(
    follower: Follower, table: str, tmp_path: Path
) -> None:
    follower.most = 3
    follower.prepare()
    follower.round()
    uri = getattr(follower, f"{table}_uri")
    shutil.copytree(uri, tmp_path / "copy")
    follower.decode()
    shutil.rmtree(uri)
    shutil.copytree(tmp_path / "copy", uri)
    follower.decode()
    check(follower)


@pytest.mark.slow
def test_a_copy_of_the_typed_table_that_has_grown_again_is_noticed(
    follower: Follower, tmp_path: Path
) -> None:
    """The quarantine names a version that the copy has too, with another commit."""
    follower.most = 3
    follower.prepare()
    follower.round()
    shutil.copytree(follower.typed_uri, tmp_path / "copy")
    follower.lake.broken = ()
    follower.decode()
    shutil.rmtree(follower.typed_uri)
    shutil.copytree(tmp_path / "copy", follower.typed_uri)
    follower.lake.broken = {4}
    kill_before(follower, "index")
    follower.decode()
    check(follower)
    assert follower.entries() == [(2, 0, 4)]


@pytest.mark.slow
def test_maintenance_between_look_and_commit_is_no_conflict(follower: Follower) -> None:
    follower.most = 3
    follower.decode()
    follower.lake.bronze.undo.undo(1, "ops", "wrong")
    follower.lake.bronze.run(3)
    once(follower, "commit", lambda: DeltaTable(follower.typed_uri).optimize.compact())
    follower.round()
    follower.decode()
    check(follower)


@pytest.mark.slow
def test_one_of_two_decoders_begins_again(follower: Follower) -> None:
    other = follower_of(follower.lake)
    follower.prepare()
    once(follower, "commit", other.decode)
    follower.round()
    assert follower.decode() == 0
    check(follower)


@pytest.mark.slow
def test_a_late_decoder_does_not_cover_the_entries_of_another(follower: Follower) -> None:
    other = follower_of(follower.lake)
    follower.prepare()
    once(follower, "index", other.decode)
    follower.round()
    follower.decode()
    check(follower)


def test_an_undo_before_the_commit_begins_a_new_round(follower: Follower) -> None:
    once(follower, "decoded", lambda: follower.lake.bronze.undo.undo(1, "ops", "wrong"))
    assert follower.decode() == 1
    check(follower)
    assert {plan for plan, _, _ in follower.typed_rows()} == {2, 3}


@pytest.mark.slow
def test_a_restored_bronze_table_waits_for_a_rewind(follower: Follower) -> None:
    follower.decode()
    bronze = follower.lake.bronze
    DeltaTable(bronze.uri).restore(2)
    with pytest.raises(HistoriesDiverge):
        follower.decode()
    bronze.repair.rewind("ops", "restored")
    follower.decode()
    check(follower)
    assert follower.compared == 0


@pytest.mark.slow
def test_only_published_plans_are_decoded(follower: Follower) -> None:
    follower.publish = PublishRule.CHECKED
    publication = follower.lake.bronze.publication
    follower.decode()
    assert follower.typed_rows() == []
    for plan in (1, 2):
        publication.release(plan, "cli:ann:1", "checked by hand")
    follower.decode()
    assert {plan for plan, _, _ in follower.typed_rows()} == {1, 2}
    publication.reject(2, "cli:ann:2", "wrong prices")
    follower.decode()
    assert {plan for plan, _, _ in follower.typed_rows()} == {1}
    assert follower.entries() == []
    assert follower.compared == 0


# -- guards of single steps ----------------------------------------------------------------------


def commits_of(uri: str) -> int:
    return DeltaTable(uri).version()


@pytest.mark.slow
def test_a_comparison_finds_rows_that_are_missing_in_plans(follower: Follower) -> None:
    """It decodes them alone, one plan in each round."""
    follower.decode()
    typed = DeltaTable(follower.typed_uri)
    typed.delete('"offset" IN (1, 7)')
    version = typed.version()
    typed.delete('"offset" = 2')
    typed.restore(version)
    state = follower.service.state()
    assert (state.undecoded, state.quarantine_behind) == (at(1, (1, 2)) | at(3, (7, 8)), True)
    follower.most = 1
    follower.decode()
    check(follower)
    assert len(follower.typed_rows()) == 8
    offsets = [request.offsets for request in follower.requests[1:]]
    assert at(1, (1, 2)) in offsets
    assert at(3, (7, 8)) in offsets


@pytest.mark.slow
@pytest.mark.parametrize("step", ["ledger", "plans"])
def test_records_that_land_between_two_reads_of_a_round_are_decoded(
    follower: Follower, step: str
) -> None:
    follower.prepare()
    once(follower, step, lambda: follower.lake.bronze.run(3))
    follower.service.decode(DecodeWork(plans=EVERY_PLAN))
    check(follower)
    assert len(follower.typed_rows()) == 11


@pytest.mark.slow
@pytest.mark.parametrize("first", ["bronze", "ledger"])
def test_a_bronze_table_that_was_restored_during_the_comparison_is_not_decoded(
    follower: Follower, first: str
) -> None:
    """Another program restores an older version before a step, and reverts this before another."""
    follower.decode()
    uri = follower.lake.bronze.uri
    before = DeltaTable(uri).version()
    follower.lake.bronze.run(3)
    work, newest = follower.service.next(), before + 1
    assert work is not None
    steps = iter([(first, before), ("ledger" if first == "bronze" else "plans", newest)])
    due = next(steps)

    def pause(step: str) -> None:
        nonlocal due
        if due and step == due[0]:
            version, due = due[1], next(steps, ("", 0))
            DeltaTable(uri).restore(version)

    follower.pause = pause
    with suppress(TableBehindLedger):
        follower.service.decode(work)
    follower.pause = lambda _: None
    DeltaTable(uri).restore(newest)
    follower.decode()
    check(follower)
    assert len(follower.typed_rows()) == 11


@pytest.mark.slow
def test_events_that_hide_no_decoded_row_stop_no_commit(follower: Follower) -> None:
    """Records that land during a decode do not make it begin again."""
    once(follower, "decoded", lambda: follower.lake.bronze.run(3))
    assert follower.decode() == 2
    check(follower)
    assert len(follower.requests) == 2


@pytest.mark.slow
def test_a_killed_decode_and_the_next_one_are_followed_together(follower: Follower) -> None:
    """Records of the killed decode do not count for the limit of the quarantine again."""
    kill_before(follower, "index")
    assert follower.service.state().quarantine_behind
    follower.lake.bronze.run(3)
    follower.lake.broken = {4, 10}
    follower.decode()
    check(follower)
    assert follower.entries() == [(2, 0, 4), (4, 0, 10)]
    request = follower.requests[-1]
    assert (request.offsets, request.quarantined) == (at(2, (4, 5)) | at(4, (10, 11)), 2)


def test_the_entries_of_a_decode_are_the_files_of_its_decoder(follower: Follower) -> None:
    follower.decode()
    (file,) = DeltaTable(follower.index_uri).file_uris()
    assert "/plan-1-" in file
    assert len(follower.requests) == 1


@pytest.mark.slow
def test_a_decode_that_was_overtaken_follows_all_commits(follower: Follower) -> None:
    """The other decode is killed before its commit to the quarantine."""
    other = follower_of(follower.lake)
    follower.lake.broken = {4, 10}

    def overtake() -> None:
        follower.lake.bronze.run(3)
        kill_before(other, "index")

    once(follower, "index", overtake)
    follower.decode()
    check(follower)
    assert follower.entries() == [(2, 0, 4), (4, 0, 10)]


def test_a_decode_without_plans_decodes_no_entry_of_a_killed_decode(follower: Follower) -> None:
    kill_before(follower, "index")
    follower.requests.clear()
    assert follower.service.decode(DecodeWork()).rounds == 0
    assert (follower.requests, follower.entries()) == ([], [])


@pytest.mark.slow
def test_a_decode_looks_for_plans_after_those_that_wait(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of two plans are in an open replacement. A round first examines one plan."""
    monkeypatch.setattr(following, "_EXAMINED", 1)
    follower.decode()
    follower.clear()
    plan = follower.lake.bronze.commit_again((0, 0, 6))
    follower.decode()
    assert {number for number, _, _ in follower.typed_rows()} == {3}
    follower.lake.bronze.ingest.execute(plan.sequence)
    follower.decode()
    check(follower)


@pytest.mark.slow
def test_a_rejected_plan_leaves_the_pending_plans_of_the_bookmark(follower: Follower) -> None:
    follower.publish = PublishRule.CHECKED
    follower.lake.bronze.publication.release(1, "cli:ann:1", "checked by hand")
    follower.decode()
    follower.clear()
    follower.lake.bronze.publication.reject(1, "cli:ann:2", "wrong prices")
    assert follower.decode() == 1
    assert (follower.typed_rows(), bookmark_of(follower).pending) == ([], SpanSet())


@pytest.mark.slow
def test_a_decode_continues_after_a_chunk_of_schema_conflicts(follower: Follower) -> None:
    follower.most, follower.unreadable = 3, [1, 4]
    with pytest.raises(SchemaConflict) as stopped:
        follower.decode()
    assert stopped.value.offset == 1
    assert {plan for plan, _, _ in follower.typed_rows()} == {3}


@pytest.mark.slow
def test_a_decode_ends_with_more_waiting_plans_than_a_bookmark_lists(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decoded plan with a bad record is pending again, because runs are joined."""
    for module in (bookmark_module, decode_round):
        monkeypatch.setattr(module, "MAX_RUNS", 1)
    follower.lake.bronze.run(3)
    follower.lake.bronze.run(3)
    follower.unreadable, follower.lake.broken = [1, 7, 13], {4}
    with pytest.raises(SchemaConflict):
        follower.decode()
    assert {plan for plan, _, _ in follower.typed_rows()} == {2, 4}
    assert len(follower.requests) == 2
    follower.unreadable = ()
    follower.decode()
    check(follower)


def test_bookmarks_are_renewed_after_a_week(follower: Follower) -> None:
    follower.decode()
    uris = (follower.typed_uri, follower.index_uri)
    versions = [commits_of(uri) for uri in uris]
    assert follower.service.next() is None
    assert [commits_of(uri) for uri in uris] == versions
    follower.now = datetime.now(UTC) + timedelta(days=7)
    assert [follower.service.next() for _ in range(3)] == [None] * 3
    assert [commits_of(uri) for uri in uris] == [version + 1 for version in versions]
    for uri in uris:
        remove_old_commits(uri)
    assert not follower.service.state().quarantine_behind


def test_a_replay_of_more_ranges_than_a_bookmark_lists_continues(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each commit replays some of the ranges."""
    monkeypatch.setattr(following, "MAX_RUNS", 2)
    follower.lake.broken = {0, 2, 4, 6, 8}
    follower.decode()
    follower.lake.broken = {8}
    replayed = at(1, (0, 1), (2, 3)) | at(2, (4, 5)) | at(3, (6, 7), (8, 9))
    assert follower.decode(replayed) == 3
    check(follower)
    assert follower.entries() == [(3, 0, 8)]
    assert [request.offsets for request in follower.requests[1:]] == [
        at(1, (0, 1), (2, 3)),
        at(2, (4, 5)) | at(3, (6, 7)),
        at(3, (8, 9)),
    ]


def test_preparing_a_decode_does_the_work_without_records(follower: Follower) -> None:
    assert follower.service.prepare() == (Decoded(), True)
    follower.decode()
    assert follower.service.prepare() == (Decoded(), False)
    follower.lake.bronze.undo.undo(2, "ops", "wrong")
    done, needs_spark = follower.service.prepare()
    assert (done.removed, done.rounds, needs_spark) == (3, 1, False)
    assert {plan for plan, _, _ in follower.typed_rows()} == {1, 3}
    assert follower.entries() == []
    assert len(follower.requests) == 1


def test_preparing_a_replay_examines_all_of_its_ranges(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first ranges are of a plan that was undone after the last decode."""
    monkeypatch.setattr(following, "MAX_RUNS", 1)
    follower.lake.broken = {1, 4}
    follower.decode()
    follower.lake.bronze.undo.undo(1, "ops", "wrong")
    assert follower.service.prepare(at(1, (1, 2)) | at(2, (4, 5))).needs_spark
    assert follower.entries() == [(2, 0, 4)]
    assert not follower.service.prepare(at(1, (1, 2))).needs_spark


def test_a_draft_of_a_replay_writes_nothing(follower: Follower) -> None:
    """It omits offsets that a replay would not decode again."""
    service = follower.service
    assert service.draft(at(2, (4, 5))) is None
    follower.decode()
    versions = [commits_of(uri) for uri in (follower.typed_uri, follower.index_uri)]
    draft = service.draft(at(2, (4, 6)) | at(7, (4, 5)))
    assert draft is not None
    request, columns = draft
    assert (request.offsets, request.quarantined, columns) == (at(2, (4, 6)), 2, {})
    assert request.version == DeltaTable(follower.lake.bronze.uri).version()
    follower.lake.bronze.undo.undo(2, "ops", "wrong")
    assert service.draft(at(2, (4, 6))) is None
    assert [commits_of(uri) for uri in (follower.typed_uri, follower.index_uri)] == versions


def test_the_state_does_not_depend_on_the_bronze_table(follower: Follower) -> None:
    follower.decode()
    shutil.rmtree(follower.lake.bronze.uri)
    assert follower.service.state() == FollowState()
    with pytest.raises(HistoriesDiverge):
        follower.service.check()


@pytest.mark.slow
def test_progress_has_the_offsets_that_both_tables_should_have(follower: Follower) -> None:
    """Without a complete decode, it has none."""
    follower.publish = PublishRule.CHECKED
    publication = follower.lake.bronze.publication
    for plan in (1, 2):
        publication.release(plan, "cli:ann:1", "checked by hand")

    def spans(start: int, end: int) -> dict[str, dict[int, SpanSet]]:
        return {"id-1": {0: SpanSet.of([Span(start, end)])}}

    first = follower.service.progress()
    assert (first.landed, first.hidden) == (spans(0, 9), spans(6, 9))
    assert (first.decoded, first.plans, first.stale) == ({}, {}, {})
    assert (first.by_spec, first.unknown_spec) == (SpanSet(), EVERY_PLAN)
    kill_before(follower, "index")
    assert follower.service.progress().decoded == {}
    follower.decode()
    publication.reject(2, "cli:ann:2", "wrong prices")
    found = follower.service.progress()
    assert (found.decoded, found.hidden) == (spans(0, 6), spans(3, 9))
    assert (found.stale, found.by_spec) == (spans(3, 6), SpanSet.of([Span(1, 3)]))
    assert [found.plan_at("id-1", 0, offset) for offset in (2, 3, 6)] == [1, 2, None]
    follower.lake.bronze.commit_again((0, 0, 1))
    assert follower.service.progress().stale == {"id-1": {0: SpanSet.of([Span(0, 1), Span(3, 6)])}}
    follower.lake.decode = replace(follower.lake.decode, rules=(("new", "true"),))
    found = follower.service.progress()
    assert (found.by_spec, found.unknown_spec) == (SpanSet(), SpanSet())


def test_the_only_copy_of_a_row_is_not_cleared(follower: Follower) -> None:
    follower.decode()
    DeltaTable(follower.lake.bronze.uri).delete('"offset" = 1')
    for dry_run in (True, False):
        with pytest.raises(OnlyCopy, match="lacks 1 row that landed"):
            follower.service.from_scratch("ops", "a test", dry_run=dry_run)
    assert len(follower.typed_rows()) == 8


@pytest.mark.parametrize("damage", ["removed", "overwritten", "emptied", "replaced"])
def test_the_only_copy_of_rows_of_an_unreadable_file_is_not_cleared(
    follower: Follower, damage: str
) -> None:
    """The log of the bronze table still has these rows. Its other files can be read."""
    follower.decode()
    files = [Path(uri) for uri in DeltaTable(follower.lake.bronze.uri).file_uris()]
    match damage:
        case "removed":
            files[1].unlink()
        case "overwritten":
            files[1].write_bytes(b"x" * files[1].stat().st_size)
        case "emptied":
            files[1].write_bytes(b"")
        case "replaced":
            pq.write_table(pq.read_table(files[1])[:1], files[1])
    for dry_run in (True, False):
        with pytest.raises(OnlyCopy, match=f"{files[1].name}.*{follower.lake.bronze.uri}"):
            follower.service.from_scratch("ops", "a test", dry_run=dry_run)
    assert len(follower.typed_rows()) == 8


@pytest.mark.parametrize("table", ["typed", "index"])
def test_a_table_of_another_pipeline_is_not_changed(follower: Follower, table: str) -> None:
    follower.decode()
    DeltaTable(getattr(follower, f"{table}_uri")).alter.set_table_properties(
        {"tidemark.pipeline": "others@typed"}, raise_if_not_exists=False
    )
    uses: list[Callable[[], object]] = [follower.decode, follower.service.check]
    if table == "typed":
        uses += [follower.clear, follower.service.state]
    for use in uses:
        with pytest.raises(ForeignTable):
            use()
    assert len(follower.typed_rows()) == 8
    follower.lake.bronze.run(3)
    with pytest.raises(ForeignTable):
        follower.decode()
    assert len(follower.typed_rows()) == 8


@pytest.mark.slow
def test_state_reports_undecoded_offsets_and_those_to_withdraw(follower: Follower) -> None:
    """Without published records, no table is created."""
    service = follower.service
    whole = at(1, (0, 3)) | at(2, (3, 6)) | at(3, (6, 9))
    assert service.state() == FollowState(undecoded=whole)
    follower.publish = PublishRule.CHECKED
    assert (follower.service.state(), follower.service.next()) == (FollowState(), None)
    assert not Path(follower.typed_uri, "_delta_log").exists()
    follower.publish = PublishRule.ALWAYS
    follower.decode()
    assert service.state() == FollowState()
    follower.lake.bronze.undo.undo(2, "ops", "wrong")
    follower.lake.bronze.run(3)
    assert service.state() == FollowState(
        undecoded=at(4, (3, 6), (9, 12)), to_withdraw=at(2, (3, 6))
    )


@pytest.mark.slow
def test_rounds_decode_with_the_schemas_of_their_work(tmp_path: Path) -> None:
    """Plans with one conflict are resolved one by one. Rounds need no registry."""
    registry = MemoryRegistry({1: {"id": "integer"}, 2: {"note": "string"}, 9: {"id": "number"}})
    lake = RegisteredLake(tmp_path, registry=registry)
    for schema_id, value in ((1, {"id": 1}), (9, {"id": 2.5}), (2, {"note": "x"})):
        lake.land_objects(schema_id, value)
    follower = follower_of(lake)
    work = follower.service.next()
    assert work is not None
    assert (work.plans, work.schemas) == (SpanSet.of_numbers([1, 3]), {"value": (1, 2)})
    lake.registry = None
    follower.service.decode(work)
    assert follower.requests[0].schemas == {"value": (1, 2)}
    assert lake.rows() == {(0, 0): {"id": 1}, (0, 2): {"note": "x"}}
    lake.registry = registry
    with pytest.raises(SchemaConflict):
        follower.service.next()
    assert follower.service.state().undecoded == at(2, (1, 2))


@pytest.mark.slow
def test_rows_are_withdrawn_while_the_registry_is_unavailable(tmp_path: Path) -> None:
    lake = RegisteredLake(tmp_path)
    lake.land_objects(1, {"id": 1})
    follower = follower_of(lake)
    follower.decode()
    lake.bronze.undo.undo(1, "ops", "wrong")
    lake.land_objects(2, {"id": 1, "price": 0.5})
    lake.registry = UnavailableRegistry()
    with pytest.raises(RegistryUnavailable):
        follower.decode()
    assert follower.typed_rows() == []


# -- random histories ----------------------------------------------------------------------------


class RandomHistory:
    """Random changes of real tables, also between the steps of a decoder, and kills.

    Args:
        root: Folder of the tables.
        seed: Seed of all choices.
    """

    def __init__(self, root: Path, seed: int) -> None:
        self.chance = Random(seed)
        self.lake = TypedLake(root / "lake", broken={1, 4, 7, 11, 12, 20}, broken_in=(0, 1))
        self.follower = follower_of(self.lake)
        self.follower.publish = PublishRule.CHECKED
        self.follower.prepare()
        self.deleted: set[tuple[int, int, int]] = set()
        self.numbers = 0
        self.lake.bronze.run(3)

    def act(self, *, is_nested: bool = False) -> None:
        actions = {
            "land": 6,
            "decide": 6,
            "undo": 1,
            "replace": 2,
            "restore bronze": 0.5,
            "compact": 1,
            "delete": 0.5,
            "restore": 0.5,
            "fix": 1,
            "decode": 8 if not is_nested else 4,
            "replay": 1,
            "clear": 0.5,
        }
        name = self.chance.choices([*actions], [*actions.values()])[0]
        with suppress(TidemarkError, Killed):
            getattr(self, name.split()[0])(name)

    def plans(self) -> list[int]:
        records = self.lake.control.ledger("events").plans.values()
        return [each.plan.sequence for each in records if each.has_rows]

    def land(self, _: str) -> None:
        self.lake.bronze.run(self.chance.randint(1, 4), self.chance.randrange(2))

    def decide(self, _: str) -> None:
        publication, self.numbers = self.lake.bronze.publication, self.numbers + 1
        by = f"cli:ann:{self.numbers}"
        plan = self.chance.choice(self.plans() or [1])
        decision = publication.release if self.chance.random() < 0.8 else publication.reject
        decision(plan, by, "a test")

    def undo(self, _: str) -> None:
        self.lake.bronze.undo.undo(self.chance.choice(self.plans() or [1]), "ops", "wrong")

    def replace(self, _: str) -> None:
        start = self.chance.randrange(8)
        again = self.chance.choice((self.lake.bronze.land_again, self.lake.bronze.commit_again))
        with suppress(AssertionError):
            again((0, start, start + 2), requested_by=f"test {self.chance.random()}")

    def restore(self, name: str) -> None:
        of_bronze = name == "restore bronze"
        uri = self.lake.bronze.uri if of_bronze else self._derived()
        newest = DeltaTable(uri).version()
        if newest > 1:
            DeltaTable(uri).restore(self.chance.randint(max(0, newest - 3), newest - 1))
        if of_bronze and self.chance.random() < 0.7:
            self.repair()

    def repair(self) -> None:
        self.lake.bronze.repair.rewind("ops", "restored")

    def compact(self, _: str) -> None:
        DeltaTable(self._derived()).optimize.compact()

    def delete(self, _: str) -> None:
        rows = self.follower.typed_rows()
        if rows:
            plan, partition, offset = place = self.chance.choice(rows)
            condition = (
                f'plan_sequence = {plan} AND partition = {partition} AND "offset" = {offset}'
            )
            DeltaTable(self.follower.typed_uri).delete(condition)
            self.deleted.add(place)

    def fix(self, _: str) -> None:
        """Change the decoding rules."""
        self.lake.broken = set(self.chance.sample(range(22), 6))

    def _derived(self) -> str:
        return self.chance.choice((self.follower.typed_uri, self.follower.index_uri))

    def decode(self, _: str) -> None:
        self._decode({})

    def replay(self, _: str) -> None:
        entries = self.follower.entries()
        spans = {0: SpanSet.of([Span(0, 30)]), 1: SpanSet.of([Span(0, 30)])}
        self._decode({Batch(plan, "id-1"): spans for plan, _, _ in entries})

    def clear(self, _: str) -> None:
        decoder = self._decoder()
        decoder.clear()

    def _decode(self, replayed: BatchOffsets) -> None:
        try:
            self._decoder().decode(replayed)
        finally:
            self.check_no_doubles()

    def _decoder(self) -> Follower:
        decoder, nested = follower_of(self.lake), 2

        def pause(_: str) -> None:
            nonlocal nested
            if nested and self.chance.random() < 0.3:
                nested -= 1
                self.act(is_nested=True)
            if self.chance.random() < 0.05:
                raise Killed

        decoder.pause = pause
        decoder.publish, decoder.most = PublishRule.CHECKED, self.chance.choice((3, 6, 100))
        if self.chance.random() < 0.2:
            decoder.unreadable = [self.chance.randrange(12)]
        return decoder

    def check_no_doubles(self) -> None:
        rows = self.follower.typed_rows()
        places = [place[1:] for place in rows]
        assert len(set(places)) == len(places), sorted(places)

    def settle(self) -> None:
        """Finish open work as an operator does, and decode."""
        with suppress(TidemarkError):
            self.repair()
        for record in self.lake.control.ledger("events").open_plans():
            self.lake.bronze.ingest.execute(record.plan.sequence)
        for record in self.lake.control.ledger("events").plans.values():
            if record.undoing:
                self.lake.bronze.undo.undo(record.plan.sequence, "ops", "wrong")
        self.follower.decode()
        typed, entries = set(self.follower.typed_rows()), set(self.follower.entries())
        plans = self.lake.control.ledger("events").plans.values()
        rows = self.lake.bronze_rows()
        bronze = {(row["plan_sequence"], row["partition"], row["offset"]) for row in rows}
        published = {
            place for place in bronze if is_in(place, required(plans, PublishRule.CHECKED))
        }
        may_stay = allowed(plans, PublishRule.CHECKED)
        assert published - self.deleted <= typed | entries
        assert not typed & entries
        assert all(is_in(place, may_stay) for place in typed)
        assert entries <= published
        self.check_no_doubles()


def is_in(place: tuple[int, int, int], offsets: BatchOffsets) -> bool:
    plan, partition, offset = place
    return offset in offsets.get(Batch(plan, "id-1"), {}).get(partition, SpanSet())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_random_histories_end_with_each_published_record_in_one_table(
    tmp_path: Path, seed: int
) -> None:
    history = RandomHistory(tmp_path, seed)
    for _ in range(4):
        for _ in range(12):
            history.act()
        history.settle()
