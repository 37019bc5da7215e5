"""Tests of the quarantine as an index that follows the typed table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from tidemark.core.bookmark import Bookmark, OffsetList
from tidemark.core.datafile import DataFile, plan_folder
from tidemark.core.following import Batch, BatchOffsets
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.publication import PublishRule
from tidemark.delta.errors import ForeignTable, TableConflict
from tidemark.delta.noted_commits import NotedTable, NotedVersion, RowChange
from tidemark.silver.typed.columns import INDEX_SCHEMA
from tidemark.silver.typed.quarantine_index import OpenedIndex, QuarantineIndex
from tidemark.silver.typed.quarantine_record import QuarantinedRecord
from tidemark.spec.decode import Part, QuarantineReason

PLACE = pa.schema(
    [
        ("plan_sequence", pa.int64()),
        ("topic_id", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
    ]
)


def places(*offsets: int, plan: int = 1) -> BatchOffsets:
    return {Batch(plan, "id-1"): {0: SpanSet.of_numbers(offsets)}}


def rows(*offsets: int) -> list[pa.RecordBatch]:
    found = [{"plan_sequence": 1, "topic_id": "id-1", "partition": 0, "offset": o} for o in offsets]
    return pa.Table.from_pylist(found, PLACE).to_batches()


class Tables:
    """A bronze table with offsets 0 to 9 of plan 1, a typed table, and a quarantine."""

    def __init__(self, root: Path) -> None:
        self.bronze, self.typed, self.index = (str(root / each) for each in ("b", "t", "q"))
        for uri in (self.bronze, self.typed):
            write_deltalake(uri, pa.Table.from_pylist([], PLACE))
        QuarantineIndex(self.index).prepare("events@typed")
        whole = RowChange(added=places(*range(10)), rows=rows(*range(10)))
        version(self.bronze).commit("bronze", whole)

    def decode(
        self,
        *typed: int,
        decoded: OffsetList | None,
        changes: bool = True,
    ) -> None:
        """Commit typed rows, with a bookmark."""
        bookmark = Bookmark(
            event=1,
            digest="d",
            publish=PublishRule.CHECKED,
            pending=SpanSet(),
            decoded=decoded,
            removed=None,
            changes_quarantine=changes,
        )
        change = RowChange(added=places(*typed), rows=rows(*typed)) if typed else RowChange()
        version(self.typed).commit(bookmark.as_metadata(), change)

    def opened(self) -> OpenedIndex:
        found = QuarantineIndex(self.index).open()
        assert found is not None
        return found

    def follow(self, claims: BatchOffsets, reason: str = "not_json") -> None:
        """Let the quarantine follow."""
        index, typed = self.opened(), version(self.typed)

        def entries_at(offsets: BatchOffsets) -> Sequence[QuarantinedRecord]:
            return [
                QuarantinedRecord(
                    topic_id=batch.topic_id,
                    partition=0,
                    offset=offset,
                    plan=batch.sequence,
                    reason=QuarantineReason(reason),
                )
                for batch, spans in offsets.items()
                for span in spans[0]
                for offset in range(span.start, span.end)
            ]

        found = index.differences(typed, index.changes(typed), claims, version(self.bronze))
        index.follow(typed, found, entries_at(found.lacking))

    def entries(self) -> Mapping[int, str]:
        """Return the reasons of all entries by offset."""
        found: list[dict[str, Any]] = pa.table(DeltaTable(self.index).scan()).to_pylist()
        assert len({row["offset"] for row in found}) == len(found)
        return {row["offset"]: row["reason"] for row in found}


def version(uri: str) -> NotedVersion:
    found = NotedTable(uri, "bookmark").open()
    assert found is not None
    return found


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables(tmp_path)


WHOLE = OffsetList(plans=SpanSet.of_numbers([1]))
CLAIMS = places(*range(10))


def test_an_entry_is_a_claimed_bronze_record_that_the_typed_table_lacks(tables: Tables) -> None:
    """The bronze table lacks offset 12, and the typed table does not claim offset 5."""
    tables.decode(0, 1, 2, 3, decoded=WHOLE)
    tables.follow(places(*(n for n in range(13) if n != 5)))
    assert [*tables.entries()] == [4, 6, 7, 8, 9]
    assert tables.opened().changes(version(tables.typed)) == []


def test_a_replay_rewrites_the_entries_at_its_offsets_alone(tables: Tables) -> None:
    tables.decode(*range(7), decoded=WHOLE)
    tables.follow(CLAIMS)
    replayed = OffsetList(spans={"id-1": {0: SpanSet.of([Span(8, 10)])}})
    tables.decode(9, decoded=replayed)
    assert tables.opened().plans(tables.opened().changes(version(tables.typed))) is None
    tables.follow(CLAIMS, reason="rule_broken")
    assert tables.entries() == {7: "not_json", 8: "rule_broken"}


def test_entries_that_are_no_longer_claimed_are_removed(tables: Tables) -> None:
    tables.decode(*range(7), decoded=WHOLE)
    tables.follow(CLAIMS)
    tables.decode(decoded=OffsetList())
    index = tables.opened()
    assert index.plans(index.changes(version(tables.typed))) == SpanSet.of_numbers([1])
    tables.follow(places(8, 20))
    assert [*tables.entries()] == [8]


def test_commits_that_announce_no_change_are_not_followed(tables: Tables) -> None:
    tables.decode(*range(9), decoded=WHOLE)
    tables.follow(CLAIMS)
    tables.decode(decoded=OffsetList(), changes=False)
    DeltaTable(tables.typed).delete('"offset" = 3')
    assert tables.opened().changes(version(tables.typed)) == []


@pytest.mark.parametrize("change", ["first", "restored", "deleted", "other program", "unlisted"])
def test_all_claimed_offsets_are_compared_if_the_changes_are_unknown(
    tables: Tables, change: str
) -> None:
    """Known entries keep their reasons."""
    tables.decode(*range(7), decoded=None if change == "unlisted" else WHOLE)
    if change not in ("first", "unlisted"):
        tables.follow(CLAIMS, reason="malformed")
    match change:
        case "restored":
            DeltaTable(tables.index).restore(0)
        case "deleted":
            DeltaTable(tables.index).delete('"offset" = 8')
        case "other program":
            noted = NotedTable(tables.index, "followed").open()
            assert noted is not None
            noted.commit("a text", RowChange())
    changes = tables.opened().changes(version(tables.typed))
    assert tables.opened().plans(changes) is None
    tables.follow(CLAIMS, reason="not_utf8")
    kept = {"deleted": {7, 9}, "other program": {7, 8, 9}}.get(change, set())
    assert tables.entries() == {n: "malformed" if n in kept else "not_utf8" for n in (7, 8, 9)}


def test_without_a_known_bookmark_of_the_typed_table_nothing_is_followed(tables: Tables) -> None:
    assert tables.opened().changes(version(tables.typed)) == []
    tables.decode(1, decoded=WHOLE)
    DeltaTable(tables.typed).restore(0)
    assert tables.opened().changes(version(tables.typed)) == []


def test_a_late_commit_to_the_quarantine_is_refused(tables: Tables) -> None:
    """The other decoder has followed a later version of the typed table."""
    tables.decode(*range(7), decoded=WHOLE)
    late, typed = tables.opened(), version(tables.typed)
    tables.decode(8, decoded=WHOLE)
    tables.follow(CLAIMS)
    with pytest.raises(TableConflict):
        late.follow(typed, late.differences(typed, None, CLAIMS, version(tables.bronze)))
    assert [*tables.entries()] == [7, 9]


def test_the_entries_of_one_commit_are_added_as_files(tables: Tables) -> None:
    """Entries at its offsets are replaced. Entries that are no longer claimed are removed."""
    tables.decode(*range(6), decoded=WHOLE)
    tables.follow(CLAIMS, reason="malformed")
    index, decoded = tables.opened(), places(7, 8, 9)
    entry = QuarantinedRecord(
        topic_id="id-1", partition=0, offset=8, plan=1, reason=QuarantineReason.MALFORMED
    )
    name = f"{plan_folder(1, uuid4())}.parquet"
    rows_of_entry = pa.Table.from_pylist([entry.as_row()], pa.schema(INDEX_SCHEMA.to_arrow()))
    pq.write_table(rows_of_entry, Path(tables.index, name))
    file = DataFile(
        path=name,
        size=Path(tables.index, name).stat().st_size,
        modified_ms=0,
        partition=0,
        records=1,
        first=8,
        last=8,
        earliest_ms=None,
        latest_ms=None,
    )
    assert QuarantineIndex(tables.index).entries_in([file]) == [entry]
    tables.decode(decoded=OffsetList(spans={"id-1": {0: SpanSet.of([Span(7, 10)])}}))
    typed, change = version(tables.typed), index.own_change(decoded, places(*range(7, 10)))
    index.follow(typed, change, files=[file])
    assert tables.entries() == {8: "malformed"}
    assert tables.opened().changes(typed) == []


def test_a_quarantine_that_does_not_exist_has_no_version(tmp_path: Path) -> None:
    assert QuarantineIndex(str(tmp_path / "none")).open() is None


def write(uri: str, *entries: QuarantinedRecord) -> None:
    """Append entries without a note."""
    found = pa.Table.from_pylist(
        [each.as_row() for each in entries], pa.schema(INDEX_SCHEMA.to_arrow())
    )
    write_deltalake(uri, found, mode="append")


def entry(
    offset: int, partition: int = 0, topic_id: str = "id-1", **other: Any
) -> QuarantinedRecord:
    own = {"plan": 1, "reason": QuarantineReason.NOT_JSON, "part": Part.VALUE, **other}
    return QuarantinedRecord(topic_id=topic_id, partition=partition, offset=offset, **own)


def test_a_quarantine_without_a_table_or_without_entries_is_empty(tmp_path: Path) -> None:
    index = QuarantineIndex(str(tmp_path / "q"))
    assert index.open() is None
    for _ in ("no table", "no entries"):
        assert (index.count(), index.records(), index.records_at("id-1", 0, Span(0, 9))) == (
            *(0, [], []),
        )
        assert (index.reasons(9), index.spans("id-1", 9)) == ({}, {})
        index.prepare("events@typed")


def test_a_prepared_quarantine_has_file_statistics_of_its_own_columns(tmp_path: Path) -> None:
    """Preparing it again changes nothing. Another pipeline cannot use it."""
    index = QuarantineIndex(str(tmp_path))
    for _ in range(2):
        index.prepare("events@typed")
    table = DeltaTable(tmp_path)
    assert (table.version(), table.schema()) == (0, INDEX_SCHEMA)
    write(str(tmp_path), entry(7, plan=3))
    table.update_incremental()
    (file,) = table.get_add_actions(flatten=True).to_struct_array().to_pylist()
    measured = {name: each for name, each in file.items() if name.startswith("min.")}
    assert measured == {"min.partition": 0, "min.offset": 7, "min.plan_sequence": 3}
    with pytest.raises(ForeignTable):
        index.prepare("prices@typed")


def test_the_entries_are_counted_and_listed_by_place_and_reason(tmp_path: Path) -> None:
    """The records of a replaced topic have an own incarnation."""
    index = QuarantineIndex(str(tmp_path))
    index.prepare("events@typed")
    broken: dict[str, Any] = {
        "reason": QuarantineReason.RULE_BROKEN,
        "part": None,
        "detail": "small",
        "schema_id": 4,
    }
    write(str(tmp_path), entry(9, **broken), entry(8, 1), entry(7), entry(5, topic_id="id-0"))
    write(str(tmp_path), entry(8, plan=2))
    assert index.count() == 5
    first, *others = index.records()
    assert (first.topic_id, first.offset, first.reason, first.part) == (
        *("id-0", 5),
        *(QuarantineReason.NOT_JSON, Part.VALUE),
    )
    assert [(each.partition, each.offset) for each in others] == [(0, 7), (0, 8), (0, 9), (1, 8)]
    assert index.records(most=2) == [first, others[0]]
    second, third = index.records_at("id-1", 0, Span(8, 10))
    assert (second.plan, second.detail, second.schema_id) == (2, None, None)
    assert (third.reason, third.part) == (QuarantineReason.RULE_BROKEN, None)
    assert (third.detail, third.schema_id) == ("small", 4)
    counts = {("not_json", "value", None): 4, ("rule_broken", None, "small"): 1}
    assert [*index.reasons(9).items()] == [*counts.items()]
    assert [*index.reasons(1)] == [("not_json", "value", None)]
    assert index.spans("id-1", 9) == {0: SpanSet.of([Span(7, 10)]), 1: SpanSet.of([Span(8, 9)])}
    assert index.spans("id-1", 9, (0, Span(9, 20))) == {0: SpanSet.of([Span(9, 10)])}
    assert index.spans("id-1", 1) is None
