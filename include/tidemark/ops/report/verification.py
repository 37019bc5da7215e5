"""Results of comparing a data table with Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tidemark.core.plain import record_of
from tidemark.core.texts import counted, listed
from tidemark.core.watermarks import IsolationLevel
from tidemark.ops.report.errors import TableDiffers

MAX_LISTED = 20
"""Maximum number of differences that are listed individually."""
NOT_COMPARED = (
    "ingested_at, where all rows of a plan have one time before its landing was recorded",
    "columns that another program added",
)
"""Changes of a row that verification does not detect."""


class DifferenceKind(StrEnum):
    """A kind of disagreement between rows and records."""

    MISSING = "missing"
    """Kafka shows a record, and the table has no row."""
    DUPLICATE = "duplicate"
    """The table has several rows of one offset."""
    UNEXPECTED = "unexpected"
    """The table has a row at an offset without a record, or at an offset that has not landed."""
    ALTERED = "altered"
    """Key, value, headers or timestamp differ."""
    MISLABELLED = "mislabelled"
    """Topic, topic id, plan number or ingestion time differ from those of the plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One difference, at one offset or at several offsets.

    Attributes:
        difference: The kind of the difference.
        partition: Partition number.
        offset: The lowest offset.
        rows: Number of rows.
        plan: Number of the plan of the lowest offset; None if no plan has it.
    """

    difference: DifferenceKind
    partition: int
    offset: int
    rows: int = 1
    plan: int | None = None

    def __str__(self) -> str:
        more = f" and {counted(self.rows - 1, 'more row')}" if self.rows > 1 else ""
        plan = f" (plan {self.plan})" if self.plan else ""
        return f"{self.difference} partition {self.partition} offset {self.offset}{more}{plan}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionComparison:
    """Counts of the comparison of one partition.

    Attributes:
        partition: Partition number.
        offsets: Compared offsets: they landed, and Kafka still has them.
        records: Kafka's records at these offsets.
        rows: Rows of the table at these offsets.
        compacted: Rows whose records Kafka has compacted since. A row counts as compacted if its
            plan has exactly the number of rows that was recorded when it landed.
        deleted: Landed offsets that Kafka has deleted since. Verification detects only duplicate
            rows there.
        headers_unread: Records whose headers were not compared, because a name is not UTF-8.
        lost: Offsets that were accepted as lost. They are not compared.
    """

    partition: int
    offsets: int = 0
    records: int = 0
    rows: int = 0
    compacted: int = 0
    deleted: int = 0
    headers_unread: int = 0
    lost: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlansAtLevel:
    """Compared plans whose isolation level is not the present one of the spec.

    Attributes:
        isolation_level: Level of the plans, at which their rows were compared.
        plans: Numbers of the plans.
        offsets: Number of their compared offsets.
    """

    isolation_level: IsolationLevel
    plans: tuple[int, ...]
    offsets: int

    def __str__(self) -> str:
        uncommitted = self.isolation_level is IsolationLevel.READ_UNCOMMITTED
        effect = "may contain" if uncommitted else "lack"
        return (
            f"{counted(self.offsets, 'offset')} of {listed('plan', self.plans)} compared at "
            f"{self.isolation_level}, at which they landed: the rows {effect} records of aborted "
            "transactions"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The result of comparing a data table with Kafka.

    Attributes:
        pipeline: Pipeline name.
        topic: Topic name.
        topic_id: Topic id of the compared records.
        isolation_level: The present isolation level of the spec.
        isolation_levels: Isolation levels of the compared plans, and of the comparison.
        other_levels: The compared plans of another level than the present one.
        partitions: Counts of each partition with landed or lost offsets, sorted by number.
        differences: Number of differences by kind.
        first: The first `MAX_LISTED` differences.
    """

    pipeline: str
    topic: str
    topic_id: str
    isolation_level: IsolationLevel
    isolation_levels: tuple[IsolationLevel, ...]
    other_levels: tuple[PlansAtLevel, ...]
    partitions: tuple[PartitionComparison, ...]
    differences: Mapping[DifferenceKind, int]
    first: tuple[Difference, ...]

    @property
    def not_compared(self) -> tuple[str, ...]:
        """Changes of a row that were not detected."""
        return NOT_COMPARED

    def check(self) -> None:
        """Raise `TableDiffers` if there are differences."""
        if self.differences:
            raise TableDiffers.from_kafka(
                self.pipeline, sum(self.differences.values()), tuple(map(str, self.first))
            )

    def as_record(self) -> dict[str, Any]:
        """Return the verification as plain values, for `--json`."""
        return record_of(self, not_compared=self.not_compared, equal=not self.differences)
