"""Merges of typed rows into an upsert table with Spark's MERGE."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own docs use
from pyspark.sql.types import StructType

from tidemark.core.bookmark import OffsetList
from tidemark.core.errors import TidemarkError
from tidemark.delta.errors import EngineFailed
from tidemark.silver.typed.spark_frames import inner_names, quoted
from tidemark.spark.conditions import any_of, at_offsets
from tidemark.spark.failures import session_settings, spark_error
from tidemark.spec.flattening import TOMBSTONE, VALUE, column_name, field_name
from tidemark.spec.upsert import Deletes, Envelope, MergePlan, MergeScope, UpsertSpec

log = logging.getLogger(__name__)

_POSITION = ("topic_id", "partition", "offset", "timestamp", "plan_sequence")
_REMOVED = "__removed"
"""Whether a key has no row: it has no record left, or its newest record is a hard deletion."""

_APP_ID = "spark.databricks.delta.write.txnAppId"
_VERSION = "spark.databricks.delta.write.txnVersion"
_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_DELETION_VECTORS = "delta.enableDeletionVectors"


class SparkMerger:
    """Executes merges into one upsert table.

    Args:
        open_session: Opens a Spark session. No other code may write Delta tables with it, because
            the transaction of a merge is a setting of the session.
        typed: URI of the typed table.
        upsert: URI of the upsert table, which exists.
        spec: The spec of the upsert table.
    """

    def __init__(
        self, open_session: Callable[[], SparkSession], typed: str, upsert: str, spec: UpsertSpec
    ) -> None:
        self._open_session = open_session
        self._typed = typed
        self._upsert = upsert
        self._spec = spec

    def merge(self, merge: MergePlan) -> None:
        """See `Merger.merge`. Rebuilds the table if Spark cannot read the removed rows."""
        self._set_properties()
        try:
            self._merge_in_transaction(merge)
        except EngineFailed as failed:
            if merge.scope is not MergeScope.KEYS:
                raise
            log.warning(
                "rebuilding the upsert table, because the merge failed uri=%s message=%s",
                *(self._upsert, failed),
            )
            self._merge_in_transaction(merge.as_rebuild())

    def compact(self) -> None:
        """See `Merger.compact`."""
        try:
            self._end_transaction()
            self._session.sql(f"OPTIMIZE delta.{quoted(self._upsert)}")
        except (PySparkException, Py4JError) as failure:
            raise self._error(failure, f"compacting {self._upsert}") from None

    @cached_property
    def _session(self) -> SparkSession:
        return self._open_session()

    def _merge_in_transaction(self, merge: MergePlan) -> None:
        # fence: late-merge-is-a-past-transaction
        transaction = {_APP_ID: merge.app_id, _VERSION: str(merge.version)}
        settings = {**transaction, _METADATA: merge.commit_metadata()}
        try:
            for name, value in settings.items():
                self._session.conf.set(name, value)
            self._execute(merge)
        except (PySparkException, Py4JError, ValueError) as failure:
            raise self._error(failure, f"merging {self._typed} into {self._upsert}") from None

    def _error(self, failure: Exception, operation: str) -> TidemarkError:
        return spark_error(
            failure,
            operation,
            location=self._upsert,
            settings=session_settings(self._session),
            may_have_values=True,
        )

    def _set_properties(self) -> None:
        """Set `delta.enableDeletionVectors` of the table to the value in the spec."""
        table, wanted = f"delta.{quoted(self._upsert)}", str(self._spec.deletion_vectors).lower()
        try:
            present = dict(self._session.sql(f"SHOW TBLPROPERTIES {table}").collect())
            if present.get(_DELETION_VECTORS, "false") != wanted:
                self._end_transaction()
                # delta-rs would also add the table feature variantType, which fewer readers have.
                self._session.sql(
                    f"ALTER TABLE {table} SET TBLPROPERTIES ('{_DELETION_VECTORS}' = '{wanted}')"
                )
        except (PySparkException, Py4JError) as failure:
            raise self._error(failure, f"setting a property of {self._upsert}") from None

    def _end_transaction(self) -> None:
        """Remove the transaction and the metadata of a merge from the settings of the session."""
        for name in (_APP_ID, _VERSION, _METADATA):
            self._session.conf.unset(name)

    def _execute(self, merge: MergePlan) -> None:
        rows = self._rows(merge.version)
        if merge.scope is MergeScope.ALL:
            newest = self._newest_by_key(rows, merge.incarnations)
            kept = newest.where(~F.col(_REMOVED))
            rebuilt = kept.select(
                *(F.expr(sql).alias(name) for name, sql in self._columns(newest).items())
            )
            writer = rebuilt.write.format("delta").mode("overwrite")
            writer.option("overwriteSchema", "true").save(self._upsert)
            return
        if merge.scope is MergeScope.KEYS:
            keys = self._changed_keys(merge)
            known = rows.join(keys, self._same_key(rows, keys), "left_semi")
            newest = self._newest_by_key(known, merge.incarnations)
            source = keys.join(newest, self._same_key(keys, newest), "left").select(
                keys["partition"],
                keys["key"],
                *(newest[name] for name in newest.columns if name not in ("partition", "key")),
            )
            source = source.withColumn(_REMOVED, F.coalesce(_REMOVED, F.lit(True)))
        else:
            new = rows.where(_in_list(merge.changes.decoded))
            source = self._newest_by_key(new, merge.incarnations)
        self._merge_source(source, has_all_records=merge.scope is MergeScope.KEYS)

    def _rows(self, version: int) -> DataFrame:
        """Return the typed rows that have a key, with values in one column."""
        table = self._session.read.format("delta").option("versionAsOf", version).load(self._typed)
        if self._spec.flattens:
            fields = [
                F.col(quoted(column)).alias(name)
                for column in table.columns
                if (name := field_name(column)) is not None
            ]
            table = table.withColumn(VALUE, F.when(~F.col(TOMBSTONE), F.struct(*fields)))
        return table.where(F.col("key").isNotNull())

    def _columns(self, rows: DataFrame) -> Mapping[str, str]:
        """Return the columns of the upsert table, each with its SQL over rows by key."""
        value, contents = rows.schema[VALUE].dataType, {VALUE: quoted(VALUE)}
        if self._spec.flattens and isinstance(value, StructType):
            contents = {
                column_name(name): f"{quoted(VALUE)}.{quoted(name)}" for name in value.names
            }
        others = {name: quoted(name) for name in ("deleted", *_POSITION)}
        return {"key": quoted("key"), **contents, **others}

    def _changed_keys(self, merge: MergePlan) -> DataFrame:
        """Return the keys of added and removed rows, by partition."""
        new, changes = self._rows(merge.version), merge.changes
        keys = new.where(_in_list(changes.decoded)).select("partition", "key")
        if changes.removed:
            before = self._rows(merge.since or 0).where(_in_list(changes.removed))
            keys = keys.union(before.select("partition", "key"))
        return keys.distinct()

    @staticmethod
    def _same_key(left: DataFrame, right: DataFrame) -> Column:
        return (left["partition"] == right["partition"]) & left["key"].eqNullSafe(right["key"])

    def _newest_by_key(self, rows: DataFrame, incarnations: Collection[str]) -> DataFrame:
        """Return one row for each key of some typed rows.

        Returns:
            The columns of the upsert table; `known`, whether the rows contain content of the key;
            and `_REMOVED`.
        """
        content, deleted = F.col(VALUE), F.col(VALUE).isNull()
        for name in self._spec.envelope.path_in(inner_names(rows.schema[VALUE].dataType)) or ():
            content = content[name]
        if self._spec.envelope is Envelope.DEBEZIUM:
            deleted = deleted | F.coalesce(content["op"] == "d", F.lit(False))
            content = content["after"]
        if self._spec.envelope is Envelope.UNWRAPPED:
            mark = content["__deleted"].cast("string")
            deleted = deleted | F.coalesce(mark == "true", F.lit(False))
        # Debezium's messages are neither content nor deletion.
        rows = rows.where(deleted | content.isNotNull())
        ranks = {topic_id: rank for rank, topic_id in enumerate(incarnations)}
        rank = F.coalesce(
            *(F.when(F.col("topic_id") == each, number) for each, number in ranks.items()),
            F.lit(-1),
        )
        age = F.struct(rank.alias("rank"), F.col("offset"))
        found = rows.groupBy("partition", "key").agg(
            F.max_by(F.struct(*_POSITION, deleted.alias("deleted")), age).alias("newest"),
            F.max_by(
                F.struct(content.alias("value")), F.when(content.isNotNull() & ~deleted, age)
            ).alias("last"),
        )
        is_hard = self._spec.deletes is Deletes.HARD
        return found.select(
            "key",
            F.col("last")["value"].alias("value"),
            F.col("newest")["deleted"].alias("deleted"),
            *(
                F.col("newest")[name].alias(name) if name != "partition" else F.col(name)
                for name in _POSITION
            ),
            F.col("last").isNotNull().alias("known"),
            (F.col("newest")["deleted"] & F.lit(is_hard)).alias(_REMOVED),
        )

    def _merge_source(self, source: DataFrame, *, has_all_records: bool) -> None:
        """Merge rows into the upsert table.

        Args:
            source: One row for each key, as from `_newest_by_key`.
            has_all_records: Whether the rows are based on all records of their keys.
        """
        view = f"changes_{uuid4().hex}"
        columns = {name: f"s.{sql}" for name, sql in self._columns(source).items()}
        kept = {name: columns[name] for name in ("key", "deleted", *_POSITION)}
        conditions = [
            "t.`partition` = s.`partition`",  # fence: keys-are-per-partition
            "t.`key` <=> s.`key`",
        ]
        clauses = [f"WHEN MATCHED AND s.{_REMOVED} THEN DELETE"]
        if has_all_records or not self._lacks_content(source):
            clauses.append(f"WHEN MATCHED THEN UPDATE SET {_assigned(columns)}")
        else:
            # A deletion without content among these records keeps the row's content.
            clauses.append(f"WHEN MATCHED AND s.known THEN UPDATE SET {_assigned(columns)}")
            clauses.append(f"WHEN MATCHED THEN UPDATE SET {_assigned(kept)}")
        clauses.append(
            f"WHEN NOT MATCHED AND NOT s.{_REMOVED} THEN INSERT "
            f"({', '.join(map(quoted, columns))}) VALUES ({', '.join(columns.values())})"
        )
        source.createOrReplaceTempView(view)
        try:
            # Every Spark Connect server executes SQL; Delta's Python classes need a plugin.
            self._session.sql(
                f"MERGE INTO delta.{quoted(self._upsert)} AS t USING {view} AS s "
                f"ON {' AND '.join(conditions)} {' '.join(clauses)}"
            )
        finally:
            self._session.catalog.dropTempView(view)

    def _lacks_content(self, source: DataFrame) -> bool:
        """Return whether the merge has the clause that keeps the content of existing rows.

        A soft deletion may have no content. With the clause, Spark reads whole rows of the table;
        without it, their keys. Without deletion vectors, it reads whole rows in any case.
        """
        if self._spec.deletes is Deletes.HARD:
            return False
        return not self._spec.deletion_vectors or not source.where("NOT known").isEmpty()


def _in_list(listed: OffsetList) -> Column:
    """Return the condition of rows at the offsets of a list."""
    plans = [F.col("plan_sequence").between(run.start, run.end - 1) for run in listed.plans]
    offsets = [at_offsets(topic_id, spans) for topic_id, spans in listed.spans.items()]
    return any_of([*plans, *offsets])


def _assigned(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{quoted(name)} = {sql}" for name, sql in columns.items())
