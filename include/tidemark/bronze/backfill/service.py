"""Backfills: select offsets once, preview and record the request, and plan its chunks."""

from __future__ import annotations

import logging
import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, assert_never

from tidemark.bronze.backfill.errors import BackfillAhead, BackfillTooLarge, BackfillUnfinished
from tidemark.bronze.backfill.selection import (
    OffsetRanges,
    PlanRanges,
    RetainedLog,
    Selection,
    TimeWindow,
    chunks,
)
from tidemark.bronze.ingest.draft import RequestedOffsets
from tidemark.bronze.ingest.errors import PlanStillOpen
from tidemark.bronze.ingest.ledgers import (
    errors_of_current_ledger,
    read_checked_ledger,
    recorded_plan,
)
from tidemark.bronze.ingest.planner import (
    Planner,
    PlannerState,
    PlanOutcome,
    PlanResult,
    refuse_open_backfill,
)
from tidemark.bronze.ingest.ports import Ports
from tidemark.bronze.ingest.protocols import (
    ControlReader,
)
from tidemark.bronze.ingest.replacement import replaced_offsets
from tidemark.core import plan_rules
from tidemark.core.errors import InvalidSelection
from tidemark.core.events import BackfillRequested, Started
from tidemark.core.ledger import Ledger, PlanRecord
from tidemark.core.offsets import Span, SpanSet, size_of, span_lists, union_by_partition
from tidemark.core.origins import ChunkOrigin, RunOrigin
from tidemark.core.plain import record_of
from tidemark.core.plan import Plan, PlanKind
from tidemark.core.plan_rules import ClassifiedOffsets
from tidemark.core.table_state import SizeEstimate
from tidemark.core.texts import comma_list, counted, listed
from tidemark.core.watermarks import TopicWatermarks, Watermarks
from tidemark.delta.conflicts import retry_on_conflict
from tidemark.spec.model import PipelineSpec

log = logging.getLogger(__name__)

_MOST_RANGES = 3
"""Most ranges of a partition in the text of a preview."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillPreview:
    """The effects of a backfill.

    Attributes:
        pipeline: Pipeline name.
        watermarks: Watermarks of the topic at the time of the preview.
        found: The selected offsets by their state.
        readable_only: Whether offsets that Kafka has deleted are skipped instead of an error.
        replaces: Whether landed offsets are landed again, in place of their rows.
        chunks: Offsets of each plan to make, in order.
        size_estimate: Size of the new rows in the table.
        rewritten: Number of current files with rows to replace.
        plans: Number of offsets to replace, by landed plan.
        notes: Warnings for the requester, as sentences.
    """

    pipeline: str
    watermarks: TopicWatermarks
    found: ClassifiedOffsets
    readable_only: bool
    replaces: bool
    chunks: tuple[Mapping[int, SpanSet], ...]
    size_estimate: SizeEstimate
    rewritten: int
    plans: Mapping[int, int]
    notes: tuple[str, ...]

    @property
    def offsets(self) -> int:
        """Number of offsets to land; an upper bound of the records."""
        return size_of(self.found.missing)

    def explain(self) -> str:
        """Return a text: the offsets to land, and the state of the other selected offsets."""
        topic = f"topic {self.watermarks.topic}, id {self.watermarks.topic_id}"
        option = "; `--replace` reads landed offsets again" if self.only_skips_landed else ""
        return "\n".join([topic, *self._partition_lines(), *self.notes, self.effect + option])

    @property
    def only_skips_landed(self) -> bool:
        """Whether there is nothing to do, and a replacement would read landed offsets again."""
        return not self.offsets and bool(self.found.covered) and not self.replaces

    @property
    def effect(self) -> str:
        """The number of offsets and chunks to land, and the rows to replace, as text."""
        if not self.offsets:
            return "nothing to do: no selected offset is left to land"
        return (
            f"{counted(self.offsets, 'offset')} to land in {counted(len(self.chunks), 'chunk')}, "
            f"{self.size_estimate.explain()}; {self._rewriting()}"
        )

    def partitions(self) -> Sequence[Sequence[str]]:
        """Return a header and a row for each partition with selected offsets, as texts."""
        found = self.found
        columns = {
            "to land": found.missing,
            **({"replaced": found.replaced} if self.replaces else {}),
            "landed or lost": found.covered,
            **({"in an open plan": found.planned} if found.planned else {}),
            "deleted in Kafka": found.deleted,
        }
        rows = [("partition", *columns, "chunks", "ranges to land")]
        for partition in sorted({p for kind in columns.values() for p in kind}):
            sizes = [kind.get(partition, SpanSet()).size for kind in columns.values()]
            chunks = sum(partition in chunk for chunk in self.chunks)
            ranges = list(found.missing.get(partition, SpanSet()))
            text = comma_list(ranges[:_MOST_RANGES])
            if len(ranges) > _MOST_RANGES:
                text += f" and {len(ranges) - _MOST_RANGES:,} more"
            rows.append((str(partition), *(f"{size:,}" for size in sizes), f"{chunks:,}", text))
        return rows

    def _partition_lines(self) -> Iterator[str]:
        """Yield the rows of `partitions` with aligned columns; none without partitions."""
        rows = self.partitions()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
        for row in rows if len(rows) > 1 else ():
            cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=False)]
            yield "  ".join([*cells, row[-1]]).rstrip()

    def _rewriting(self) -> str:
        if not self.found.replaced:
            nothing = "none of them has landed, " if self.replaces else ""
            return f"{nothing}no file is rewritten"
        plans = ", ".join(f"{plan} ({size:,})" for plan, size in sorted(self.plans.items()))
        return (
            f"replacing the rows of {counted(size_of(self.found.replaced), 'landed offset')} "
            f"rewrites {counted(self.rewritten, 'file')}.\n"
            f"plans that lose rows, with the number of offsets: {plans}.\n"
            f"each chunk is one commit; a chunk fails if Kafka no longer has the record of a row"
        )

    def as_record(self) -> dict[str, Any]:
        """Return plain values, for `--json`."""
        return {
            "pipeline": self.pipeline,
            "topic": self.watermarks.topic,
            "topic_id": self.watermarks.topic_id,
            "offsets": self.offsets,
            "chunks": len(self.chunks),
            **record_of(self.size_estimate),
            "replaces": self.replaces,
            "files_rewritten": self.rewritten,
            "plans_replaced": {str(plan): size for plan, size in sorted(self.plans.items())},
            "ranges": span_lists(self.found.missing),
            "replaced": span_lists(self.found.replaced),
            "landed_or_lost": span_lists(self.found.covered),
            "planned": span_lists(self.found.planned),
            "deleted": span_lists(self.found.deleted),
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkState:
    """State of one chunk of a backfill.

    Attributes:
        number: Chunk number, from 1.
        offsets: Number of offsets.
        plan: Its newest plan; None before the first, or if no offset was left to plan.
        done: Whether no offset is left to land.
    """

    number: int
    offsets: int
    plan: int | None
    done: bool

    @property
    def state(self) -> str:
        """The state in words. A chunk is also done if other plans landed it or Kafka deleted it."""
        if not self.done:
            return "not landed"
        return "landed" if self.plan else "nothing left to land"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfills:
    """Records backfill requests of one pipeline, and plans their chunks. Writes no rows."""

    planner: Planner

    @property
    def spec(self) -> PipelineSpec:
        """The pipeline."""
        return self.planner.spec

    @property
    def ports(self) -> Ports:
        """The ports of its table."""
        return self.planner.ports

    def preview(
        self,
        selection: Selection,
        chunk_offsets: int | None,
        *,
        readable_only: bool,
        replaces: bool = False,
    ) -> BackfillPreview:
        """Return what a backfill would do. Writes nothing.

        Args:
            selection: The offsets to land.
            chunk_offsets: Maximum offsets of one plan; None for the spec's limit.
            readable_only: Skip offsets that Kafka has deleted, instead of raising an error.
            replaces: Land landed offsets again, in place of their rows.

        Raises:
            InvalidSelection: The selection does not fit the topic.
            BackfillTooLarge: The backfill has more chunks than a DAG run can map.
            PlanStillOpen: Another backfill plan of this pipeline is open.
            NoStartOffset: The spec has `start: none`, and the pipeline has no start offsets.
            LogTruncated: The log was truncated before a landed offset and has grown again.
            RowsChanged: A chunk would replace a part of a range with changed rows.
            TopicRecreated and so on: The topic was replaced.
            ControlConflict: Other processes changed the pipeline during each of several attempts.
        """
        return retry_on_conflict(
            lambda: self._preview(
                selection, chunk_offsets, readable_only=readable_only, replaces=replaces
            )
        )

    def _preview(
        self,
        selection: Selection,
        chunk_offsets: int | None,
        *,
        readable_only: bool,
        replaces: bool,
    ) -> BackfillPreview:
        planner = self.planner
        state = planner.read_state(PlanKind.BACKFILL)
        ledger = state.ledger
        if state.open_plan:
            refuse_open_backfill(state.open_plan)
        watermarks = self.ports.watermarks_of(self.spec)
        with errors_of_current_ledger(self.ports.control, ledger):
            # Before the selection, which would look invalid if the topic was recreated.
            plan_rules.check_identity(ledger, watermarks)
            spans, notes = self._wanted(selection, watermarks)
            wanted = RequestedOffsets(spans=spans, readable_only=readable_only, replaces=replaces)
            topic = planner.comparison.compare(ledger, watermarks, spans)
            found = planner.drafter.backfill(topic, wanted).requested
        size = self.ports.table.size()
        task_offsets = size.records_within(self.spec.records_per_task, self.spec.bytes_per_task)
        most = chunk_offsets or self.spec.records_per_chunk
        parts = chunks(self.spec.name, found.missing, most, task_offsets)
        return BackfillPreview(
            pipeline=self.spec.name,
            watermarks=watermarks,
            found=found,
            readable_only=readable_only,
            replaces=replaces,
            chunks=parts,
            size_estimate=size.size_estimate(
                (span for part in parts for spans in part.values() for span in spans), task_offsets
            ),
            rewritten=(
                self.ports.table.files_with(watermarks.topic_id, found.replaced)
                if found.replaced
                else 0
            ),
            plans=self._replaced_plans(state, watermarks, parts) if found.replaced else {},
            notes=(*notes, *self._overlapping_requests(ledger, watermarks.topic_id, found.missing)),
        )

    def _overlapping_requests(
        self, ledger: Ledger, topic_id: str, spans: Mapping[int, SpanSet]
    ) -> Iterator[str]:
        """Yield a note for each unfinished request that shares some of these offsets."""
        for request in self.ports.control.backfills(self.spec.name):
            requested = union_by_partition(request.chunks)
            overlaps = any(
                some.intersection(requested.get(p, SpanSet())) for p, some in spans.items()
            )
            if request.topic_id != topic_id or not overlaps:
                continue
            states = zip(request.chunks, self._progress(ledger, request), strict=True)
            open_chunks = union_by_partition(chunk for chunk, state in states if not state.done)
            both = sum(s.intersection(open_chunks.get(p, SpanSet())).size for p, s in spans.items())
            if both:
                requester = shlex.quote(request.requested_by)
                yield (
                    f"note: an unfinished backfill of {request.requested_by} has {both:,} of these "
                    f"offsets; to continue it instead: "
                    f"tidemark backfill {self.spec.name} --resume {requester}"
                )

    def _replaced_plans(
        self,
        state: PlannerState,
        watermarks: TopicWatermarks,
        parts: Sequence[Mapping[int, SpanSet]],
    ) -> Mapping[int, int]:
        full = state.with_landing(self.ports.control.ledger(self.spec.name))
        plans = Counter[int]()
        for part in parts:
            plans.update(replaced_offsets(part, watermarks.topic_id, full, self.ports.table))
        return plans

    def request(
        self, seen: BackfillPreview, requested_by: str, *, approved: bool, reason: str | None = None
    ) -> int:
        """Record the request to land what a preview shows.

        Args:
            seen: The preview; if it has no chunk, nothing is recorded.
            requested_by: The requester.
            approved: Whether a backfill above the spec's limit is approved.
            reason: The requester's reason; required for a replacement.

        Returns:
            Number of chunks. If the requester has a recorded request, its number of chunks.

        Raises:
            InvalidSelection: A replacement has no reason.
            BackfillTooLarge: The backfill is above the limit and not approved.
            NoStartOffset: The spec has `start: none`, and the pipeline has no start offsets.
        """
        if seen.replaces and not reason:
            raise InvalidSelection.of_backfill(rule="a reason for replacing rows", seen="none")
        if seen.offsets > self.spec.records_per_backfill and not approved:
            raise BackfillTooLarge.of_offsets(
                self.spec.name, seen.offsets, self.spec.records_per_backfill
            )
        request = retry_on_conflict(lambda: self._append_request(seen, requested_by, reason))
        return len(request.chunks) if request else 0

    def plan_chunk(self, requested_by: str, number: int) -> PlanResult:
        """Plan the missing offsets of a chunk, or return its existing plan.

        Args:
            requested_by: The requester of the backfill.
            number: Chunk number, from 1.

        Raises:
            InvalidSelection: There is no such request or chunk, or the topic was recreated since,
                or Kafka has deleted offsets of the chunk since.
            BackfillAhead: The plan of another backfill or chunk is open.
        """
        request, chunk = self._chunk(requested_by, number)
        wanted = RequestedOffsets(
            spans=chunk,
            topic_id=request.topic_id,
            readable_only=request.readable_only,
            replaces=request.replaces,
        )
        return self._plan(wanted, ChunkOrigin(requested_by, number))

    def open_plan_of_other_chunk(self, requested_by: str, number: int) -> Plan | None:
        """Return the open plan of another chunk of the same backfill; None without one.

        This plan must land before the chunk is planned. Needs no Kafka.
        """
        match self.ports.control.summary(self.spec.name).open_plan(PlanKind.BACKFILL):
            case PlanRecord(plan=Plan(origin=ChunkOrigin(requester, chunk)) as plan):
                return plan if requester == requested_by and chunk != number else None
        return None

    def plan_whole(self, selection: Selection, requested_by: str) -> PlanResult:
        """Plan the missing offsets of a selection without chunks, or return its existing plan.

        Raises:
            BackfillAhead: Another backfill plan of this pipeline is open.
            InvalidSelection and so on: See `preview`.
        """
        watermarks = self.ports.watermarks_of(self.spec)
        spans, notes = self._wanted(selection, watermarks)
        for note in notes:
            log.warning(
                "time window is incomplete pipeline=%s message=%s",
                self.spec.name,
                note.removeprefix("note: "),
            )
        wanted = RequestedOffsets(
            spans=spans,
            topic_id=watermarks.topic_id,
            # A time window selects no fixed offsets, so deleted offsets need no error.
            readable_only=isinstance(selection, TimeWindow),
        )
        return self._plan(wanted, RunOrigin(requested_by))

    def plan_rest(self, plan: Plan, requested_by: str) -> PlanResult:
        """Plan the offsets that the landing of a plan of `plan_whole` missed, or return the plan.

        No other run reads them if they are before the start of the pipeline.

        Args:
            plan: The newest plan of the requester.
            requested_by: The requester.

        Raises:
            BackfillAhead: Another backfill plan of this pipeline is open.
        """
        if plan.topic_id != self.ports.control.summary(self.spec.name).topic_id:
            return PlanResult(outcome=PlanOutcome.KEPT, plan=plan)
        wanted = RequestedOffsets(spans=plan.spans(), topic_id=plan.topic_id, readable_only=True)
        return self._plan(wanted, RunOrigin(requested_by))

    def _plan(self, wanted: RequestedOffsets, origin: RunOrigin | ChunkOrigin) -> PlanResult:
        """Plan requested offsets. An open plan of another request has to land first."""
        try:
            return self.planner.backfill(wanted, origin)
        except PlanStillOpen as opened:
            raise BackfillAhead(
                pipeline=opened.pipeline,
                sequence=opened.sequence,
                state=opened.state,
            ) from opened

    def progress(self, requested_by: str) -> list[ChunkState]:
        """Return the state of each chunk.

        Raises:
            InvalidSelection: The requester has no recorded request.
        """
        request, _ = self._chunk(requested_by, 1)
        return self._progress(self.ports.control.summary(self.spec.name), request)

    def _progress(self, ledger: Ledger, request: BackfillRequested) -> list[ChunkState]:
        left = self._unlanded(ledger, request)
        # Offsets to replace have landed before, so the chunk's own plan decides.
        readable = (
            self._readable(request, union_by_partition(request.chunks)) if request.replaces else {}
        )
        open_plans = {record.plan.sequence for record in ledger.open_plans()}
        states = []
        for number, chunk in enumerate(request.chunks, start=1):
            plan = ledger.plan_requested_by(ChunkOrigin(request.requested_by, number))
            done = not any(spans.intersection(left.get(p, SpanSet())) for p, spans in chunk.items())
            if done and request.replaces:
                nothing = not any(
                    s.intersection(readable.get(p, SpanSet())) for p, s in chunk.items()
                )
                done = plan not in open_plans if plan else nothing
            states.append(ChunkState(number=number, offsets=size_of(chunk), plan=plan, done=done))
        return states

    # -- selections --------------------------------------------------------------------------------

    def _wanted(
        self, selection: Selection, watermarks: TopicWatermarks
    ) -> tuple[Mapping[int, SpanSet], tuple[str, ...]]:
        """Return the offsets of a selection, and warnings about them."""
        match selection:
            case OffsetRanges():
                return selection.spans, ()
            case TimeWindow():
                return self._window(selection, watermarks)
            case RetainedLog():
                partitions = _partitions(selection.partitions, watermarks)
                return _spans({p: (here.low, here.end) for p, here in partitions.items()}), ()
            case PlanRanges():
                plan = recorded_plan(self.ports.control, self.spec.name, selection.sequence).plan
                plan_rules.check_incarnation(self.spec.name, plan.topic_id, watermarks)
                return plan.spans(), ()
            case _:
                assert_never(selection)

    def _window(
        self, window: TimeWindow, watermarks: TopicWatermarks
    ) -> tuple[Mapping[int, SpanSet], tuple[str, ...]]:
        partitions = _partitions(window.partitions, watermarks)
        starts, ends = (
            self._at(watermarks, partitions, each) for each in (window.start, window.end)
        )
        cut = {
            "Kafka has deleted earlier offsets, which may be in the window, in": [
                p for p, here in partitions.items() if starts[p] <= here.low > 0
            ],
            "records that were written since, or are not committed yet, are left out in": [
                p for p, here in partitions.items() if ends[p] > here.end
            ],
        }
        notes = (f"note: {text} {listed('partition', some)}" for text, some in cut.items() if some)
        spans = {p: (starts[p], min(ends[p], here.end)) for p, here in partitions.items()}
        return _spans(spans), tuple(notes)

    def _at(
        self, watermarks: TopicWatermarks, partitions: Collection[int], moment: datetime
    ) -> Mapping[int, int]:
        return self.ports.watermarks.offsets_at(watermarks.topic, sorted(partitions), moment)

    def _append_request(
        self, seen: BackfillPreview, requested_by: str, reason: str | None
    ) -> BackfillRequested | None:
        """Record a request; return the recorded one, or None if the preview has no chunk.

        For a pipeline without a plan, also records where the pipeline begins.
        """
        ledger = read_checked_ledger(self.ports.control, self.spec.name, self.ports.table)
        known = recorded_request(self.ports.control, self.spec.name, requested_by)
        if known or not seen.chunks:
            return known
        # The ledger may be newer than the preview; planning a chunk compares its offsets again.
        plan_rules.check_identity(ledger, seen.watermarks)
        request = BackfillRequested(
            cluster_id=seen.watermarks.cluster_id,
            topic=seen.watermarks.topic,
            topic_id=seen.watermarks.topic_id,
            requested_by=requested_by,
            readable_only=seen.readable_only,
            replaces=seen.replaces,
            reason=reason,
            chunks=seen.chunks,
        )
        starts = self.planner.drafter.starts(ledger, seen.watermarks)
        started = [Started.at(seen.watermarks, starts, requested_by)] if starts else []
        self.ports.control.append(ledger, [*started, request], self.ports.now())
        log.info(
            "backfill recorded pipeline=%s requested_by=%s chunks=%d offsets=%d",
            *(self.spec.name, requested_by, len(request.chunks), seen.offsets),
        )
        return request

    # -- chunks ------------------------------------------------------------------------------------

    def _chunk(
        self, requested_by: str, number: int
    ) -> tuple[BackfillRequested, Mapping[int, SpanSet]]:
        request = recorded_request(self.ports.control, self.spec.name, requested_by)
        chunks = request.chunks if request else ()
        if request is None or not 1 <= number <= len(chunks):
            raise InvalidSelection.of_chunk(
                pipeline=self.spec.name,
                requested_by=requested_by,
                chunk=number,
                chunks=len(chunks),
            )
        return request, chunks[number - 1]

    def _unlanded(self, ledger: Ledger, request: BackfillRequested) -> Mapping[int, SpanSet]:
        """Return the offsets of a request that have not landed, including those in open plans."""
        wanted = union_by_partition(request.chunks)
        if request.topic_id != ledger.topic_id:
            return wanted
        left = {p: spans.difference(ledger.covered(p)) for p, spans in wanted.items()}
        return self._readable(request, left) if size_of(left) else left

    def _readable(
        self, request: BackfillRequested, spans: Mapping[int, SpanSet]
    ) -> Mapping[int, SpanSet]:
        """Return the offsets without those that Kafka has deleted, if the request skips them.

        Retention has not deleted offsets of a recreated topic, or after the end of a truncated log.
        So they count.
        """
        if not request.readable_only:
            return spans
        now = self.ports.watermarks.topic_watermarks(request.topic, self.spec.isolation_level)
        if now.topic_id != request.topic_id:
            return spans
        here = now.partitions
        kept = {
            p: some.difference(here[p].deleted(some)) if p in here else some
            for p, some in spans.items()
        }
        return {p: some for p, some in kept.items() if some}


def recorded_request(
    control: ControlReader, pipeline: str, requested_by: str
) -> BackfillRequested | None:
    """Return the first recorded backfill of a requester; None without one. Needs no Kafka."""
    return next(iter(control.backfills(pipeline, requested_by)), None)


def check_finished(pipeline: str, requested_by: str, chunks: Sequence[ChunkState]) -> None:
    """Check that all chunks of a backfill have landed.

    Raises:
        BackfillUnfinished
    """
    left = tuple(each.number for each in chunks if not each.done)
    if left:
        raise BackfillUnfinished(pipeline=pipeline, requested_by=requested_by, chunks=left)


def _partitions(selected: Collection[int], watermarks: TopicWatermarks) -> Mapping[int, Watermarks]:
    plan_rules.check_partitions(watermarks, selected)
    return {p: here for p, here in watermarks.partitions.items() if not selected or p in selected}


def _spans(ends: Mapping[int, tuple[int, int]]) -> Mapping[int, SpanSet]:
    """Return spans by partition; omit partitions with an empty span."""
    return {p: SpanSet((Span(start, end),)) for p, (start, end) in ends.items() if start < end}
