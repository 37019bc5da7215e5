"""Results of comparing a data table with Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tidemark.core.watermarks import IsolationLevel
from tidemark.report.errors import TableDiffers

SHOWN = 20
"""Most differences that are listed one by one."""
NOT_COMPARED = (
    "ingested_at, where all rows of a plan have one time before its landing was recorded",
    "columns that another program added",
)
"""Changes of a row that verification does not detect."""


class Difference(StrEnum):
    """How a row and a record can disagree."""

    LOST = "lost"
    """Kafka shows a record and the table has no row."""
    DOUBLED = "doubled"
    """The table has more than one row of one offset."""
    FOREIGN = "foreign"
    """The table has a row where Kafka shows no record, or where nothing has landed."""
    ALTERED = "altered"
    """Key, value, headers or timestamp differ."""
    MISLABELLED = "mislabelled"
    """Topic, incarnation, plan or landing time differ from those of the plan that landed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One difference at one offset, or at several from it on.

    Attributes:
        difference: Its kind.
        partition: Partition number.
        offset: The lowest offset.
        rows: Number of rows.
    """

    difference: Difference
    partition: int
    offset: int
    rows: int = 1

    def __str__(self) -> str:
        more = f" and {self.rows - 1} more row(s)" if self.rows > 1 else ""
        return f"{self.difference} partition {self.partition} offset {self.offset}{more}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionVerdict:
    """What was compared of one partition.

    Attributes:
        partition: Partition number.
        offsets: Landed offsets that Kafka still has, and that were compared.
        records: Records that Kafka shows there.
        rows: Rows that the table has there.
        compacted: Rows whose records Kafka has removed since, inside its log. A row counts as one
            if its plan has exactly the rows that were recorded when it landed.
        gone: Landed offsets that Kafka has deleted since: only doubled rows can be detected there.
        headers_unread: Records whose headers were not compared, because a name is not UTF-8.
    """

    partition: int
    offsets: int
    records: int
    rows: int
    compacted: int
    gone: int
    headers_unread: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """How a data table compares with Kafka.

    Attributes:
        pipeline: Pipeline name.
        topic: Topic name.
        topic_id: Incarnation that was compared.
        isolation_levels: The isolation levels of the landed plans, also used to compare them.
        partitions: The result of each partition, by number.
        differences: Number of differences, by kind.
        first: The first of them, in the order of reading.
    """

    pipeline: str
    topic: str
    topic_id: str
    isolation_levels: tuple[IsolationLevel, ...]
    partitions: tuple[PartitionVerdict, ...]
    differences: Mapping[Difference, int]
    first: tuple[Found, ...]

    def check(self) -> None:
        """Raise if there are differences.

        Raises:
            TableDiffers
        """
        if self.differences:
            raise TableDiffers(
                pipeline=self.pipeline,
                differences=sum(self.differences.values()),
                first=tuple(map(str, self.first)),
            )

    def as_record(self) -> dict[str, Any]:
        """The verification as plain values, for `--json`."""
        return {
            "pipeline": self.pipeline,
            "topic": self.topic,
            "topic_id": self.topic_id,
            "isolation_levels": list(map(str, self.isolation_levels)),
            "not_compared": list(NOT_COMPARED),
            "equal": not self.differences,
            "differences": {str(kind): count for kind, count in self.differences.items()},
            "first": [
                {
                    "difference": str(f.difference),
                    "partition": f.partition,
                    "offset": f.offset,
                    "rows": f.rows,
                }
                for f in self.first
            ],
            "partitions": [
                {
                    "partition": each.partition,
                    "offsets": each.offsets,
                    "records": each.records,
                    "rows": each.rows,
                    "compacted": each.compacted,
                    "gone": each.gone,
                    "headers_unread": each.headers_unread,
                }
                for each in self.partitions
            ],
        }
