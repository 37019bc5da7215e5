"""The fields of a plan's records that the schema in the spec does not name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own docs use

from tidemark.spec.decode import REST

MAX_NAMES = 20
_MAX_LENGTH = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class UnnamedFields:
    """The fields that the schema does not name.

    Attributes:
        records: Number of records with such a field.
        names: The most frequent names, each with its number of records; at most `MAX_NAMES`.
        has_more: Whether there are more names.
    """

    records: int
    names: Mapping[str, int] = field(default_factory=dict)
    has_more: bool = False

    def as_record(self) -> dict[str, Any]:
        """Return the numbers as plain values, for `--json`."""
        return {"records": self.records, "names": dict(self.names), "more": self.has_more}


def unnamed_fields(
    session: SparkSession, typed: str, sequence: int, *, flattens: bool
) -> UnnamedFields:
    """Return the unnamed fields of one plan's rows. Reads one column of the plan's files.

    Args:
        session: The Spark session.
        typed: URI of the typed table, whose values have the field `REST`.
        sequence: Number of the typed plan.
        flattens: Whether the table has flattened values.
    """
    rows = session.read.format("delta").load(typed)
    rest = F.col(REST) if flattens else F.col("value")[REST]
    found = rows.where((F.col("plan_sequence") == sequence) & rest.isNotNull())
    records = found.count()
    if not records:
        return UnnamedFields(records=0)
    shortened = F.transform(
        F.json_object_keys(rest), lambda each: F.substring(each, 1, _MAX_LENGTH)
    )
    names = found.select(F.explode(F.array_distinct(shortened)).alias("name")).groupBy("name")
    counted = names.count().orderBy(F.desc("count"), "name").limit(MAX_NAMES + 1).collect()
    most = {row["name"]: row["count"] for row in counted[:MAX_NAMES]}
    return UnnamedFields(records=records, names=most, has_more=len(counted) > MAX_NAMES)
