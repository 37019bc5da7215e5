"""A prototype of decision 28: a typed table and a quarantine that follow the ledger.

Work in progress: the rounds are those of `core/decode_round.py`, and the tables are real. The
package has the protocol of decision 17 until this code replaces it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from tests.support.typed_lake import TypedLake
from tidemark.bronze.ingest.ledgers import read_checked_ledger
from tidemark.core.bookmark import Bookmark
from tidemark.core.datafile import DataFile
from tidemark.core.decode_round import DecodeRound, cleared_bookmark
from tidemark.core.following import (
    Batch,
    BatchOffsets,
    claimed,
    difference,
    intersection,
    read_all,
    read_since,
    union,
)
from tidemark.core.ledger import Ledger
from tidemark.core.offsets import Span, SpanSet, size_of
from tidemark.core.publication import PublishRule
from tidemark.core.table_state import newest_table_version
from tidemark.delta.errors import ControlConflict, TableConflict
from tidemark.delta.noted_commits import NotedTable, NotedVersion, RowChange
from tidemark.silver.typed.columns import INDEX_SCHEMA, typed_schema
from tidemark.silver.typed.quarantine_index import (
    OpenedIndex,
    QuarantineEntry,
    QuarantineIndex,
)

LACKS = "the typed table lacks it"
"""Reason of a record that can be decoded by now, after a decoder was killed between two commits."""


@dataclass
class Follower:
    """Decodes one pipeline in the new protocol.

    Attributes:
        lake: The bronze table, the ledger, and the decoder.
        decoder: Decodes with or without Spark.
        publish: Which landed offsets are decoded.
        most: Maximum number of offsets of a round.
        unreadable: Offsets of records whose schemas are unknown.
        pause: Called with the name of each step before it.
        compared: Number of comparisons.
    """

    lake: TypedLake
    decoder: Any
    publish: PublishRule = PublishRule.ALWAYS
    most: int = 1_000
    unreadable: Collection[int] = ()
    pause: Callable[[str], None] = lambda _: None
    compared: int = 0

    @property
    def typed_uri(self) -> str:
        return str(self.lake.typed_uri)

    @property
    def index_uri(self) -> str:
        return str(self.lake.quarantine_uri)

    def prepare(self) -> None:
        for uri, schema in (
            (self.typed_uri, typed_schema(self.lake.decode)),
            (self.index_uri, INDEX_SCHEMA),
        ):
            Path(uri).mkdir(parents=True, exist_ok=True)
            DeltaTable.create(uri, schema, mode="ignore")

    def decode(self, replayed: BatchOffsets | None = None) -> int:
        """Make rounds until nothing is left; return their number."""
        self.prepare()
        rounds = conflicts = 0
        while rounds < 100:
            try:
                if not self.round(replayed):
                    return rounds
            except (ControlConflict, TableConflict):
                conflicts += 1
                if conflicts > 5:
                    raise
                continue
            replayed = None
            rounds += 1
        raise AssertionError("a decode does not end")

    def clear(self) -> None:
        """Remove all typed rows; the next decode decodes all plans."""
        self.prepare()
        typed = self._open_typed()
        read_checked_ledger(self.lake.control, "events", self.lake.bronze.table, rows=True)
        self.pause("clear")
        bookmark = cleared_bookmark(read_all(self.lake.control, "events"), self.publish)
        if bookmark is not None:
            typed.commit(bookmark.as_metadata(), RowChange(removed=typed.offsets()))

    # -- one round -------------------------------------------------------------------------------

    def round(self, replayed: BatchOffsets | None = None) -> bool:
        """Make one round; return False if there was nothing to do."""
        # 1. Each table before its source, the ledger last.
        index, typed = QuarantineIndex(self.index_uri).open(), self._open_typed()
        assert index is not None
        bronze = DeltaTable(self.lake.bronze.uri)
        self.pause("ledger")
        control = self.lake.control
        ledger = read_checked_ledger(control, "events", self.lake.bronze.table, rows=True)
        if newest_table_version(ledger) > bronze.version():
            bronze = DeltaTable(self.lake.bronze.uri)
        # 2. The bookmark.
        step = self._step(typed, replayed)
        if step.found.event != ledger.event_number:
            raise ControlConflict(pipeline="events", event_number=0)
        # 3. Whole plans.
        decoded = step.chosen(self._waiting(step, ledger, bronze), self.most)
        again = step.replayed(replayed or {}, decoded)
        # 4. Decode.
        open_entries = intersection(index.version.offsets(again), again)
        quarantined = sum(map(size_of, open_entries.values()))
        files, bad = self._decode(union([decoded, again]), bronze, quarantined)
        bookmark = step.bookmark(decoded, again, has_failed=bool(bad))
        if bookmark is None:
            return self._index(index, typed, bronze, {})
        # 5. Commit, if no visible event has come.
        self.pause("commit")
        newest = read_since(control, "events", bookmark, self.publish)
        if newest is None or newest.is_visible:
            raise ControlConflict(pipeline="events", event_number=0)
        removed = union([step.surplus, again])
        added = union([decoded, again])
        typed.commit(bookmark.as_metadata(), RowChange(removed=removed, added=added, files=files))
        # 6. The quarantine follows.
        self.pause("index")
        self._index(index, self._open_typed(), bronze, bad)
        return True

    def _open_typed(self) -> NotedVersion:
        found = NotedTable(self.typed_uri, "bookmark").open()
        assert found is not None
        return found

    def _step(self, typed: NotedVersion, replayed: BatchOffsets | None) -> DecodeRound:
        control = self.lake.control
        earlier = Bookmark.from_metadata(typed.newest_note(over_deletions=True))
        if earlier is not None:
            plans = SpanSet.of_numbers(batch.sequence for batch in replayed or ())
            examined = earlier.pending.first(100).union(plans)
            found = read_since(control, "events", earlier, self.publish, examined)
            if found is not None:
                missing = found.missing(earlier, self.publish)
                present = typed.offsets(missing)
                return DecodeRound.since(found, earlier, self.publish, present, examined)
        self.compared += 1
        found = read_all(control, "events")
        return DecodeRound.compared(found, self.publish, typed.offsets())

    def _waiting(self, step: DecodeRound, ledger: Ledger, bronze: DeltaTable) -> set[int]:
        """Return plans with unknown schemas, or whose rows an open replacement has taken."""
        waiting = {
            batch.sequence
            for batch, spans in step.missing.items()
            if any(offset in some for some in spans.values() for offset in self.unreadable)
        }
        for record in ledger.open_plans():
            if not record.plan.replaces:
                continue
            taken = {
                batch: record.plan.spans()
                for batch in step.missing
                if batch.topic_id == record.plan.topic_id
            }
            overlap = intersection(step.missing, taken)
            there = self._bronze(bronze).offsets(overlap)
            waiting |= {batch.sequence for batch in difference(overlap, there)}
        return waiting

    @staticmethod
    def _bronze(version: DeltaTable) -> NotedVersion:
        return NotedVersion(version.table_uri, "", version)

    def _decode(
        self, wanted: BatchOffsets, bronze: DeltaTable, quarantined: int = 0
    ) -> tuple[list[DataFile], dict[tuple[Batch, int, int], QuarantineEntry]]:
        """Decode some offsets of one version of the bronze table."""
        from tidemark.silver.typed.spark_decoder import DecodeRequest

        here = self._bronze(bronze).offsets(wanted)
        if not here:
            return [], {}
        request = DecodeRequest(
            pipeline="events@typed",
            version=bronze.version(),
            offsets=here,
            schemas={},
            oversized={},
            quarantined=quarantined,
        )
        files, bad = [], {}
        for file in self.decoder.decode(request):
            if not file.quarantined:
                files.append(file)
                continue
            for row in pq.read_table(Path(self.index_uri, file.path)).to_pylist():
                batch = Batch(row["plan_sequence"], row["topic_id"])
                bad[batch, row["partition"], row["offset"]] = QuarantineEntry(**row)
        return files, bad

    # -- the quarantine --------------------------------------------------------------------------

    def _index(
        self,
        index: OpenedIndex,
        typed: NotedVersion,
        bronze: DeltaTable,
        bad: Mapping[tuple[Batch, int, int], QuarantineEntry],
    ) -> bool:
        """Let the quarantine follow the typed table; return whether there was a commit."""
        changes = index.changes(typed)
        last = Bookmark.from_metadata(typed.newest_note(over_deletions=True))
        if changes == [] or last is None:
            return False
        plans = index.plans(changes)
        if plans is None:
            newest = self.lake.control.summary("events").last_sequence
            plans = SpanSet.of([Span(1, newest + 1)])
        found = read_since(self.lake.control, "events", last, last.publish, plans)
        if found is None:
            raise ControlConflict(pipeline="events", event_number=0)
        claims = claimed(found.before.values(), last)

        def entries_at(offsets: BatchOffsets) -> list[QuarantineEntry]:
            """Records of a killed decoder are decoded again for their reasons."""
            places = places_of(offsets)
            known = dict(bad)
            if any(place not in known for place in places):
                known = {**self._decode(offsets, bronze)[1], **known}
            return [known.get(place) or _lacked(*place) for place in places]

        index.follow(typed, changes, claims, self._bronze(bronze), entries_at)
        return True

    # -- what the tables have --------------------------------------------------------------------

    def typed_rows(self) -> list[tuple[int, int, int]]:
        """Return bronze plan, partition and offset of each typed row."""
        return self._places(self.typed_uri)

    def entries(self) -> list[tuple[int, int, int]]:
        """Return bronze plan, partition and offset of each entry."""
        return self._places(self.index_uri)

    @staticmethod
    def _places(uri: str) -> list[tuple[int, int, int]]:
        rows = pa.table(DeltaTable(uri).scan()).to_pylist()
        return sorted((row["plan_sequence"], row["partition"], row["offset"]) for row in rows)


def places_of(offsets: BatchOffsets) -> list[tuple[Batch, int, int]]:
    return [
        (batch, partition, offset)
        for batch, spans in sorted(offsets.items())
        for partition, some in sorted(spans.items())
        for span in some
        for offset in range(span.start, span.end)
    ]


def _lacked(batch: Batch, partition: int, offset: int) -> QuarantineEntry:
    return QuarantineEntry(
        topic_id=batch.topic_id,
        plan_sequence=batch.sequence,
        partition=partition,
        offset=offset,
        reason=LACKS,
    )
