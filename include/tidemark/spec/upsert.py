"""The table of latest rows: one for each key, by the newest record of its partition."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Self

from tidemark.core.offsets import SpanSet, united, without
from tidemark.core.plan import Plan


class Deletes(StrEnum):
    """What becomes of a row whose newest record is a deletion."""

    SOFT = "soft"
    """It stays, marked as deleted, with the last content that it had."""
    HARD = "hard"
    """It goes. The typed table still has its records."""


class Envelope(StrEnum):
    """What the content of a record is wrapped in."""

    NONE = "none"
    """Nothing: the value is the content, and no value is a deletion."""
    DEBEZIUM = "debezium"
    """Debezium's: the content is `after`, and `op` says whether it is a deletion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpsertSpec:
    """How a typed table becomes a table of latest rows.

    Attributes:
        target: The table's path, as of a pipeline's `target`.
        deletes: What becomes of rows whose newest record is a deletion.
        envelope: What the content is wrapped in.
    """

    target: str
    deletes: Deletes = Deletes.SOFT
    envelope: Envelope = Envelope.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What has happened to a typed table between two versions.

    Attributes:
        appended: Plans whose rows have come, and in whose place there was nothing.
        replaced: Plans whose rows have come in the place of others.
        removed: Numbers of plans whose rows have gone.
    """

    appended: Sequence[Plan] = ()
    replaced: Sequence[Plan] = ()
    removed: Sequence[int] = ()

    def __bool__(self) -> bool:
        return bool(self.appended or self.replaced or self.removed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a table of latest rows shows.

    Attributes:
        version: Version of the typed table.
        typed_table: Which typed table.
        rule: What a row is.
        base: Transactions that the next merge is counted under.
    """

    version: int
    typed_table: str
    rule: str
    base: str


_DEFINITION = 1
"""Raised when code makes something else of the same typed rows: tables are then made anew."""


def rule_of(spec: UpsertSpec, order: Sequence[str]) -> str:
    """What a latest row is: if that has changed, all have to be looked at again."""
    return json.dumps([_DEFINITION, str(spec.deletes), str(spec.envelope), list(order)])


class How(StrEnum):
    """What a merge looks at."""

    NEW = "new rows"
    """The rows that have come: all of them are newer than what was merged before."""
    KEYS = "all rows of their keys"
    """All rows of the keys that something has happened to."""
    ALL = "all rows"
    """All rows: nobody knows what has happened since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """What brings a table of latest rows up to date.

    Attributes:
        how: What it looks at.
        since: Version of the typed table that it shows; None if nobody knows.
        version: Version that it shows afterwards.
        changes: What has happened in between; nothing for `How.ALL`.
        order: Incarnations of the topic, the oldest first.
        typed_table: Id of the typed table.
        rule: What a latest row is, by `rule_of`.
        base: Transactions of the table that it is counted under: those of the merge that made the
            rows anew which it goes on from.
    """

    how: How
    since: int | None
    version: int
    changes: Changes
    order: tuple[str, ...]
    typed_table: str
    rule: str
    base: str

    def anew(self) -> Self:
        """The same, looking at all rows.

        Counted as this one: if another has shown more in the meantime, neither is done any more.
        """
        return replace(self, how=How.ALL, since=None, changes=Changes())

    def told(self) -> str:
        """What its commit tells, so that the next one knows what it goes on from."""
        merge = {
            "how": str(self.how),
            "since": self.since,
            "version": self.version,
            "typed": self.typed_table,
            "rule": self.rule,
            "base": self.base,
        }
        return json.dumps({"merge": merge})

    def as_record(self) -> dict[str, Any]:
        """The merge as plain values, for `--json`."""
        return {
            "how": str(self.how),
            "since": self.since,
            "typed_version": self.version,
            "plans": [plan.sequence for plan in (*self.changes.appended, *self.changes.replaced)],
            "undone": list(self.changes.removed),
        }


def how_to_merge(
    changes: Changes | None,
    landed: Mapping[str, Mapping[int, SpanSet]],
    order: Sequence[str],
) -> How:
    """What has to be looked at, so that no row goes back to an older record.

    Args:
        changes: What has happened; None if nobody knows.
        landed: All that the typed table has, by incarnation and partition.
        order: The incarnations, the oldest first.
    """
    if changes is None:
        return How.ALL
    if changes.replaced or changes.removed:
        return How.KEYS
    new: dict[str, Mapping[int, SpanSet]] = {}
    for plan in changes.appended:
        new[plan.topic_id] = united([new.get(plan.topic_id, {}), plan.spans()])
    for topic_id, spans in new.items():
        before = without(landed.get(topic_id, {}), spans)
        later = [each for each in order[order.index(topic_id) + 1 :] if landed.get(each)]
        is_older = any(
            partition in before and each.spans[0].start < before[partition].spans[-1].end
            for partition, each in spans.items()
        )
        if later or is_older:  # fence: older-records-merge-by-all-keys
            return How.KEYS
    return How.NEW
