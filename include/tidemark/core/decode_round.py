"""One round of a decode: the offsets that its commit decodes and removes, and its bookmark.

A round reads the ledger and the tables, chooses whole bronze plans, decodes them, and makes at most
one commit to the typed table. The next round continues from the bookmark of that commit.

The protocol is in docs/adr/0028-derived-tables-follow-the-ledger.md.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Self

from tidemark.core.bookmark import MAX_RUNS, Bookmark, OffsetList, limited_plans
from tidemark.core.following import (
    Batch,
    BatchOffsets,
    PlansSince,
    allowed,
    by_topic_id,
    claimed,
    required,
)
from tidemark.core.offsets import Span, SpanSet, difference, intersection, size_of, union
from tidemark.core.publication import PublishRule


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRound:
    """The differences of a typed table from the newest event of its bronze pipeline.

    Attributes:
        found: The plans whose offsets may have changed.
        examined: Numbers of the plans that were requested from `read_since`.
        earlier: The newest bookmark of the typed table; None if it is unknown.
        noted: The newest bookmark, also if other programs have changed rows or the ledger since;
            None if the table has none or was restored. Only its lists of specs are true.
        publish: The rule by which landed offsets are required.
        spec: Fingerprint of the spec by which records are decoded.
        missing: Offsets to decode, in this round or a later one.
        surplus: Offsets of rows to remove, in this round or a later one.
        unknown_spec: Numbers of plans with rows that may have been decoded by any spec.
    """

    found: PlansSince
    examined: SpanSet
    earlier: Bookmark | None
    noted: Bookmark | None
    publish: PublishRule
    spec: str
    missing: BatchOffsets
    surplus: BatchOffsets
    unknown_spec: SpanSet

    @classmethod
    def since(
        cls,
        found: PlansSince,
        earlier: Bookmark,
        publish: PublishRule,
        present: BatchOffsets,
        examined: SpanSet,
        spec: str = "",
    ) -> Self:
        """Return the round after a known bookmark.

        Args:
            found: Result of `read_since`.
            earlier: The bookmark.
            publish: The rule by which landed offsets are required.
            present: Offsets of typed rows, at least those in `found.missing` and `found.outdated`.
            examined: Numbers of the plans that were requested from `read_since`: some pending
                plans, and all plans of a replay.
            spec: Fingerprint of the spec by which records are decoded.
        """
        return cls(
            found=found,
            examined=examined,
            earlier=earlier,
            noted=earlier,
            publish=publish,
            spec=spec,
            # fence: typed-offsets-are-not-added
            missing=difference(found.missing(earlier, publish), present),
            surplus=union(
                [
                    found.surplus(earlier, publish),
                    intersection(found.outdated(earlier, publish), present),
                ]
            ),
            unknown_spec=earlier.unknown_spec,
        )

    @classmethod
    def compared(
        cls,
        found: PlansSince,
        publish: PublishRule,
        present: BatchOffsets,
        spec: str = "",
        noted: Bookmark | None = None,
    ) -> Self:
        """Return the round without a known bookmark.

        Args:
            found: Result of `read_all`.
            publish: The rule by which landed offsets are required.
            present: Offsets of all typed rows.
            spec: Fingerprint of the spec by which records are decoded.
            noted: As in the class.
        """
        plans = found.now.values()
        unknown_spec = noted.unknown_spec if noted else SpanSet()
        if noted is None:  # fence: rows-without-a-bookmark-have-an-unknown-spec
            unknown_spec = SpanSet.of_numbers(_plans_of(present))
        return cls(
            found=found,
            examined=SpanSet(),
            earlier=None,
            noted=noted,
            publish=publish,
            spec=spec,
            missing=difference(required(plans, publish), present),
            surplus=difference(present, allowed(plans, publish)),
            unknown_spec=unknown_spec,
        )

    def chosen(self, waiting: Collection[int], most: int) -> BatchOffsets:
        """Return the offsets to decode in this round: those of the oldest plans.

        Args:
            waiting: Numbers of plans that have to stay pending.
            most: Maximum number of offsets. The first chosen plan may have more.
        """
        chosen: dict[int, BatchOffsets] = {}
        size = 0
        for batch, spans in sorted(self.missing.items(), key=lambda each: each[0]):
            if batch.sequence in waiting:
                continue
            if size and batch.sequence not in chosen and size + size_of(spans) > most:
                break
            size += size_of(spans)
            chosen[batch.sequence] = {**chosen.get(batch.sequence, {}), batch: spans}
        # Decoding a plan between pending plans adds a run to the bookmark.
        while len(chosen) > 1 and len(self._pending(chosen).spans) > MAX_RUNS:
            chosen.popitem()
        return {batch: spans for own in chosen.values() for batch, spans in own.items()}

    def replayed(self, offsets: BatchOffsets, decoded: BatchOffsets) -> BatchOffsets:
        """Return the offsets of a replay that this round can decode again.

        These are required, and their plans are not pending after the round.

        Args:
            offsets: The requested offsets. Their plans were requested from `read_since`.
            decoded: The chosen offsets.
        """
        return intersection(offsets, self._claimed_after(self._pending(_plans_of(decoded))))

    def removed(self, decoded: BatchOffsets) -> BatchOffsets:
        """Return the offsets of rows to remove in a commit that decodes the chosen offsets."""
        # fence: replaced-rows-stay-until-their-new-rows
        return difference(self.surplus, self.outdated(decoded))

    def outdated(self, decoded: BatchOffsets) -> BatchOffsets:
        """Return the offsets of replaced rows that stay after a commit.

        Their new rows wait, for example for the schema registry. Without both rows, published
        offsets would be missing. Rows of undone, blocked and rejected plans do not stay.

        Args:
            decoded: The chosen offsets.
        """
        waiting = by_topic_id(difference(self.missing, decoded))
        replaced = {
            batch: waiting.get(batch.topic_id, {})
            for batch in self.surplus
            if self._is_replaced(batch)  # fence: only-replaced-rows-stay
        }
        return intersection(self.surplus, replaced)

    def _is_replaced(self, batch: Batch) -> bool:
        """Whether rows of a plan can be surplus only because a later plan replaces them."""
        plan = self.found.now.get(batch.sequence)
        if plan is None or plan.plan.topic_id != batch.topic_id or plan.cancelled_by is not None:
            return False
        return plan.decision is None or plan.decision.status.is_visible

    def bookmark(
        self,
        decoded: BatchOffsets,
        replayed: BatchOffsets,
        *,
        has_failed: bool,
        renews: bool = False,
    ) -> Bookmark | None:
        """Return the bookmark of the commit; None if the round needs no commit.

        If an event since the earlier bookmark can change required or allowed offsets, a commit is
        needed even if no row changes. A late decoder then finds a later version than the one that
        it has opened.

        Args:
            decoded: The chosen offsets.
            replayed: Offsets that were decoded again.
            has_failed: Whether some of these records could not be decoded.
            renews: Whether to commit also if there is nothing to do. The log of the table keeps a
                commit for a limited time.
        """
        earlier = self.earlier
        exact, removed = self._pending(_plans_of(decoded)), self.removed(decoded)
        pending = limited_plans(exact)
        is_moved = (
            earlier is None
            # fence: bookmark-moves-without-rows
            or self.found.is_visible
            or earlier.publish is not self.publish  # fence: policy-moves-the-bookmark
            # Examined plans that are not required are done: the next round examines others.
            or earlier.pending != pending
        )
        if not (decoded or replayed or removed or is_moved or renews):
            return None
        changes_quarantine = (
            has_failed
            or bool(replayed)
            or earlier is None
            or pending != exact
            or bool(self._unclaimed(earlier, pending))
        )
        listed = self._listed(decoded, replayed)
        by_spec = self._decoded_by_spec(listed.plans)
        newest = SpanSet(by_spec.spans[-MAX_RUNS:])
        return Bookmark(
            event=self.found.event,
            digest=self.found.digest,
            publish=self.publish,
            pending=pending,
            decoded=listed.limited(),
            removed=OffsetList(spans=by_topic_id(removed, replayed)).limited(),
            changes_quarantine=changes_quarantine,
            spec=self.spec,
            decoded_by_spec=newest,
            replaced_specs=self.noted.replaced_specs if self.noted else (),
            outdated=limited_plans(SpanSet.of_numbers(_plans_of(self.outdated(decoded)))),
            unknown_spec=limited_plans(self.unknown_spec.union(by_spec).difference(newest)),
        )

    def _decoded_by_spec(self, decoded: SpanSet) -> SpanSet:
        """Return the plans that were decoded whole by the spec."""
        # fence: lists-of-specs-outlive-a-comparison
        if self.noted is not None and self.noted.spec == self.spec:
            return decoded.union(self.noted.decoded_by_spec)
        return decoded

    def _pending(self, decoded: Collection[int]) -> SpanSet:
        """Return the plans that are pending after a commit that decodes some plans."""
        left = SpanSet.of_numbers({batch.sequence for batch in self.missing} - set(decoded))
        if self.earlier is None:
            return left
        known = self.examined.union(SpanSet.of_numbers(self.found.now))
        # Examined plans stay pending only if some of their offsets are missing.
        return self.earlier.pending.difference(known).union(left)

    def _unclaimed(self, earlier: Bookmark, pending: SpanSet) -> BatchOffsets:
        """Return the offsets that the earlier bookmark claims and the new one does not."""
        before = claimed(self.found.before.values(), earlier)
        return difference(before, self._claimed_after(pending))

    def _claimed_after(self, pending: SpanSet) -> BatchOffsets:
        now = required(self.found.now.values(), self.publish)
        return {batch: spans for batch, spans in now.items() if batch.sequence not in pending}

    def _listed(self, decoded: BatchOffsets, replayed: BatchOffsets) -> OffsetList:
        """Return the decoded and replayed offsets as a list, whole plans by number."""
        now = required(self.found.now.values(), self.publish)
        whole = {batch for batch, spans in decoded.items() if spans == now.get(batch)}
        part = {batch: spans for batch, spans in decoded.items() if batch not in whole}
        return OffsetList(
            plans=SpanSet.of_numbers(batch.sequence for batch in whole),
            spans=by_topic_id(part, replayed),
        )


def cleared_bookmark(
    found: PlansSince, publish: PublishRule, spec: str = "", earlier: Bookmark | None = None
) -> Bookmark | None:
    """Return the bookmark of a commit that removes all typed rows. All plans are pending in it.

    Args:
        found: Result of `read_all`.
        publish: The rule by which landed offsets are required.
        spec: Fingerprint of the spec by which records are decoded.
        earlier: The newest bookmark of the typed table, also if other programs have changed rows
            since; None without one.

    Returns:
        None for a pipeline without events.
    """
    if not found.event:
        return None
    return Bookmark(
        event=found.event,
        digest=found.digest,
        publish=publish,
        pending=SpanSet.of([Span(1, max(found.now, default=1) + 1)]),
        decoded=OffsetList(),
        removed=None,
        changes_quarantine=True,
        spec=spec,
        replaced_specs=earlier.specs_replaced_by(spec) if earlier else (),
    )


def _plans_of(offsets: BatchOffsets) -> Collection[int]:
    return {batch.sequence for batch in offsets}
