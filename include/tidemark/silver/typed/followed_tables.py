"""The tables of a decode: how far the typed table and the quarantine have followed the ledger.

The protocol is in docs/adr/0028-derived-tables-follow-the-ledger.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from tidemark.bronze.ingest.ledgers import read_checked_ledger
from tidemark.bronze.ingest.protocols import Clock, ControlReader, DataLog
from tidemark.core.bookmark import Bookmark
from tidemark.core.datafile import DataFile
from tidemark.core.decode_round import DecodeRound
from tidemark.core.decode_work import EVERY_PLAN, DecodeRequest
from tidemark.core.following import (
    Batch,
    BatchOffsets,
    PlansSince,
    allowed,
    by_topic_id,
    claimed,
    compared_totals,
    listed_part,
    read_all,
    read_since,
    required,
)
from tidemark.core.ledger import CheckedLedger
from tidemark.core.offsets import SpanSet, difference, intersection, union
from tidemark.core.publication import PublishRule
from tidemark.delta.errors import ControlConflict
from tidemark.delta.noted_commits import NotedTable, NotedVersion
from tidemark.silver.typed.errors import SchemaConflict, SpecOutdated
from tidemark.silver.typed.quarantine_index import EntryChange, OpenedIndex, QuarantineIndex
from tidemark.silver.typed.schemas import ResolvedSchemas
from tidemark.silver.typed.state import DecodeProgress, FollowState
from tidemark.spec.decode import Part
from tidemark.spec.fields import FieldType

log = logging.getLogger(__name__)

NOTE = "bookmark"
"""Name of the bookmarks in the metadata of commits to a typed table."""


class Decoder(Protocol):
    """Decodes rows of the bronze table."""

    def decode(self, request: DecodeRequest) -> Sequence[DataFile]:
        """Return new files in the folders of the typed table and the quarantine.

        Raises:
            TooManyQuarantined: More records fail than the spec allows.
        """
        ...


class PlanSchemas(Protocol):
    """Resolves the schema ids of records."""

    def fetch(self, offsets: BatchOffsets) -> None:
        """See `SchemaResolver.fetch`."""
        ...

    def resolve_plans(
        self, offsets: BatchOffsets
    ) -> tuple[ResolvedSchemas, Mapping[int, SchemaConflict]]:
        """See `SchemaResolver.resolve_plans`."""
        ...


@dataclass(frozen=True, kw_only=True)
class FollowPorts:
    """The ports of a typed table that follows its bronze table.

    Attributes:
        control: The control table.
        bronze: The log of the bronze table.
        bronze_rows: The rows of the bronze table.
        typed: The typed table, with its owner.
        index: The quarantine.
        prepare: Creates both tables if they are missing, and adds columns to the typed table.
        check: Raises the error of `prepare` for tables that exist. Writes nothing.
        schemas: Resolves the schema ids of records.
        open_decoder: Returns the decoder of rows, which needs Spark.
        now: The clock.
    """

    control: ControlReader
    bronze: DataLog
    bronze_rows: NotedTable
    typed: NotedTable
    index: QuarantineIndex
    prepare: Callable[[Mapping[Part, FieldType]], None]
    check: Callable[[], None]
    schemas: PlanSchemas
    open_decoder: Callable[[], Decoder]
    now: Clock


class OpenedTables(NamedTuple):
    """The tables of a round. Each was opened before its source, and the ledger was read last.

    Attributes:
        quarantine, typed, bronze, ledger: The tables.
        earlier: The newest bookmark of the typed table; None if it is unknown.
        noted: As in `DecodeRound`.
    """

    quarantine: OpenedIndex
    typed: NotedVersion
    bronze: NotedVersion
    ledger: CheckedLedger
    earlier: Bookmark | None
    noted: Bookmark | None


class Look(NamedTuple):
    """The state of the tables at the beginning of a round.

    Attributes:
        tables: The opened tables.
        step: The differences of the typed table from the ledger.
        chosen: The offsets of the plans that the round decodes.
        changes: The changes that the quarantine has to follow; see `OpenedIndex.changes`.
        is_first: Whether the typed table has neither a bookmark nor rows.
    """

    tables: OpenedTables
    step: DecodeRound
    chosen: BatchOffsets
    changes: Sequence[Bookmark] | None
    is_first: bool

    @property
    def is_followed(self) -> bool:
        """Whether the quarantine has followed the typed table."""
        return self.is_first if self.step.earlier is None else self.changes == []


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedTables:
    """Opens the tables of a decode, and compares them with the ledger.

    Attributes:
        pipeline: The bronze pipeline.
        publish: The rule by which landed offsets are decoded.
        spec: Fingerprint of the spec by which records are decoded.
        most: Maximum number of offsets of a round.
        examined: Maximum number of pending plans that a round examines first. If all of them have
            to wait, it examines more.
        ports: The ports of the typed table.
    """

    pipeline: str
    publish: PublishRule
    spec: str
    most: int
    examined: int
    ports: FollowPorts

    def required(self) -> BatchOffsets:
        """Return all offsets that belong in the typed table or the quarantine."""
        return required(read_all(self.ports.control, self.pipeline).now.values(), self.publish)

    def open(self) -> OpenedTables | None:
        """Open the tables; None if one is missing.

        Raises:
            SpecOutdated: The typed table was decoded from scratch with another spec since it was
                decoded with this one.
            ForeignTable: The typed table belongs to another pipeline.
            HistoriesDiverge: The bronze table and the control table diverge.
            DuplicateRows: The bronze table has more rows than landed in it.
            ControlConflict: The bronze table has changed meanwhile.
        """
        ports = self.ports
        # Opened before their sources: a later look at a source shows at least what they contain.
        index, typed, bronze = ports.index.open(), ports.typed.open(), ports.bronze_rows.open()
        earlier = noted = bookmark_of(typed) if typed else None
        if typed and earlier is None:  # fence: lists-of-specs-outlive-other-changes
            noted = bookmark_of(typed, over_changes=True)
        # The table has the columns of a newer spec. This one would add its own again.
        # fence: decode-with-a-replaced-spec-begins-nothing
        if noted is not None and self.spec in noted.replaced_specs:
            raise SpecOutdated(pipeline=self.pipeline)
        ledger = read_checked_ledger(
            ports.control,
            self.pipeline,
            ports.bronze,
            rows=True,  # fence: doubled-bronze-rows-are-not-decoded
        )
        if index is None or typed is None or bronze is None:
            return None
        newest = ports.bronze_rows.open()
        # The version that is decoded is then the one that was compared with the ledger.
        # fence: decoded-bronze-table-is-the-compared-one
        if newest is None or newest.ref != bronze.ref:
            raise ControlConflict(pipeline=self.pipeline, event_number=ledger.event_number)
        return OpenedTables(index, typed, bronze, ledger, earlier, noted)

    def look(self, plans: SpanSet, replayed: BatchOffsets) -> Look | None:
        """Open the tables, compare them with the ledger, and choose the plans of a round.

        Args:
            plans: Numbers of the plans to choose from. If there are none, the round examines all
                pending plans: those that are not required stop pending.
            replayed: Offsets to decode again.

        Returns:
            None if a table is missing.

        Raises:
            ControlConflict: Another process has recorded events meanwhile.
            SpecOutdated, ForeignTable, HistoriesDiverge, DuplicateRows: As for `open`.
        """
        tables = self.open()
        if tables is None:
            return None
        earlier = tables.earlier
        pending = earlier.pending if earlier else SpanSet()
        if plans:
            pending = pending.intersection(plans)
        some = pending.first(self.examined)
        wanted = some.union(SpanSet.of_numbers({batch.sequence for batch in replayed}))
        found = self.plans_since(earlier, self.publish, wanted) if earlier else None
        is_first = False
        if earlier is None or found is None:
            found = read_all(self.ports.control, self.pipeline)
            present = self._present(tables, found)
            step = DecodeRound.compared(found, self.publish, present, self.spec, tables.noted)
            is_first = not present
        else:
            missing = found.missing(earlier, self.publish)
            outdated = found.outdated(earlier, self.publish)
            present = tables.typed.offsets(union([missing, outdated]))
            step = DecodeRound.since(found, earlier, self.publish, present, wanted, self.spec)
        if found.event != tables.ledger.event_number:  # fence: one-ledger-for-one-round
            raise ControlConflict(pipeline=self.pipeline, event_number=found.event)
        others = {each.sequence for each in step.missing if each.sequence not in plans}
        chosen = step.chosen(others | self._replaced(tables, step.missing), self.most)
        # fence: decode-examines-plans-after-waiting-ones
        if not chosen and some != pending:
            return replace(self, examined=10 * self.examined).look(plans, replayed)
        return Look(tables, step, chosen, tables.quarantine.changes(tables.typed), is_first)

    def state(self) -> FollowState:
        """Return how far both tables have followed the ledger. Does not read the bronze table.

        Raises:
            ForeignTable: The typed table belongs to another pipeline.
        """
        ports = self.ports
        # In the order of `open`.
        index, typed = ports.index.open(), ports.typed.open()
        if typed is None:
            return FollowState(undecoded=self.required())
        earlier = bookmark_of(typed)
        found = self.plans_since(earlier, self.publish, earlier.pending) if earlier else None
        if earlier is None or found is None:
            found, present = read_all(ports.control, self.pipeline), typed.offsets()
            missing = difference(required(found.now.values(), self.publish), present)
            return FollowState(
                # A comparison decodes records in quarantine again. They are not undecoded.
                undecoded=difference(missing, index.version.offsets() if index else {}),
                to_withdraw=difference(present, allowed(found.now.values(), self.publish)),
                quarantine_behind=bool(present),
            )
        missing = found.missing(earlier, self.publish)
        outdated = found.outdated(earlier, self.publish)
        surplus = union([found.surplus(earlier, self.publish), outdated])
        # Plans that were refused before any decode have no rows.
        found_in = [each.offsets(surplus) for each in (typed, index and index.version) if each]
        return FollowState(
            undecoded=difference(missing, typed.offsets(missing)),
            to_withdraw=union(found_in),
            quarantine_behind=index is None or index.changes(typed) != [],
        )

    def progress(self) -> DecodeProgress:
        """Return which offsets both tables should have. See `Decodes.progress`."""
        ports = self.ports
        index, typed = ports.index.open(), ports.typed.open()
        # A comparison reports duplicate rows itself.
        ledger = read_checked_ledger(ports.control, self.pipeline, ports.bronze)
        # A comparison finds what other programs have changed since the last decode.
        earlier = bookmark_of(typed, over_changes=True) if typed else None
        found = self.plans_since(earlier, self.publish, EVERY_PLAN) if earlier else None
        decoded: BatchOffsets = {}
        if index is None or typed is None or earlier is None or found is None:
            found = read_all(ports.control, self.pipeline)
            present = typed.offsets() if typed else {}
            stale = difference(present, allowed(found.now.values(), self.publish))
        else:
            decoded = claimed(found.before.values(), earlier)
            changes = index.changes(typed, over_changes=True)
            # A decode that was killed between its two commits is not complete.
            for each in [None] if changes is None else [change.decoded for change in changes]:
                decoded = difference(decoded, listed_part(decoded, each))
            outdated = typed.offsets(found.outdated(earlier, self.publish))
            stale = union([found.surplus(earlier, self.publish), outdated])
        if found.event != ledger.event_number:
            raise ControlConflict(pipeline=self.pipeline, event_number=found.event)
        landed = required(found.now.values(), PublishRule.ALWAYS)
        replaced = {
            Batch(record.plan.sequence, record.plan.topic_id): record.plan.spans()
            for record in ledger.open_plans()
            if record.plan.replaces
        }
        return DecodeProgress(
            landed=by_topic_id(landed),
            decoded=by_topic_id(decoded),
            plans=decoded,
            hidden=by_topic_id(difference(landed, required(found.now.values(), self.publish))),
            stale=by_topic_id(stale, replaced),
            by_spec=earlier.decoded_by_spec
            if earlier is not None and earlier.spec == self.spec
            else SpanSet(),
            unknown_spec=earlier.unknown_spec if earlier else EVERY_PLAN,
        )

    def entry_change(self, tables: OpenedTables, changes: Sequence[Bookmark] | None) -> EntryChange:
        """Return the entries that the quarantine lacks or has to remove.

        Args:
            tables: The opened tables. The bookmark of the typed table is known.
            changes: The changes that the quarantine has to follow.
        """
        if changes == []:
            return EntryChange()
        index, typed = tables.quarantine, tables.typed
        return index.differences(typed, changes, self.claims(index, typed, changes), tables.bronze)

    def claims(
        self, index: OpenedIndex, typed: NotedVersion, changes: Sequence[Bookmark] | None
    ) -> BatchOffsets:
        """Return the offsets that the typed table claims, of the plans that the quarantine needs.

        Raises:
            ControlConflict: The typed table or the ledger was replaced. The next round compares.
        """
        last, plans = bookmark_of(typed), index.plans(changes)
        wanted = EVERY_PLAN if plans is None else plans
        found = self.plans_since(last, last.publish, wanted) if last else None
        if last is None or found is None:
            raise ControlConflict(pipeline=self.pipeline, event_number=last.event if last else 0)
        return claimed(found.before.values(), last)

    def plans_since(
        self, bookmark: Bookmark, publish: PublishRule, plans: SpanSet
    ) -> PlansSince | None:
        """See `read_since`."""
        return read_since(self.ports.control, self.pipeline, bookmark, publish, plans)

    def _present(self, tables: OpenedTables, found: PlansSince) -> BatchOffsets:
        """Return the offsets of all typed rows; query only plans whose totals differ."""
        totals = tables.typed.totals()
        if not totals:
            return {}
        log.info("comparing typed table pipeline=%s batches=%d", self.pipeline, len(totals))
        same, unknown = compared_totals(found.now.values(), totals, tables.bronze.totals())
        return union([same, tables.typed.offsets(unknown)])

    def _replaced(self, tables: OpenedTables, missing: BatchOffsets) -> set[int]:
        """Return the plans whose rows an open replacement has taken from the bronze table."""
        waiting: set[int] = set()
        for record in tables.ledger.open_plans():
            if not record.plan.replaces:
                continue
            own = [batch for batch in missing if batch.topic_id == record.plan.topic_id]
            overlap = intersection(missing, dict.fromkeys(own, record.plan.spans()))
            left = difference(overlap, tables.bronze.offsets(overlap))
            waiting |= {batch.sequence for batch in left}  # fence: replaced-rows-wait
        return waiting


def bookmark_of(typed: NotedVersion, *, over_changes: bool = False) -> Bookmark | None:
    """Return the newest bookmark of a typed table; None if it is unknown.

    Args:
        typed: The typed table.
        over_changes: As for `NotedVersion.newest_note`.
    """
    note = typed.newest_note(over_deletions=True, over_changes=over_changes)
    return Bookmark.from_metadata(note)
