"""Merges of changed keys into upsert tables, for workers: by Tidemark, and by a plain MERGE."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil

from bench.clock import timed
from bench.worker import own_cpu

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BUCKETS = 32
_VALUE = (
    "named_struct('owner', substr(sha2(cast(id + {plan} AS STRING), 256), 1, 20), "
    "'balance', cast(id * 31 + {plan} AS DECIMAL(18,2)), "
    "'note', sha2(cast(id * 7 + {plan} AS STRING), 256))"
)
_COLUMNS = (
    "concat('account-', lpad(cast(id AS STRING), 12, '0')) AS key",
    f"{_VALUE} AS value",
    "'AAAAAAAAAAAAAAAAAAAAAA' AS topic_id",
    "cast(id % {partitions} AS INT) AS partition",
    "{plan} * 1000000000000 + id AS offset",
    "timestamp_millis(1700000000000 + id) AS timestamp",
    "cast({plan} AS BIGINT) AS plan_sequence",
)
"""Columns of typed rows for a key with the number `id`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendTyped:
    """Appends one record for each of some keys to a typed table.

    Attributes:
        typed: The typed table.
        keys: Number of keys in all.
        chosen: Condition of the keys' numbers, in SQL.
        plan: Number of the plan. Its commit creates the version `plan - 1`.
        partitions: Number of partitions of the topic.
    """

    typed: str
    keys: int
    chosen: str
    plan: int
    partitions: int

    def land(self) -> dict[str, float]:
        """Append the rows; return the time that this took."""
        columns = [each.format(plan=self.plan, partitions=self.partitions) for each in _COLUMNS]
        rows = _session().range(self.keys).where(self.chosen).selectExpr(*columns)
        with timed(own_cpu) as watch:
            rows.write.format("delta").mode("append").save(self.typed)
        return watch.metrics()


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge(ABC):
    """One merge of a plan's records into an upsert table, or the first load of that table.

    Attributes:
        typed: The typed table.
        upsert: The upsert table.
        plan: Number of the plan; 1 for the first load.
    """

    typed: str
    upsert: str
    plan: int

    def land(self) -> dict[str, float]:
        """Merge; return the time, and the bytes that the JVM read and wrote, with shuffles."""
        before = _io()
        with timed(own_cpu) as watch:
            self._merge()
        after = _io()
        return {**watch.metrics(), **{name: after[name] - before[name] for name in after}}

    @abstractmethod
    def _merge(self) -> None:
        """Merge the records of the plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TidemarkMerge(Merge):
    """The merge of Tidemark's job.

    Attributes:
        deletion_vectors: `decode.upsert.deletion_vectors` of the spec.
    """

    deletion_vectors: bool

    def _merge(self) -> None:
        from tidemark.core.bookmark import OffsetList, TypedChanges
        from tidemark.core.offsets import Span, SpanSet
        from tidemark.delta.data_table import DeltaDataTable
        from tidemark.silver.upsert.spark import SparkMerger
        from tidemark.silver.upsert.table import DeltaUpsertTable
        from tidemark.spec.decode import Part
        from tidemark.spec.upsert import MergePlan, MergeScope, UpsertSpec

        is_first = self.plan == 1
        spec = UpsertSpec(target="upsert", deletion_vectors=self.deletion_vectors)
        table = DeltaUpsertTable(self.upsert, spec)
        columns = DeltaDataTable(self.typed).columns()
        table.prepare("accounts", {part: columns[part.value] for part in Part})
        decoded = OffsetList(plans=SpanSet((Span(self.plan, self.plan + 1),)))
        merge = MergePlan(
            scope=MergeScope.ALL if is_first else MergeScope.NEW,
            since=None if is_first else self.plan - 2,
            version=self.plan - 1,
            changes=TypedChanges() if is_first else TypedChanges(decoded=decoded),
            withdrawn=0,
            incarnations=("AAAAAAAAAAAAAAAAAAAAAA",),
            typed_commit=None,
            definition="bench",
            app_id="bench",
            upsert_version=table.version(),
        )
        merger = SparkMerger(_session().newSession, self.typed, self.upsert, spec)
        merger.merge(merge)
        if self.deletion_vectors and table.needs_compaction():
            merger.compact()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainMerge(Merge):
    """Spark's MERGE of the newest record of each key, as a user would write it.

    Attributes:
        deletion_vectors: Whether the table has deletion vectors.
        is_clustered: Whether the table has liquid clustering by key.
        has_buckets: Whether the table is partitioned by a hash of the key.
    """

    deletion_vectors: bool = False
    is_clustered: bool = False
    has_buckets: bool = False

    def _merge(self) -> None:
        session, table = _session(), f"delta.`{self.upsert}`"
        bucket = f", CAST(pmod(xxhash64(newest.key), {_BUCKETS}) AS INT) AS bucket"
        newest = (
            f"SELECT newest.*{bucket if self.has_buckets else ''} FROM ("
            "SELECT max_by(struct(key, value, false AS deleted, topic_id, partition, offset, "
            "timestamp, plan_sequence), offset) AS newest "
            f"FROM delta.`{self.typed}` VERSION AS OF {self.plan - 1} "
            f"WHERE plan_sequence = {self.plan} GROUP BY partition, key)"
        )
        if self.plan == 1:
            layout = "CLUSTER BY (key)" if self.is_clustered else ""
            layout = "PARTITIONED BY (bucket)" if self.has_buckets else layout
            vectors = str(self.deletion_vectors).lower()
            session.sql(
                f"CREATE TABLE {table} USING delta {layout} "
                f"TBLPROPERTIES ('delta.enableDeletionVectors' = '{vectors}') AS {newest}"
            )
            if self.is_clustered:
                session.sql(f"OPTIMIZE {table}")
            return
        same = "t.partition = s.partition AND t.key = s.key"
        same += " AND t.bucket = s.bucket" if self.has_buckets else ""
        session.sql(
            f"MERGE INTO {table} AS t USING ({newest}) AS s ON {same} "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )


def _session() -> SparkSession:
    from pyspark.sql import SparkSession

    return SparkSession.active()


def _io() -> dict[str, float]:
    """Return the bytes that the JVM of this process has read and written so far."""
    jvm: Any = _session().sparkContext._jvm
    counters = psutil.Process(jvm.java.lang.ProcessHandle.current().pid()).io_counters()
    return {"bytes_read": counters.read_chars, "bytes_written": counters.write_chars}
