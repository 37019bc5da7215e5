"""How far a typed table has followed the events of its bronze pipeline.

In the protocol of docs/adr/0028-derived-tables-follow-the-ledger.md, the metadata of each commit of
a decoder to the typed table contain a bookmark. Nothing else records the progress of decodes. If
the bookmark is unknown, the next decode compares all offsets of the typed table with the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Self

from tidemark.core.offsets import (
    Span,
    SpanSet,
    span_lists,
    spans_by_partition,
    union,
)
from tidemark.core.publication import PublishRule

MAX_RUNS = 1_000
"""Maximum number of runs of plan numbers, and of ranges of offsets, in each list of a bookmark.

Each opening of the typed table reads the newest commits of its log, and so their bookmarks.
"""

_MAX_SPECS = 100
"""Maximum number of replaced specs in a bookmark."""

_FORM = 2
"""Number of the metadata format. A bookmark in another format is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetList:
    """The offsets that a commit decoded, or those whose rows it removed.

    Attributes:
        plans: Numbers of the bronze plans whose offsets are all in the list.
        spans: Further offsets, for example of a replay, by topic id and partition.
    """

    plans: SpanSet = field(default_factory=SpanSet)
    spans: Mapping[str, Mapping[int, SpanSet]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.plans or self.spans)

    def union(self, other: Self) -> Self:
        """Return the offsets of both lists."""
        return type(self)(
            plans=self.plans.union(other.plans), spans=union([self.spans, other.spans])
        )

    def limited(self) -> Self | None:
        """Return the list; None if it has more than `MAX_RUNS` runs or ranges."""
        ranges = [span for some in self.spans.values() for each in some.values() for span in each]
        return None if max(len(self.plans.spans), len(ranges)) > MAX_RUNS else self

    def as_metadata(self) -> dict[str, Any]:
        """Return plain values for the metadata of a commit."""
        return {
            "plans": _run_lists(self.plans),
            "spans": {each: span_lists(some) for each, some in self.spans.items()},
        }

    @classmethod
    def parsed(cls, found: Any) -> Self:
        """Return the list with these metadata.

        Raises:
            AttributeError, KeyError, TypeError, ValueError: The value has another form.
        """
        return cls(
            plans=_runs(found["plans"]),
            spans={each: _spans(some) for each, some in found["spans"].items()},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bookmark:
    """The events that a commit to a typed table has followed, and the plans that it left for later.

    A bookmark *claims* the offsets that its event requires in the typed table or the quarantine,
    without those of pending plans.

    Attributes:
        event: Number of the newest event of the bronze pipeline that was followed.
        digest: Digest of that event; see `event_rows.event_digest`.
        publish: The rule by which landed offsets were required.
        pending: Numbers of the bronze plans that are left for a later commit. A run may contain
            numbers of plans that are not required, because these change nothing.
        decoded: The offsets that the commit decoded; None if there are too many to list. The
            quarantine then compares all claimed offsets, and the next merge rebuilds the upsert
            table.
        removed: The offsets of rows that the commit removed, or that a replay replaced; None if
            there are too many to list. The next merge then rebuilds the upsert table.
        changes_quarantine: Whether the quarantine has to follow the commit.
        spec: Fingerprint of the spec by which the commit decoded.
        decoded_by_spec: Numbers of plans whose offsets were all decoded by this spec. Only
            comparisons of rows read it: a plan may be missing.
        replaced_specs: Fingerprints of earlier specs by which no decode may continue, because the
            table was decoded from scratch with another one since.
        outdated: Numbers of plans that may have outdated rows. These are rows of replaced records,
            which stay until a pending plan with the same offsets is decoded. A run may contain
            numbers of other plans.
        unknown_spec: Numbers of plans that may have been decoded by any spec, for example because
            the table was restored since. All other plans were decoded by this spec, or by a known
            earlier one. Only comparisons of rows read it.
    """

    event: int
    digest: str
    publish: PublishRule
    pending: SpanSet
    decoded: OffsetList | None
    removed: OffsetList | None
    changes_quarantine: bool
    spec: str = ""
    decoded_by_spec: SpanSet = field(default_factory=SpanSet)
    replaced_specs: Sequence[str] = ()
    outdated: SpanSet = field(default_factory=SpanSet)
    unknown_spec: SpanSet = field(default_factory=SpanSet)

    def specs_replaced_by(self, spec: str) -> Sequence[str]:
        """Return the replaced specs after a decode from scratch with a spec."""
        found = dict.fromkeys((*self.replaced_specs, self.spec))
        return tuple(each for each in found if each != spec)[-_MAX_SPECS:]

    def as_metadata(self) -> dict[str, Any]:
        """Return plain values for the metadata of a commit."""
        return {
            "form": _FORM,
            "event": self.event,
            "digest": self.digest,
            "publish": str(self.publish),
            "pending": _run_lists(self.pending),
            "decoded": None if self.decoded is None else self.decoded.as_metadata(),
            "removed": None if self.removed is None else self.removed.as_metadata(),
            "changes_quarantine": self.changes_quarantine,
            "spec": self.spec,
            "decoded_by_spec": _run_lists(self.decoded_by_spec),
            "replaced_specs": list(self.replaced_specs),
            "outdated": _run_lists(self.outdated),
            "unknown_spec": _run_lists(self.unknown_spec),
        }

    @classmethod
    def from_metadata(cls, found: object) -> Self | None:
        """Return the bookmark with this metadata.

        Args:
            found: Any value from JSON, because other programs write metadata too.

        Returns:
            None if the value is no bookmark in this format.
        """
        try:
            return cls._parsed(found)
        except (AttributeError, KeyError, TypeError, ValueError):
            return None

    @classmethod
    def _parsed(cls, found: Any) -> Self:
        if _number(found["form"]) != _FORM:
            raise ValueError(f"expected format {_FORM}; got {found['form']}")
        changes_quarantine = found["changes_quarantine"]
        if not isinstance(changes_quarantine, bool):
            raise TypeError(f"expected bool; got {changes_quarantine!r}")
        decoded, removed = (
            None if found[name] is None else OffsetList.parsed(found[name])
            for name in ("decoded", "removed")
        )
        return cls(
            event=_number(found["event"]),
            digest=_text(found["digest"]),
            publish=PublishRule(found["publish"]),
            pending=_runs(found["pending"]),
            decoded=decoded,
            removed=removed,
            changes_quarantine=changes_quarantine,
            spec=_text(found["spec"]),
            decoded_by_spec=_runs(found["decoded_by_spec"]),
            replaced_specs=tuple(_text(each) for each in found["replaced_specs"]),
            outdated=_runs(found["outdated"]),
            unknown_spec=_runs(found["unknown_spec"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedChanges:
    """Changes of a typed table's rows between two of its versions.

    Attributes:
        decoded: The offsets that were decoded. Some of them may be in quarantine.
        removed: Offsets of rows that were removed, or that a replay replaced.
    """

    decoded: OffsetList = OffsetList()
    removed: OffsetList = OffsetList()

    def __bool__(self) -> bool:
        return bool(self.decoded or self.removed)

    @classmethod
    def of(cls, bookmarks: Iterable[Bookmark | None]) -> Self | None:
        """Return the changes of some commits.

        Returns:
            None if one of the bookmarks does not list its changes, or if all of them together are
            too many to list.
        """
        decoded, removed = OffsetList(), OffsetList()
        for each in bookmarks:
            if each is None or each.decoded is None or each.removed is None:
                return None
            more, gone = decoded.union(each.decoded), removed.union(each.removed)
            if more.limited() is None or gone.limited() is None:
                return None
            decoded, removed = more, gone
        return cls(decoded=decoded, removed=removed)


def limited_plans(plans: SpanSet) -> SpanSet:
    """Return pending plans, or plans with outdated rows, in at most `MAX_RUNS` runs.

    If there are more, the runs with the fewest numbers between them are joined. Required plans with
    numbers between them become pending again: the next decode compares their offsets.
    """
    others = [Span(before.end, after.start) for before, after in pairwise(plans)]
    others.sort(key=lambda each: each.size)
    return SpanSet.of((*plans, *others[: max(0, len(plans.spans) - MAX_RUNS)]))


def _run_lists(runs: SpanSet) -> list[list[int]]:
    return [[run.start, run.end] for run in runs]


def _runs(found: Any) -> SpanSet:
    return SpanSet.of(Span(_number(start), _number(end)) for start, end in found)


def _spans(found: Any) -> Mapping[int, SpanSet]:
    return spans_by_partition(
        (_number(partition), Span(_number(start), _number(end))) for partition, start, end in found
    )


def _text(found: Any) -> str:
    if not isinstance(found, str):
        raise TypeError(f"expected str; got {found!r}")
    return found


def _number(found: Any) -> int:
    if type(found) is not int or not 0 <= found < 2**63:
        raise TypeError(f"expected a whole number from 0 to 2**63 - 1; got {found!r}")
    return found
