"""Results of comparing a typed table and its quarantine with the bronze table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tidemark.core.plain import record_of
from tidemark.core.texts import counted
from tidemark.ops.report.errors import TableDiffers

NOT_COMPARED = (
    "whether typed rows pass the row rules of the spec",
    "whether records in quarantine can be decoded (`tidemark quarantine replay --dry-run`)",
)
"""Changes that the comparison does not detect."""
SHARED_READER = "errors of the Protobuf reader, which a decode also uses"
"""A further limit for a table with Protobuf."""


class TypedDifferenceKind(StrEnum):
    """A kind of disagreement between the bronze table and the typed table."""

    MISSING = "missing"
    """A decode has covered the bronze row, and neither table has its record."""
    DUPLICATE = "duplicate"
    """The typed table has several rows of one offset, or the quarantine several records."""
    IN_BOTH = "in_both"
    """The typed table has a row, and the quarantine has the record."""
    ALTERED = "altered"
    """Columns of the typed row differ from the bronze row, decoded again."""
    UNDECODABLE = "undecodable"
    """The typed table has a row of a payload that does not match its format or schema."""
    UNEXPECTED = "unexpected"
    """A typed row or an entry in quarantine is at an offset that has not landed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedDifference:
    """One difference, at one offset or at several offsets.

    Attributes:
        difference: The kind of the difference.
        topic: Topic name.
        partition: Partition number.
        offset: The lowest offset.
        columns: The columns or fields that differ.
        rows: Number of rows.
        plan: Number of the plan that decoded the lowest offset; None if no plan has it.
    """

    difference: TypedDifferenceKind
    topic: str
    partition: int
    offset: int
    columns: tuple[str, ...] = ()
    rows: int = 1
    plan: int | None = None

    def __str__(self) -> str:
        more = f" and {counted(self.rows - 1, 'more row')}" if self.rows > 1 else ""
        columns = f" {' '.join(self.columns)}" if self.columns else ""
        plan = f" (plan {self.plan})" if self.plan else ""
        place = f"topic {self.topic} partition {self.partition} offset {self.offset}"
        return f"{self.difference} {place}{columns}{more}{plan}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedComparison:
    """Counts of the comparison of one partition.

    Without a difference, `rows` is the sum of the next four counts.

    Attributes:
        partition: Partition number.
        rows: Compared rows of the bronze table.
        typed: Those with a typed row.
        quarantined: Those in quarantine, without a typed row.
        undecoded: Those that no decode has covered yet.
        hidden: Those that are not decoded, because a publication decision hides them or because
            they are not checked yet.
        withdrawn: Typed rows and quarantined records of hidden or undone plans. The next decode
            removes them, except those of unchecked plans.
        deleted: Typed rows and quarantined records whose bronze row another program has deleted.
        stale: Typed rows that differ, and whose offset has landed again since, or is in an open
            replacement. The next decode replaces them.
        earlier_rules: Typed rows that differ, and that were decoded with another spec. A decode
            from scratch replaces them.
        unknown_spec: Typed rows that differ, and that may have been decoded with any spec. They are
            differences from the present spec, too.
    """

    partition: int
    rows: int = 0
    typed: int = 0
    quarantined: int = 0
    undecoded: int = 0
    hidden: int = 0
    withdrawn: int = 0
    deleted: int = 0
    stale: int = 0
    earlier_rules: int = 0
    unknown_spec: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedVerification:
    """The result of comparing a typed table with the bronze table.

    Attributes:
        pipeline: Name of the typed table.
        partitions: Counts of each partition, sorted by number.
        unjudged: Number of values that were not compared, by column and reason.
        other_columns: Columns that another program added. They are not compared.
        differences: Number of differences by kind.
        first: The first differences.
        shares_reader: Whether the decoder's own Protobuf reader has read the expected values.
    """

    pipeline: str
    partitions: tuple[TypedComparison, ...]
    unjudged: Mapping[str, int]
    other_columns: tuple[str, ...]
    differences: Mapping[TypedDifferenceKind, int]
    first: tuple[TypedDifference, ...]
    shares_reader: bool = False

    @property
    def unproven(self) -> int:
        """Number of values that were not compared, and of rows of another spec that differ."""
        return sum(self.unjudged.values()) + sum(each.earlier_rules for each in self.partitions)

    @property
    def not_compared(self) -> tuple[str, ...]:
        """Changes that were not detected."""
        columns = [f"column {each}, which another program added" for each in self.other_columns]
        return (*NOT_COMPARED, *([SHARED_READER] if self.shares_reader else []), *columns)

    def check(self) -> None:
        """Raise `TableDiffers` if there are differences."""
        if self.differences:
            raise TableDiffers.from_bronze(
                self.pipeline,
                sum(self.differences.values()),
                tuple(map(str, self.first)),
                sum(each.unknown_spec for each in self.partitions),
            )

    def as_record(self) -> dict[str, Any]:
        """Return the comparison as plain values, for `--json`."""
        return record_of(self, not_compared=self.not_compared, equal=not self.differences)
