"""Plans that decode the rows of a bronze table into its typed table.

The typed table has its own pipeline with plans, a ledger and transactions. Its log is the bronze
table. The planner undoes plans whose offsets left the bronze table or its published view. It plans
offsets that landed again, and offsets that are not decoded yet.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, TypeAlias

from tidemark.bronze.ingest.landed_log import LandedLog
from tidemark.bronze.ingest.ledgers import missing_rows, open_plans, read_checked_ledger
from tidemark.bronze.ingest.planner import PlanOutcome, PlanResult
from tidemark.bronze.ingest.ports import Ports
from tidemark.bronze.ingest.protocols import BronzeLog, Clock, ControlTable
from tidemark.bronze.ingest.recorder import Recorder
from tidemark.bronze.ingest.replacement import superseded_events
from tidemark.bronze.repair.abandon import Abandon
from tidemark.bronze.repair.errors import UndoUnfinished
from tidemark.bronze.repair.undo import Undo
from tidemark.core import plan_rules
from tidemark.core.accounting import Landing
from tidemark.core.errors import OnlyCopy, TidemarkError
from tidemark.core.events import (
    ControlEvent,
    EventKind,
    LossAccepted,
    Planned,
    RecreationAccepted,
    Started,
)
from tidemark.core.ledger import CheckedLedger, Ledger
from tidemark.core.offsets import (
    SpanSet,
    difference_by_partition,
    intersection_by_partition,
    size_of,
    union_by_partition,
)
from tidemark.core.origins import DecodeOrigin
from tidemark.core.parallel import result_or_error
from tidemark.core.plan import Plan, PlanKind, PlannedRange
from tidemark.core.table_state import newest_table_version
from tidemark.delta.conflicts import retry_on_conflict
from tidemark.delta.errors import ControlConflict
from tidemark.delta.opened_tables import tables_opened_once
from tidemark.silver.typed.errors import NoLongerPublished, RegistryUnavailable, SchemaConflict
from tidemark.silver.typed.schemas import ResolvedSchemas, SchemaResolver, TypedTable
from tidemark.silver.typed.state import DecodeBacklog, TypedState, decodable_since
from tidemark.spec.decode import DecodeSpec, Part
from tidemark.spec.fields import FieldType
from tidemark.spec.model import PipelineSpec

log = logging.getLogger(__name__)

_REQUESTER = "decode"
"""Requester of events that follow from a change of the bronze table."""
_MAX_REPLAYED = 1_000
"""Maximum number of offsets of a plan that replays single offsets. Each may be a separate range,
which is a row of the control table and a condition of the query."""


_ByTopicId: TypeAlias = Mapping[str, Mapping[int, SpanSet]]
"""Offsets by topic id and partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenOffsets:
    """Landed offsets that the published view of the bronze table hides.

    Attributes:
        unchecked: Offsets without a decision.
        undecided: The unchecked offsets of plans without any decision.
        recovered: Those of them that a repair has recorded, after the decisions may have been lost.
        refused: Offsets of blocked and rejected plans.
    """

    unchecked: _ByTopicId = field(default_factory=dict)
    undecided: _ByTopicId = field(default_factory=dict)
    recovered: _ByTopicId = field(default_factory=dict)
    refused: _ByTopicId = field(default_factory=dict)

    def published(self, ledger: Ledger, topic_id: str) -> Mapping[int, SpanSet]:
        """Return the landed offsets of an incarnation that belong in the typed table."""
        spans = ledger.landed_of(topic_id)
        for hidden in (self.unchecked, self.refused):  # fence: only-published-rows-are-decoded
            spans = difference_by_partition(spans, hidden.get(topic_id, {}))
        return spans


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeProgress:
    """Which offsets of the bronze table the typed table and its quarantine should have.

    Attributes:
        topic: Topic name.
        landed: Landed offsets of the bronze table.
        decoded: Offsets that a decode has covered.
        hidden: Landed offsets that the published view hides.
        stale: Decoded offsets that have landed again since, and all offsets of open replacements.
        earlier_rules: Plan numbers of rows that were decoded with another spec.
        typed: The complete ledger of the typed table.
    """

    topic: str
    landed: _ByTopicId
    decoded: _ByTopicId
    hidden: _ByTopicId
    stale: _ByTopicId
    earlier_rules: frozenset[int]
    typed: Ledger

    def plan_at(self, topic_id: str, partition: int, offset: int) -> int | None:
        """Return the number of the typed plan that has decoded an offset; None without one."""
        for sequence, record in self.typed.plans.items():
            if record.held_now and record.plan.topic_id == topic_id:
                spans = record.held_now.spans().get(partition, SpanSet())
                if offset in spans:
                    return sequence
        return None


class _Bronze(NamedTuple):
    """The bronze table: its landed offsets, and the offsets that its published view hides."""

    ledger: Ledger
    hidden: HiddenOffsets

    def published(self, topic_id: str) -> Mapping[int, SpanSet]:
        """Return the offsets of an incarnation that belong in the typed table."""
        return self.hidden.published(self.ledger, topic_id)

    def published_of(self, offsets: _ByTopicId) -> _ByTopicId:
        """Return the part of `offsets` that belongs in the typed table."""
        return _each(
            offsets, lambda each: intersection_by_partition(offsets[each], self.published(each))
        )

    def missing_in(self, typed: Ledger) -> _ByTopicId:
        """Return the offsets to decode."""
        return _each(
            topic_ids_of(self.ledger),
            lambda each: difference_by_partition(self.published(each), typed.landed_of(each)),
        )

    def surplus_in(self, typed: Ledger, stale: _ByTopicId) -> _ByTopicId:
        """Return the decoded offsets to remove.

        Offsets of a plan without any decision stay, because no check and no operator refused them.
        They were decoded under `publish: always`, or their decision was lost with the control
        table. A rebuild of that table records all offsets as if they had landed again.

        Args:
            typed: The ledger of the typed table.
            stale: Decoded offsets that have landed again since, by topic id.
        """
        return _each(
            topic_ids_of(typed),
            lambda each: difference_by_partition(
                difference_by_partition(typed.landed_of(each), self.published(each)),
                self._not_refused(each, stale.get(each, {})),
            ),
        )

    def _not_refused(self, topic_id: str, stale: Mapping[int, SpanSet]) -> Mapping[int, SpanSet]:
        """Return the offsets whose decoded rows stay without a decision; see `surplus_in`."""
        undecided = self.hidden.undecided.get(topic_id, {})
        return union_by_partition(
            [
                difference_by_partition(undecided, stale),  # fence: unrefused-rows-stay
                self.hidden.recovered.get(topic_id, {}),  # fence: lost-decisions-remove-no-rows
            ]
        )

    def backlog(self, typed: Ledger, stale: _ByTopicId | None = None) -> DecodeBacklog:
        """Return how a typed table differs from the bronze table.

        Args:
            typed: The ledger of the typed table; a summary suffices.
            stale: Decoded offsets that have landed again since; None if they are unknown. The
                surplus contains those of them that are not checked yet.
        """
        return DecodeBacklog(
            missing=_size(self.missing_in(typed)),
            open=sum(record.plan.size for record in typed.open_plans()),
            stale=None if stale is None else _size(self.published_of(stale)),
            surplus=_size(self.surplus_in(typed, stale or {})),
            unchecked=_size(self.hidden.unchecked),
            refused=_size(self.hidden.refused),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodePlanner:
    """Plans for the typed table of one pipeline. Reads tables and records control events.

    Attributes:
        spec: The pipeline of the typed table.
        decode: How records are decoded.
        control: The control table.
        bronze: The data table that is decoded.
        table: The typed table, with its quarantine.
        schemas: The schemas of records with schema ids.
        now: The clock.
        hidden: Returns the landed offsets that are not decoded. It is called after the ledger of
            the bronze table was read, so that the result covers every plan of that ledger.
    """

    spec: PipelineSpec
    decode: DecodeSpec
    control: ControlTable
    bronze: BronzeLog
    table: TypedTable
    schemas: SchemaResolver
    now: Clock
    hidden: Callable[[], HiddenOffsets] = HiddenOffsets

    @property
    def bronze_log(self) -> LandedLog:
        """The bronze table in the role that Kafka has for other pipelines."""
        return LandedLog(
            pipeline=self.spec.origin,
            typed=self.spec.name,
            control=self.control,
            data_log=self.bronze,
        )

    @property
    def ports(self) -> Ports:
        """The ports of the typed table."""
        return Ports(
            control=self.control,
            table=self.table,
            open_watermarks=lambda: self.bronze_log,
            open_log_reader=lambda: self.bronze_log,
            now=self.now,
        )

    @property
    def abandon(self) -> Abandon:
        """Abandons open plans of the typed table."""
        return Abandon(pipeline=self.spec.name, ports=self.ports)

    @property
    def undo(self) -> Undo:
        """Undoes landed plans of the typed table."""
        return Undo(pipeline=self.spec.name, ports=self.ports, asks_kafka=False)

    def plan(self) -> PlanResult:
        """Return the next plan: the open one or a new one; no plan if all offsets are decoded.

        First records an open plan that has landed, and abandons an open plan that would be decoded
        differently now. Then undoes typed plans whose offsets have all left the bronze table or
        its published view. If only some offsets have left, a plan first replaces the rows of the
        others, so that no published row is missing in between.
        Offsets that have landed again in the bronze table are planned before all others; their plan
        replaces the typed rows.

        Raises:
            SchemaConflict: Offsets remain, and none of them can be decoded.
            RegistryUnavailable, RegistryRefused: The schemas of the next plan are unknown.
            TableBehindLedger, LedgerBehindTable: The histories of a data table and the control
                table diverge.
            QuarantineRestored: A RESTORE of the quarantine removed changes of landed plans.
            DuplicateRows: A data table has more rows than landed in it.
            ControlConflict, TransactionConflict: Concurrent processes were first, several times.
        """
        return retry_on_conflict(self._plan_once)

    def check_tables(self) -> None:
        """Check that the typed table and its quarantine allow a plan. Writes nothing.

        Reads the typed table before the quarantine, to which a plan commits first. So the check
        also holds if each table is opened once.

        Raises:
            HistoriesDiverge, DuplicateRows, QuarantineRestored: As for `plan`.
        """
        read_checked_ledger(self.control, self.spec.name, self.table, rows=True)
        self.table.check_not_restored(self.spec.name)

    def check_bronze(self) -> None:
        """Refuse a bronze table that lacks rows: the typed rows may be their only copy.

        Raises:
            OnlyCopy: The table lacks landed rows, or their number is unknown.
        """
        bronze = self.control.summary(self.spec.origin)
        rows = missing_rows(self.control, bronze, self.bronze)
        if rows != 0:  # fence: only-typed-copy-is-not-cleared
            raise OnlyCopy.of_bronze_rows(self.spec.origin, rows)

    def backlog(self) -> DecodeBacklog:
        """Return the numbers of offsets that `plan` would decode or remove. Writes nothing.

        Raises:
            HistoriesDiverge, DuplicateRows, QuarantineRestored: As for `plan`.
        """
        bronze, ledger = retry_on_conflict(self._ledgers)
        return bronze.backlog(ledger, self._stale_offsets(bronze.ledger, ledger))

    @tables_opened_once()
    def state(self, check: Callable[[], None], quarantined: Callable[[], int]) -> TypedState:
        """Return the state of the typed table, for reports. Writes nothing.

        The state contains errors of the tables, so that such an error hides nothing else.

        Args:
            check: Raises the error that would refuse the next decode.
            quarantined: Returns the number of open records in the quarantine.

        Raises:
            ControlConflict: Other processes changed a pipeline meanwhile.
        """
        # Read in the order of `_ledgers`.
        typed = self.control.summary(self.spec.name)
        bronze = self._with_hidden(self.control.summary(self.spec.origin))
        opened, missing = open_plans(self.control, typed), bronze.missing_in(typed)
        since: datetime | None = None
        if missing and not opened:
            since = decodable_since(self.control, bronze.ledger, missing)
            undone_at = self.control.recorded_at(self.spec.name, EventKind.UNDONE).values()
            since = since and max([since, *undone_at])
        refused = result_or_error(self.spec.origin, lambda _: check())
        counted = result_or_error(self.spec.origin, lambda _: quarantined())
        for each in (refused, counted):
            if isinstance(each, ControlConflict):
                raise each
        return TypedState(
            backlog=bronze.backlog(typed),
            undecoded_since=since,
            open_plans=opened,
            quarantined=None if isinstance(counted, TidemarkError) else counted,
            error=refused or (counted if isinstance(counted, TidemarkError) else None),
        )

    def progress(self) -> DecodeProgress:
        """Return which offsets the typed table should have, for a comparison. Writes nothing.

        Raises:
            HistoriesDiverge: A data table and the control table have different histories.
            UndoUnfinished: The typed table may still contain rows of a plan that is being undone.
        """
        return retry_on_conflict(self._progress_once)

    def _progress_once(self) -> DecodeProgress:
        # As for a plan, except that a comparison reports duplicate rows itself.
        typed = read_checked_ledger(self.control, self.spec.name, self.table, full=True)
        if unfinished := UndoUnfinished.first_of(typed):
            raise unfinished
        bronze = self._with_hidden(read_checked_ledger(self.control, self.spec.origin, self.bronze))
        hidden, fingerprint = bronze.hidden, self.decode.fingerprint
        return DecodeProgress(
            topic=bronze.ledger.topic or self.spec.topic,
            landed=_each(topic_ids_of(bronze.ledger), bronze.ledger.landed_of),
            decoded=_each(topic_ids_of(typed), typed.landed_of),
            hidden=_union([hidden.unchecked, hidden.refused]),
            stale=_union(
                [
                    self._stale_offsets(bronze.ledger, typed),
                    *(
                        {record.plan.topic_id: record.plan.spans()}
                        for record in bronze.ledger.open_plans()
                        if record.plan.replaces
                    ),
                ]
            ),
            earlier_rules=frozenset(
                sequence
                for sequence, record in typed.plans.items()
                if isinstance(record.plan.origin, DecodeOrigin)
                and record.plan.origin.fingerprint != fingerprint
            ),
            typed=typed,
        )

    def replay(self, topic_id: str, spans: Mapping[int, SpanSet]) -> PlanResult:
        """Return a plan that decodes offsets again and replaces their typed rows.

        If `plan` has work to do, returns its plan instead; call `replay` again after that landed.

        Args:
            topic_id: Incarnation of the topic.
            spans: Offsets in the typed table or the quarantine, by partition. Other offsets are
                skipped.

        Raises:
            TableBehindLedger, ControlConflict and so on: As for `plan`.
        """
        return retry_on_conflict(lambda: self._plan_replay(topic_id, spans))

    def _plan_replay(self, topic_id: str, spans: Mapping[int, SpanSet]) -> PlanResult:
        try:
            first = self._plan_once()
        except SchemaConflict as elsewhere:
            # The requested offsets may be before the conflict, or in another partition.
            log.warning(
                "replaying despite a schema conflict pipeline=%s message=%s",
                self.spec.name,
                elsewhere,
            )
        else:
            if first.plan is not None:
                # The open plan has to land first. It may contain the requested offsets.
                return first
        bronze, ledger = self._ledgers()
        again = self._to_replay(bronze, ledger, topic_id, spans)
        return self._plan_first(bronze.ledger, ledger, [again], _MAX_REPLAYED)

    def _to_replay(
        self, bronze: _Bronze, ledger: Ledger, topic_id: str, spans: Mapping[int, SpanSet]
    ) -> _Selection:
        wanted = intersection_by_partition(
            intersection_by_partition(spans, ledger.landed_of(topic_id)), bronze.published(topic_id)
        )
        return _Selection(PlanKind.BACKFILL, topic_id, wanted)

    def replay_drafts(
        self, topic_id: str, spans: Mapping[int, SpanSet]
    ) -> Iterator[tuple[Plan, Mapping[Part, FieldType]]]:
        """Yield the plans of a replay, with the columns that each needs. Records none of them.

        A real replay first takes the plans that `plan` returns. With `DraftSchemas` as the store of
        `schemas`, this writes nothing. Offsets after a schema conflict are left out.

        Args:
            topic_id: Incarnation of the topic.
            spans: As for `replay`.
        """
        bronze, ledger = retry_on_conflict(self._ledgers)
        wanted = self._to_replay(bronze, ledger, topic_id, spans)
        while wanted.spans:
            stopped: list[SchemaConflict] = []
            chosen, resolved = self._choose_offsets(wanted, _MAX_REPLAYED, stopped)
            if not chosen:
                return
            yield self._plan(bronze.ledger, ledger, wanted, chosen, resolved), resolved.columns
            wanted = wanted._replace(spans=difference_by_partition(wanted.spans, chosen))

    def _plan_once(self) -> PlanResult:
        bronze, ledger = self._ledgers()
        if bronze.ledger.topic_id is None:
            return PlanResult(outcome=PlanOutcome.NOTHING, plan=None)
        if self._record_bronze_changes(bronze.ledger, ledger):
            return self._plan_once()
        for opened in ledger.open_plans():
            landing = self.table.find_landing(opened.plan)
            if landing is None and self._prepare_if_current(bronze, opened.plan):
                return PlanResult(outcome=PlanOutcome.KEPT, plan=opened.plan)
            self._record_or_abandon(ledger, opened.plan, landing)
            return self._plan_once()
        stale = self._stale_offsets(bronze.ledger, ledger)
        surplus = bronze.surplus_in(ledger, stale)
        to_undo, shared_offsets = self._removal_of(surplus, bronze, ledger)
        if to_undo:  # fence: undone-rows-leave-typed-table
            self._undo(to_undo)
            return self._plan_once()
        again = _union([bronze.published_of(stale), *shared_offsets])
        wanted = [_Selection(PlanKind.BACKFILL, *each) for each in again.items()]
        wanted += [_Selection(PlanKind.LIVE, *each) for each in bronze.missing_in(ledger).items()]
        return self._plan_first(bronze.ledger, ledger, wanted, self.spec.records_per_chunk)

    def _ledgers(self) -> tuple[_Bronze, CheckedLedger]:
        """Return the ledgers of the bronze table and of the typed table."""
        self.table.check_not_restored(self.spec.name)  # fence: restored-quarantine-is-missed
        # Read before the bronze ledger. Otherwise a plan that lands and is decoded between the two
        # reads would look like rows that the bronze table has lost.
        typed = read_checked_ledger(self.control, self.spec.name, self.table, rows=True)
        return self._bronze_ledger(), typed

    def _bronze_ledger(self) -> _Bronze:
        """Return the bronze ledger with the offsets that the published view hides at its state.

        Raises:
            ControlConflict: Another process has changed the ledger between the two reads.
        """
        return self._with_hidden(
            read_checked_ledger(self.control, self.spec.origin, self.bronze, rows=True)
        )

    def _with_hidden(self, bronze: Ledger) -> _Bronze:
        """Return a bronze ledger, and the offsets that the published view hides in its state."""
        hidden = self.hidden()
        # A hidden plan that is undone before the second read is in the ledger and not in `hidden`.
        newest = self.control.summary(self.spec.origin).event_number
        if newest != bronze.event_number:  # fence: hidden-offsets-of-one-ledger
            raise ControlConflict(pipeline=self.spec.origin, event_number=newest)
        return _Bronze(bronze, hidden)

    def check_published(self, plan: Plan) -> None:
        """Check before the commit of a typed plan that all of its offsets are still published.

        Raises:
            NoLongerPublished: Some offsets left the bronze table or its published view.
        """
        bronze = retry_on_conflict(self._bronze_ledger)
        left = plan.offsets_outside(bronze.published(plan.topic_id))
        if left:
            raise NoLongerPublished(
                pipeline=plan.pipeline,
                sequence=plan.sequence,
                offsets=size_of(left),
                origin=self.spec.origin,
            )

    # -- changes of the bronze ledger -------------------------------------------------------------

    def _record_bronze_changes(self, bronze: Ledger, ledger: CheckedLedger) -> bool:
        """Record recreated topics, partitions and accepted losses of the bronze ledger.

        Returns:
            Whether there were any.
        """
        cluster_id, topic = bronze.cluster_id or "", bronze.topic or ""
        topic_id, reason = bronze.topic_id or "", f"follows {self.spec.origin}"
        if ledger.topic_id not in (None, topic_id):
            begun = RecreationAccepted(
                cluster_id=cluster_id,
                topic=topic,
                topic_id=topic_id,
                offsets=bronze.starts,
                requested_by=_REQUESTER,
                reason=reason,
            )
            self.control.append(ledger, [begun], self.now())
            return True
        events: list[ControlEvent] = []
        starts = {p: offset for p, offset in bronze.starts.items() if p not in ledger.starts}
        if starts:
            events.append(
                Started(
                    cluster_id=cluster_id,
                    topic=topic,
                    topic_id=topic_id,
                    requested_by=_REQUESTER,
                    offsets=starts,
                    reason=reason,
                )
            )
        lost = difference_by_partition(bronze.accepted_losses, ledger.accepted_losses)
        if lost:
            events.append(
                LossAccepted(
                    topic=topic,
                    topic_id=topic_id,
                    lost=lost,
                    committed=ledger.committed_with(lost, starts),
                    requested_by=_REQUESTER,
                    reason=reason,
                )
            )
        if events:
            self.control.append(ledger, events, self.now())
        return bool(events)

    # -- open plans -------------------------------------------------------------------------------

    def _prepare_if_current(self, bronze: _Bronze, plan: Plan) -> bool:
        """Add the columns of an open plan, if a new plan would decode its offsets in the same way.

        Returns:
            Whether it would. If not, the open plan is outdated.
        """
        source = plan.origin
        if (
            not isinstance(source, DecodeOrigin)
            or source.fingerprint != self.decode.fingerprint  # fence: plan-of-another-decoder
        ):
            return False
        if plan.offsets_outside(bronze.published(plan.topic_id)):
            return False
        try:
            resolved = self.schemas.resolve(plan.topic_id, plan.spans())
        except RegistryUnavailable:
            if not all(map(self.schemas.are_stored, source.schemas.values())):
                raise
            return True
        now = (resolved.ids, resolved.oversized)
        if resolved.conflicts or now != (source.schemas, source.oversized):
            return False
        self._add_columns(resolved)
        return True

    def _add_columns(self, resolved: ResolvedSchemas) -> None:
        """Add the columns that the next plan needs to the typed table."""
        if resolved.columns:
            self.table.add_columns(self.spec.name, resolved.columns)

    def _record_or_abandon(self, ledger: Ledger, plan: Plan, landing: Landing | None) -> None:
        """Record an open plan that has landed; abandon one that is outdated."""
        if landing is not None:
            Recorder(ports=self.ports).record(ledger, plan, landing)
            return
        self.abandon.abandon(
            plan.sequence,
            _REQUESTER,
            "the decoder in the spec has changed, or some offsets left the bronze table or its "
            "published view",
        )

    # -- outdated rows ----------------------------------------------------------------------------

    def _removal_of(
        self, surplus: _ByTopicId, bronze: _Bronze, ledger: Ledger
    ) -> tuple[list[int], list[_ByTopicId]]:
        """Return how the offsets to remove leave the typed table.

        Returns:
            The plans to undo, which have no published offset left, and the published offsets that
            share a typed plan with offsets to remove.
        """
        to_undo: list[int] = []
        shared_offsets: list[_ByTopicId] = []
        if not surplus and not any(record.undoing for record in ledger.plans.values()):
            return to_undo, shared_offsets
        for sequence, record in self.control.ledger(self.spec.name).plans.items():
            topic_id = record.plan.topic_id
            decoded = record.held_now.spans() if record.held_now else {}
            gone = surplus.get(topic_id, {})
            if record.undoing:
                to_undo.append(sequence)
            elif intersection_by_partition(decoded, gone):
                rest = difference_by_partition(decoded, gone)
                if shared := bronze.published_of({topic_id: rest}):
                    shared_offsets.append(shared)
                else:
                    to_undo.append(sequence)
        return to_undo, shared_offsets

    def _undo(self, sequences: Iterable[int]) -> None:
        reason = f"some of its offsets are no longer published by {self.spec.origin}"
        for sequence in sequences:
            self.undo.undo(sequence, _REQUESTER, reason)

    def _stale_offsets(self, landed: Ledger, ledger: Ledger) -> _ByTopicId:
        """Return the decoded offsets that have landed again in the bronze table since."""
        kinds = {kind for _, kind in landed.settled.chain_heads}
        kinds |= {record.plan.kind for record in landed.plans.values()}
        any_cancelled = any(record.cancelled_by for record in landed.plans.values())
        if PlanKind.BACKFILL not in kinds and not any_cancelled and landed.epoch == 0:
            # No offset has landed twice.
            return {}
        whole = self.control.ledger(self.spec.origin)
        typed = self.control.ledger(self.spec.name)
        # fence: replaced-rows-are-decoded-again
        return _each(topic_ids_of(ledger), lambda each: stale_offsets(whole, typed, each))

    # -- the plan ---------------------------------------------------------------------------------

    def _plan_first(
        self, bronze: Ledger, ledger: CheckedLedger, wanted: Sequence[_Selection], most: int
    ) -> PlanResult:
        """Record a plan for the first selection with offsets that can be decoded.

        Args:
            bronze: The ledger of the bronze pipeline.
            ledger: The ledger of the typed table.
            wanted: Selections of offsets, in the order of their priority.
            most: Maximum number of offsets of the plan.

        Raises:
            SchemaConflict: Offsets remain, and none of them can be decoded.
        """
        stopped: list[SchemaConflict] = []
        for each in wanted:
            chosen, resolved = self._choose_offsets(each, most, stopped)
            if chosen:
                return self._record_plan(bronze, ledger, each, chosen, resolved)
        if stopped:
            for other in stopped[1:]:
                log.warning("schema conflict pipeline=%s message=%s", self.spec.name, other)
            raise stopped[0]
        return PlanResult(outcome=PlanOutcome.NOTHING, plan=None)

    def _choose_offsets(
        self, wanted: _Selection, most: int, stopped: list[SchemaConflict]
    ) -> tuple[Mapping[int, SpanSet], ResolvedSchemas]:
        """Return the offsets of a plan, which end before a schema conflict, and their schemas.

        Args:
            wanted: The offsets to choose from.
            most: Maximum number of offsets of the plan.
            stopped: Receives the conflicts.
        """
        left = dict(wanted.spans)
        while True:
            shares = plan_rules.fair_shares(
                {p: spans.size for p, spans in left.items() if spans}, most
            )
            chosen = {p: left[p].first(count) for p, count in sorted(shares.items()) if count}
            resolved = self.schemas.resolve(wanted.topic_id, chosen)
            if not resolved.conflicts:
                return chosen, resolved
            stopped += resolved.conflicts.values()
            for partition, stop in resolved.conflicts.items():
                left[partition] = left[partition].before(stop.offset)

    def _record_plan(
        self,
        bronze: Ledger,
        ledger: CheckedLedger,
        wanted: _Selection,
        chosen: Mapping[int, SpanSet],
        resolved: ResolvedSchemas,
    ) -> PlanResult:
        self._add_columns(resolved)
        plan = self._plan(bronze, ledger, wanted, chosen, resolved)
        events: list[ControlEvent] = [Planned(plan=plan)]
        if plan.replaces:
            events += superseded_events(plan, self.control.ledger(self.spec.name), self.table)
        self.control.append(ledger, events, self.now())
        log.info("planned pipeline=%s plan=%d offsets=%d", plan.pipeline, plan.sequence, plan.size)
        return PlanResult(outcome=PlanOutcome.NEW, plan=plan)

    def _plan(
        self,
        bronze: Ledger,
        ledger: CheckedLedger,
        wanted: _Selection,
        chosen: Mapping[int, SpanSet],
        resolved: ResolvedSchemas,
    ) -> Plan:
        kind, topic_id = wanted.kind, wanted.topic_id
        origin = DecodeOrigin(
            pipeline=self.spec.origin,
            epoch=bronze.epoch,
            version=self._bronze_version(bronze),
            fingerprint=self.decode.fingerprint,
            schemas={part.value: ids for part, ids in resolved.ids.items()},
            oversized={part.value: ids for part, ids in resolved.oversized.items()},
        )
        return Plan(
            pipeline=self.spec.name,
            sequence=ledger.next_sequence,
            kind=kind,
            epoch=ledger.epoch,
            cluster_id=self._cluster_of(bronze, topic_id),
            topic=bronze.topic or "",
            topic_id=topic_id,
            isolation_level=self.spec.isolation_level,
            origin=origin,
            ranges=tuple(
                PlannedRange.without_watermarks(partition, span)
                for partition, spans in chosen.items()
                for span in spans
            ),
            replaces=kind is PlanKind.BACKFILL,
        )

    def _bronze_version(self, bronze: Ledger) -> int:
        """Return the newest version of the bronze table in a recorded landing."""
        if bronze.epoch == 0:
            return newest_table_version(bronze)
        # A rewind records landings of older epochs again.
        records = self.control.ledger(self.spec.origin).plans.values()
        return max((r.held_now.table_version for r in records if r.held_now), default=-1)

    def _cluster_of(self, bronze: Ledger, topic_id: str) -> str:
        """Return the cluster id of an incarnation."""
        if topic_id == bronze.topic_id:
            return bronze.cluster_id or ""
        plans = (record.plan for record in self.control.ledger(self.spec.origin).plans.values())
        return next(plan.cluster_id for plan in plans if plan.topic_id == topic_id)


class _Selection(NamedTuple):
    """Offsets of one incarnation to decode; a backfill plan replaces their rows."""

    kind: PlanKind
    topic_id: str
    spans: Mapping[int, SpanSet]


def topic_ids_of(ledger: Ledger) -> list[str]:
    """Return the topic ids of all plans, sorted."""
    found = {topic_id for topic_id, _ in ledger.settled.landed}
    return sorted(found | {record.plan.topic_id for record in ledger.plans.values()})


def _each(topic_ids: Iterable[str], of: Callable[[str], Mapping[int, SpanSet]]) -> _ByTopicId:
    """Return the offsets of each incarnation that has any."""
    return {topic_id: spans for topic_id in topic_ids if (spans := of(topic_id))}


def _union(parts: Iterable[_ByTopicId]) -> _ByTopicId:
    parts = list(parts)
    return _each(
        {topic_id: None for part in parts for topic_id in part},
        lambda each: union_by_partition([part.get(each, {}) for part in parts]),
    )


def _size(offsets: _ByTopicId) -> int:
    return sum(map(size_of, offsets.values()))


def stale_offsets(bronze: Ledger, typed: Ledger, topic_id: str) -> Mapping[int, SpanSet]:
    """Return decoded offsets that have landed again since, by partition.

    Compares versions of the bronze table. A rebuilt table counts its versions from 0, in a later
    epoch.

    Args:
        bronze: The complete ledger of the bronze pipeline.
        typed: The complete ledger of the typed table.
        topic_id: Incarnation of the topic.
    """
    landings = [
        (record.plan.epoch, record.held_now.table_version, record.held_now.spans())
        for record in bronze.plans.values()
        if record.held_now and record.plan.topic_id == topic_id
    ]
    decoded = [
        (*_decoded_version(record.plan), record.held_now.spans())
        for record in typed.plans.values()
        if record.held_now and record.plan.topic_id == topic_id
    ]
    by_epoch = _landed_later(
        [(e, spans) for e, _, spans in landings], [(e, spans) for e, _, spans in decoded]
    )
    by_version = _landed_later(
        [(v, spans) for _, v, spans in landings], [(v, spans) for _, v, spans in decoded]
    )
    return union_by_partition([by_epoch, by_version])


_Versioned: TypeAlias = Sequence[tuple[int, Mapping[int, SpanSet]]]
"""Pairs of a version or epoch and offsets by partition."""


def _landed_later(landings: _Versioned, decoded: _Versioned) -> Mapping[int, SpanSet]:
    """Return the decoded offsets that landed in a later version or epoch than was decoded."""
    waiting = sorted(landings, key=lambda landing: landing[0])
    # Newest first: offsets that landed after a plan also landed after all older plans.
    since: Mapping[int, SpanSet] = {}
    stale = []
    for seen, spans in sorted(decoded, key=lambda plan: plan[0], reverse=True):
        while waiting and waiting[-1][0] > seen:
            since = union_by_partition([since, waiting.pop()[1]])
        stale.append(intersection_by_partition(spans, since))
    return union_by_partition(stale)


def _decoded_version(plan: Plan) -> tuple[int, int]:
    """Return the epoch and the version of the bronze table that a typed plan decodes."""
    source = plan.origin
    return (source.epoch, source.version) if isinstance(source, DecodeOrigin) else (-1, -1)
