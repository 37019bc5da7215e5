"""Backfills: decide once which offsets are wanted, show it, and land them chunk by chunk."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, assert_never

from tidemark.backfill.errors import (
    BackfillAhead,
    BackfillTooLarge,
    BackfillUnfinished,
    UnknownBackfill,
)
from tidemark.backfill.selection import (
    OffsetRanges,
    PlanRanges,
    RetainedLog,
    Selection,
    TimeWindow,
    chunk_requester,
    chunks,
)
from tidemark.core import plan_rules as planning
from tidemark.core.errors import InvalidSelection
from tidemark.core.events import BackfillRequested, Started
from tidemark.core.ledger import Ledger
from tidemark.core.offsets import Span, SpanSet, size_of, united
from tidemark.core.plan import PlanKind
from tidemark.core.plan_rules import Sorted
from tidemark.core.table_state import Footprint
from tidemark.core.watermarks import TopicWatermarks, Watermarks
from tidemark.ingest.conflicts import retry_on_conflict
from tidemark.ingest.errors import BackfillOpen
from tidemark.ingest.planner import (
    Planner,
    PlannerState,
    PlanResult,
    RequestedOffsets,
    refuse_open_backfill,
)
from tidemark.ingest.protocols import BronzeLog, Clock, ControlTable, TopicLogReader, TopicReader
from tidemark.ingest.recorder import checked_ledger, recorded_plan
from tidemark.ingest.replacement import replaced_offsets
from tidemark.spec.model import PipelineSpec

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillPreview:
    """What a backfill would do.

    Attributes:
        pipeline: Pipeline name.
        watermarks: The topic, as it was looked at.
        found: The offsets that were asked for, by what is the matter with them.
        readable_only: Whether what Kafka deletes meanwhile is left out, or refused.
        replaces: Whether what has landed is landed again, in place of the rows that are there.
        chunks: Offsets of each plan that would be made, one after the other.
        footprint: What they would add to the table.
        rewritten: Files of now that hold rows at offsets to be replaced.
        plans: How many offsets of each landed plan are to be replaced, by its number.
        notes: What else there is to know, in sentences.
    """

    pipeline: str
    watermarks: TopicWatermarks
    found: Sorted
    readable_only: bool
    replaces: bool
    chunks: tuple[Mapping[int, SpanSet], ...]
    footprint: Footprint
    rewritten: int
    plans: Mapping[int, int]
    notes: tuple[str, ...]

    @property
    def offsets(self) -> int:
        """Offsets to be landed; at most this many records."""
        return size_of(self.found.missing)

    def explain(self) -> str:
        """What would be landed, and why the rest would not, for people."""
        found = self.found
        columns = {
            "to land": found.missing,
            **({"of them again": found.replaced} if self.replaces else {}),
            "landed/given up": found.covered,
            "in an open plan": found.planned,
            "deleted": found.deleted,
        }
        lines = [
            f"topic {self.watermarks.topic}, id {self.watermarks.topic_id}",
            f"{'partition':>10} {' '.join(f'{name:>15}' for name in columns)}  ranges to land",
        ]
        for partition in sorted({p for kind in columns.values() for p in kind}):
            sizes = [kind.get(partition, SpanSet()).size for kind in columns.values()]
            ranges = ", ".join(map(str, found.missing.get(partition, SpanSet())))
            told = " ".join(f"{size:>15,}" for size in sizes)
            lines.append(f"{partition:>10} {told}  {ranges}")
        lines += self.notes
        if not self.offsets:
            which = "readable" if self.replaces else "missing and readable"
            return "\n".join([*lines, f"nothing to do: none of it is {which}, and in no open plan"])
        lines.append(
            f"{self.offsets:,} offset(s) to land in {len(self.chunks):,} chunk(s), "
            f"{self.footprint.explain()}; {self._rewriting()}"
        )
        return "\n".join(lines)

    def _rewriting(self) -> str:
        if not self.found.replaced:
            nothing = "nothing of it has landed, " if self.replaces else ""
            return f"{nothing}no file is rewritten"
        whose = ", ".join(f"{plan} ({size:,})" for plan, size in sorted(self.plans.items()))
        return (
            f"the rows of {size_of(self.found.replaced):,} landed offset(s) are replaced, for "
            f"which {self.rewritten:,} file(s) of now are rewritten.\n"
            f"plans that lose rows, with offsets: {whose}.\n"
            f"each chunk is one commit; a row that Kafka has no record for any more stops its chunk"
        )

    def as_record(self) -> dict[str, Any]:
        """The preview as plain values, for `--json`."""
        return {
            "pipeline": self.pipeline,
            "topic": self.watermarks.topic,
            "topic_id": self.watermarks.topic_id,
            "offsets": self.offsets,
            "chunks": len(self.chunks),
            **self.footprint.as_record(),
            "replaces": self.replaces,
            "files_rewritten": self.rewritten,
            "plans_replaced": {str(plan): size for plan, size in sorted(self.plans.items())},
            "ranges": _listed(self.found.missing),
            "replaced": _listed(self.found.replaced),
            "landed_or_given_up": _listed(self.found.covered),
            "planned": _listed(self.found.planned),
            "deleted": _listed(self.found.deleted),
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkState:
    """One chunk of a backfill, and what became of it.

    Attributes:
        number: From 1.
        offsets: Its number of offsets.
        plan: Its newest plan; None before there is one, or if nothing was left to plan.
        done: Whether nothing of it is left to be landed.
    """

    number: int
    offsets: int
    plan: int | None
    done: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfills:
    """Asks for offsets of one pipeline, and plans them in chunks. Writes control events only."""

    spec: PipelineSpec
    watermarks: TopicReader
    control: ControlTable
    data_log: BronzeLog
    log_reader: TopicLogReader
    now: Clock

    def preview(
        self,
        selection: Selection,
        chunk_offsets: int | None,
        *,
        readable_only: bool,
        replaces: bool = False,
    ) -> BackfillPreview:
        """What a backfill would do. Writes nothing.

        Args:
            selection: Which offsets are wanted.
            chunk_offsets: Most offsets of one plan; the spec's if None.
            readable_only: Leave out what Kafka has deleted, instead of refusing it.
            replaces: Land again what has landed, in place of the rows that are there.

        Raises:
            InvalidRange, UnknownPartition, UnknownPlan, OtherIncarnation: Nobody can want that.
            TooManyChunks: More chunks than a DAG run can have.
            BackfillOpen: Another backfill of this pipeline has not landed.
            NoStartOffset: The pipeline has not begun, and its spec does not say where to.
            LogTruncated: The log was cut behind what was read, and has grown again.
            RowsChanged: A chunk would replace a part of a range that somebody has changed.
            TopicRecreated and so on: The topic is not the one that the pipeline knows.
        """
        foreseen = self._planner.foreseen(PlanKind.BACKFILL)
        ledger = foreseen.ledger
        if foreseen.opened:
            refuse_open_backfill(foreseen.opened)
        watermarks = self.watermarks.topic_watermarks(self.spec.topic, self.spec.isolation_level)
        planning.check_identity(ledger, watermarks)
        wanted, notes = self._wanted(selection, watermarks)
        found = planning.sort_out(ledger, watermarks, wanted, replaces=replaces)
        if not readable_only:
            planning.refuse_deleted(watermarks, found)
        self._planner.starts(ledger, watermarks)
        ranges = planning.planned_ranges(watermarks, found.missing)
        self._planner.comparison.check_ends(ledger, watermarks, found.missing)
        self._planner.comparison.check_leaders(ledger, watermarks, ranges)
        size = self.data_log.size()
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
            footprint=size.footprint(
                (span for part in parts for spans in part.values() for span in spans), task_offsets
            ),
            rewritten=(
                self.data_log.files_with(watermarks.topic_id, found.replaced)
                if found.replaced
                else 0
            ),
            plans=self._replaced_plans(foreseen, watermarks, parts) if found.replaced else {},
            notes=(*notes, *self._also_asked_for(ledger, watermarks.topic_id, found.missing)),
        )

    def _also_asked_for(
        self, ledger: Ledger, topic_id: str, spans: Mapping[int, SpanSet]
    ) -> Iterator[str]:
        """What other backfills have asked for of some offsets, and not landed."""
        for request in self.control.backfills(self.spec.name):
            asked = united(request.chunks)
            is_about = any(some.common(asked.get(p, SpanSet())) for p, some in spans.items())
            if request.topic_id != topic_id or not is_about:
                continue
            states = zip(request.chunks, self._progress(ledger, request), strict=True)
            open_chunks = united(chunk for chunk, state in states if not state.done)
            both = sum(s.common(open_chunks.get(p, SpanSet())).size for p, s in spans.items())
            if both:
                yield (
                    f"note: {request.requested_by} has asked for {both:,} of these offsets, which "
                    f"have not landed; to go on with that instead: "
                    f"tidemark backfill {self.spec.name} --resume {request.requested_by}"
                )

    def _replaced_plans(
        self,
        foreseen: PlannerState,
        watermarks: TopicWatermarks,
        parts: Sequence[Mapping[int, SpanSet]],
    ) -> Mapping[int, int]:
        whole = foreseen.after(self.control.ledger(self.spec.name))
        plans = Counter[int]()
        for part in parts:
            plans.update(replaced_offsets(part, watermarks.topic_id, whole, self.data_log))
        return plans

    def request(
        self, seen: BackfillPreview, requested_by: str, *, approved: bool, reason: str | None = None
    ) -> int:
        """Record that what a preview shows shall be landed.

        Args:
            seen: The preview; if nothing of it is missing, nothing is recorded.
            requested_by: Who asks.
            approved: Somebody has said yes to a backfill above the spec's limit.
            reason: Why rows are to be replaced, in their words.

        Returns:
            Number of chunks; those of what this requester has asked for before, if they have.

        Raises:
            InvalidSelection: Rows are to be replaced, and nobody says why.
            BackfillTooLarge: Above the limit, and not approved.
            NoStartOffset: The pipeline has not begun, and its spec does not say where to.
        """
        if seen.replaces and not reason:
            raise InvalidSelection(rule="a reason for replacing rows", seen="none")
        if seen.offsets > self.spec.records_per_backfill and not approved:
            raise BackfillTooLarge(
                pipeline=self.spec.name,
                offsets=seen.offsets,
                limit=self.spec.records_per_backfill,
            )
        return retry_on_conflict(lambda: self._recorded(seen, requested_by, reason))

    def chunk_count(self, requested_by: str) -> int | None:
        """Number of chunks of what a requester has asked for; None if they have not."""
        known = self._request(requested_by)
        return len(known.chunks) if known else None

    def plan_chunk(self, requested_by: str, number: int) -> PlanResult:
        """Plan what is missing of a chunk, or find the plan that it has.

        Args:
            requested_by: Who asked for the backfill.
            number: The chunk, from 1.

        Raises:
            UnknownBackfill: Nobody has asked for it, or it has no such chunk.
            OtherIncarnation: The topic is another one since.
            InvalidRange: Kafka has deleted offsets of the chunk since.
            BackfillAhead: Another backfill's plan, or another chunk's, has not landed.
        """
        request, chunk = self._chunk(requested_by, number)
        wanted = RequestedOffsets(
            spans=chunk,
            topic_id=request.topic_id,
            readable_only=request.readable_only,
            replaces=request.replaces,
        )
        return self._planned(wanted, chunk_requester(requested_by, number))

    def plan_whole(self, selection: Selection, requested_by: str) -> PlanResult:
        """Plan what is missing of a selection at once, without chunks, or find the plan there is.

        Raises:
            BackfillAhead: Another backfill of this pipeline has not landed.
            UnknownPartition and so on: As for `preview`.
        """
        watermarks = self.watermarks.topic_watermarks(self.spec.topic, self.spec.isolation_level)
        spans, notes = self._wanted(selection, watermarks)
        for note in notes:
            log.warning("pipeline=%s %s", self.spec.name, note)
        wanted = RequestedOffsets(
            spans=spans,
            topic_id=watermarks.topic_id,
            # Times name no offsets: what retention takes meanwhile was as good as gone before.
            readable_only=isinstance(selection, TimeWindow),
        )
        return self._planned(wanted, requested_by)

    def progress(self, requested_by: str) -> list[ChunkState]:
        """What became of each chunk.

        Raises:
            UnknownBackfill: Nobody has asked for it.
        """
        request, _ = self._chunk(requested_by, 1)
        return self._progress(self.control.summary(self.spec.name), request)

    def _progress(self, ledger: Ledger, request: BackfillRequested) -> list[ChunkState]:
        left = self._left(ledger, request)
        # Of what is to be replaced all has landed before: there the chunk's own plan tells.
        readable = self._readable(request, united(request.chunks)) if request.replaces else {}
        open_plans = {record.plan.sequence for record in ledger.open_plans()}
        states = []
        for number, chunk in enumerate(request.chunks, start=1):
            plan = ledger.plan_of(chunk_requester(request.requested_by, number))
            done = not any(spans.common(left.get(p, SpanSet())) for p, spans in chunk.items())
            if done and request.replaces:
                nothing = not any(s.common(readable.get(p, SpanSet())) for p, s in chunk.items())
                done = plan not in open_plans if plan else nothing
            states.append(ChunkState(number=number, offsets=size_of(chunk), plan=plan, done=done))
        return states

    # -- deciding ----------------------------------------------------------------------------------

    @property
    def _planner(self) -> Planner:
        return Planner(
            spec=self.spec,
            watermarks=self.watermarks,
            control=self.control,
            data_log=self.data_log,
            log_reader=self.log_reader,
            now=self.now,
        )

    def _wanted(
        self, selection: Selection, watermarks: TopicWatermarks
    ) -> tuple[Mapping[int, SpanSet], tuple[str, ...]]:
        """The offsets that a selection means, and what there is to know about them."""
        match selection:
            case OffsetRanges():
                return selection.spans, ()
            case TimeWindow():
                return self._window(selection, watermarks)
            case RetainedLog():
                partitions = _partitions(selection.partitions, watermarks)
                return _spans({p: (here.low, here.end) for p, here in partitions.items()}), ()
            case PlanRanges():
                of = selection.pipeline or self.spec.name
                plan = recorded_plan(self.control, of, selection.sequence).plan
                planning.check_topic(self.spec.name, plan.topic_id, watermarks)
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
            "Kafka has deleted what was before it, records of the window perhaps among it, in "
            "partition(s)": [p for p, here in partitions.items() if starts[p] <= here.low > 0],
            "records of the window that came meanwhile, or are not committed yet, are left out, "
            "in partition(s)": [p for p, here in partitions.items() if ends[p] > here.end],
        }
        notes = (f"note: {text} {', '.join(map(str, some))}" for text, some in cut.items() if some)
        spans = {p: (starts[p], min(ends[p], here.end)) for p, here in partitions.items()}
        return _spans(spans), tuple(notes)

    def _at(
        self, watermarks: TopicWatermarks, partitions: Collection[int], moment: datetime
    ) -> Mapping[int, int]:
        return self.watermarks.offsets_at(watermarks.topic, sorted(partitions), moment)

    def _recorded(self, seen: BackfillPreview, requested_by: str, reason: str | None) -> int:
        ledger = checked_ledger(self.control, self.spec.name, self.data_log)
        known = self.chunk_count(requested_by)
        if known is not None or not seen.chunks:
            return known or 0
        planning.check_identity(ledger, seen.watermarks)
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
        starts = self._planner.starts(ledger, seen.watermarks)
        begun = [Started.at(seen.watermarks, starts, requested_by)] if starts else []
        self.control.append(ledger, [*begun, request], self.now())
        log.info("backfill recorded pipeline=%s requested_by=%s", self.spec.name, requested_by)
        return len(request.chunks)

    # -- chunks ------------------------------------------------------------------------------------

    def _request(self, requested_by: str) -> BackfillRequested | None:
        """What a requester asked for, if they have: the first time counts."""
        return next(iter(self.control.backfills(self.spec.name, requested_by)), None)

    def _chunk(
        self, requested_by: str, number: int
    ) -> tuple[BackfillRequested, Mapping[int, SpanSet]]:
        request = self._request(requested_by)
        chunks = request.chunks if request else ()
        if request is None or not 1 <= number <= len(chunks):
            raise UnknownBackfill(
                pipeline=self.spec.name,
                requested_by=requested_by,
                chunk=number,
                chunks=len(chunks),
            )
        return request, chunks[number - 1]

    def _planned(self, wanted: RequestedOffsets, requester: str) -> PlanResult:
        try:
            return self._planner.backfill(wanted, requester)
        except BackfillOpen as opened:
            raise BackfillAhead(
                pipeline=opened.pipeline,
                sequence=opened.sequence,
                requested_by=opened.requested_by,
            ) from opened

    def _left(self, ledger: Ledger, request: BackfillRequested) -> Mapping[int, SpanSet]:
        """Offsets of a request that may still be landed; what is in open plans is among them."""
        wanted = united(request.chunks)
        if request.topic_id != ledger.topic_id:
            return wanted
        left = {p: spans.minus(ledger.covered(p)) for p, spans in wanted.items()}
        return self._readable(request, left) if size_of(left) else left

    def _readable(
        self, request: BackfillRequested, spans: Mapping[int, SpanSet]
    ) -> Mapping[int, SpanSet]:
        """Without offsets that Kafka has deleted, if those are to be left out."""
        if not request.readable_only:
            return spans
        here = self.watermarks.topic_watermarks(request.topic, self.spec.isolation_level).partitions
        kept = {p: here[p].readable(some) if p in here else some for p, some in spans.items()}
        return {p: some for p, some in kept.items() if some}


def check_finished(pipeline: str, requested_by: str, chunks: Sequence[ChunkState]) -> None:
    """Refuse to call a backfill finished that is not.

    Raises:
        BackfillUnfinished
    """
    left = tuple(each.number for each in chunks if not each.done)
    if left:
        raise BackfillUnfinished(pipeline=pipeline, requested_by=requested_by, chunks=left)


def _partitions(asked: Collection[int], watermarks: TopicWatermarks) -> Mapping[int, Watermarks]:
    planning.check_partitions(watermarks, asked)
    return {p: here for p, here in watermarks.partitions.items() if not asked or p in asked}


def _spans(ends: Mapping[int, tuple[int, int]]) -> Mapping[int, SpanSet]:
    """Partitions where nothing lies between start and end are left out."""
    return {p: SpanSet((Span(start, end),)) for p, (start, end) in ends.items() if start < end}


def _listed(spans: Mapping[int, SpanSet]) -> list[list[int]]:
    return [[p, span.start, span.end] for p, some in sorted(spans.items()) for span in some]
