"""The tables of a decode: how far the typed table and the quarantine have followed the ledger.

The protocol is in docs/adr/0028-derived-tables-follow-the-ledger.md. Only tests use this module so
far.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from tidemark.bronze.ingest.ledgers import read_checked_ledger
from tidemark.bronze.ingest.protocols import Clock, ControlReader, DataLog
from tidemark.core.bookmark import Bookmark
from tidemark.core.datafile import DataFile
from tidemark.core.decode_round import DecodeRound
from tidemark.core.decode_work import EVERY_PLAN, DecodeRequest
from tidemark.core.following import (
    BatchOffsets,
    PlansSince,
    claimed,
    compared_totals,
    difference,
    intersection,
    read_all,
    read_since,
    required,
    union,
)
from tidemark.core.ledger import CheckedLedger
from tidemark.core.offsets import SpanSet
from tidemark.core.publication import PublishRule
from tidemark.delta.errors import ControlConflict
from tidemark.delta.noted_commits import NotedTable, NotedVersion
from tidemark.silver.typed.errors import SchemaConflict
from tidemark.silver.typed.quarantine_index import EntryChange, OpenedIndex, QuarantineIndex
from tidemark.silver.typed.schemas import ResolvedSchemas
from tidemark.spec.decode import Part
from tidemark.spec.fields import FieldType

log = logging.getLogger(__name__)


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
        schemas: Resolves the schema ids of records. Only the driver uses it.
        decoder: Decodes rows. Only jobs use it.
        now: The clock.
    """

    control: ControlReader
    bronze: DataLog
    bronze_rows: NotedTable
    typed: NotedTable
    index: QuarantineIndex
    prepare: Callable[[Mapping[Part, FieldType]], None]
    schemas: PlanSchemas
    decoder: Decoder
    now: Clock


class OpenedTables(NamedTuple):
    """The tables of a round. Each was opened before its source, and the ledger was read last."""

    quarantine: OpenedIndex
    typed: NotedVersion
    bronze: NotedVersion
    ledger: CheckedLedger


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
class FollowState:
    """The differences of a typed table and its quarantine from the bronze table.

    Attributes:
        undecoded: Published offsets that are in neither table, by bronze plan.
        to_withdraw: Decoded offsets that left the bronze table or its published view.
        quarantine_behind: Whether the quarantine has to follow the typed table, because a decode
            ended between its two commits.
        compares: Whether the next decode compares all offsets, because the bookmark is unknown.
    """

    undecoded: BatchOffsets = field(default_factory=dict)
    to_withdraw: BatchOffsets = field(default_factory=dict)
    quarantine_behind: bool = False
    compares: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedTables:
    """Opens the tables of a decode, and compares them with the ledger.

    Attributes:
        pipeline: The bronze pipeline.
        publish: The rule by which landed offsets are decoded.
        most: Maximum number of offsets of a round.
        examined: Maximum number of pending plans that a round examines first. If all of them have
            to wait, it examines more.
        ports: The ports of the typed table.
    """

    pipeline: str
    publish: PublishRule
    most: int
    examined: int
    ports: FollowPorts

    def required(self) -> BatchOffsets:
        """Return all offsets that belong in the typed table or the quarantine."""
        return required(read_all(self.ports.control, self.pipeline).now.values(), self.publish)

    def open(self) -> OpenedTables | None:
        """Open the tables; None if one is missing.

        Raises:
            ForeignTable: The typed table belongs to another pipeline.
            HistoriesDiverge: The bronze table and the control table diverge.
            DuplicateRows: The bronze table has more rows than landed in it.
            ControlConflict: The bronze table has changed meanwhile.
        """
        ports = self.ports
        # Opened before their sources: a later look at a source shows at least what they contain.
        index, typed, bronze = ports.index.open(), ports.typed.open(), ports.bronze_rows.open()
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
        return OpenedTables(index, typed, bronze, ledger)

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
            ForeignTable, HistoriesDiverge, DuplicateRows: As for `open`.
        """
        tables = self.open()
        if tables is None:
            return None
        earlier = bookmark_of(tables.typed)
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
            step, is_first = DecodeRound.compared(found, self.publish, present), not present
        else:
            present = tables.typed.offsets(found.missing(earlier, self.publish))
            step = DecodeRound.since(found, earlier, self.publish, present, wanted)
        if found.event != tables.ledger.event_number:  # fence: one-ledger-for-one-round
            raise ControlConflict(pipeline=self.pipeline, event_number=found.event)
        others = {each.sequence for each in step.missing if each.sequence not in plans}
        chosen = step.chosen(others | self._replaced(tables, step.missing), self.most)
        # fence: decode-examines-plans-after-waiting-ones
        if not chosen and some != pending:
            return replace(self, examined=10 * self.examined).look(plans, replayed)
        return Look(tables, step, chosen, tables.quarantine.changes(tables.typed), is_first)

    def state(self) -> FollowState:
        """Return how far both tables have followed the ledger. Raises as `look`."""
        look = replace(self, examined=EVERY_PLAN.size).look(EVERY_PLAN, {})
        if look is None:
            return FollowState(undecoded=self.required())
        missing = look.step.missing
        if look.step.earlier is None:
            # A comparison would decode records in quarantine again. They are not undecoded.
            missing = difference(missing, look.tables.quarantine.version.offsets())
        return FollowState(
            undecoded=missing,
            to_withdraw=look.step.surplus,
            quarantine_behind=not look.is_followed,
            compares=look.step.earlier is None and not look.is_first,
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


def bookmark_of(typed: NotedVersion) -> Bookmark | None:
    """Return the newest bookmark of a typed table; None if it is unknown."""
    return Bookmark.from_metadata(typed.newest_note(over_deletions=True))
