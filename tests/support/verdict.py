"""Compares a bronze table with the records that librdkafka reads, as multisets."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.support.kafka_judge import DeliveredRecord, Range, log_ranges, read_ranges
from tests.support.lake import row_as_delivered


class Identity(NamedTuple):
    """The identity of a record (S5)."""

    topic_id: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How a table differs from the log.

    Attributes:
        records: Records that a reader of Kafka sees.
        lost: Records without a row.
        doubled: Rows beyond the first of a record.
        foreign: Records of the table that Kafka does not have.
        altered: Records whose content differs.
    """

    records: int
    lost: tuple[Identity, ...]
    doubled: tuple[Identity, ...]
    foreign: tuple[Identity, ...]
    altered: tuple[Identity, ...]

    @property
    def exact(self) -> bool:
        """Whether the table has every record once, unaltered, and no other row."""
        return not (self.lost or self.doubled or self.foreign or self.altered)


def judge(
    rows: Iterable[Mapping[str, Any]],
    bootstrap: str,
    topic: str,
    topic_id: str,
    *,
    ranges: Mapping[int, Range] | None = None,
    isolation: str = "read_committed",
) -> Verdict:
    """Compare rows of a bronze table with the log.

    Args:
        rows: Rows with the bronze columns.
        bootstrap: Address list.
        topic: Topic.
        topic_id: Topic id of the records.
        ranges: Offsets that must have landed, by partition; the whole log if None.
        isolation: Isolation level of the reader.
    """
    wanted = log_ranges(bootstrap, topic) if ranges is None else ranges
    seen = read_ranges(bootstrap, topic, wanted, isolation=isolation)
    return compare(rows, seen, topic_id)


def compare(
    rows: Iterable[Mapping[str, Any]], seen: Iterable[DeliveredRecord], topic_id: str
) -> Verdict:
    """Compare rows with the records that librdkafka read from one incarnation of a topic."""
    expected = {Identity(topic_id, r.partition, r.offset): digest(r) for r in seen}
    found = Counter(
        (Identity(row["topic_id"], row["partition"], row["offset"]), digest(row_as_delivered(row)))
        for row in rows
    )
    times = Counter[Identity]()
    for (identity, _), count in found.items():
        times[identity] += count
    return Verdict(
        records=len(expected),
        lost=tuple(sorted(set(expected) - set(times))),
        doubled=tuple(sorted(identity for identity, count in times.items() if count > 1)),
        foreign=tuple(sorted(set(times) - set(expected))),
        altered=tuple(
            sorted({i for i, content in found if i in expected and expected[i] != content})
        ),
    )


def digest(record: DeliveredRecord) -> str:
    """Return the SHA-256 of a record without its partition and offset."""
    content = (record.key, record.value, record.headers, record.timestamp_type, record.timestamp_ms)
    return hashlib.sha256(repr(content).encode()).hexdigest()
