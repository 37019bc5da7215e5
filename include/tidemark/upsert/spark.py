"""Merging typed rows into the table of latest rows, with Spark's own MERGE."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own docs use

from tidemark.core.offsets import SpanSet, united
from tidemark.lake.errors import EngineFailed
from tidemark.spark.conditions import at_offsets
from tidemark.spark.failures import session_settings, spark_error
from tidemark.spec.upsert import Deletes, Envelope, How, Merge, UpsertSpec
from tidemark.typed.spark_frames import quoted

log = logging.getLogger(__name__)

_PLACE = ("topic_id", "partition", "offset", "timestamp", "plan_sequence")
_GONE = "__gone"
"""Whether a key has no record any more, or a deletion that takes its row."""


class SparkMerger:
    """Brings one table of latest rows up to date.

    Args:
        open_session: Opens a session of Spark. No other code may write Delta tables with it,
            because the transaction of a merge is a setting of its session.
        typed: The typed table.
        latest: The table of latest rows, which is there already.
        spec: What a latest row is.
    """

    def __init__(
        self, open_session: Callable[[], SparkSession], typed: str, latest: str, spec: UpsertSpec
    ) -> None:
        self._open_session = open_session
        self._typed = typed
        self._latest = latest
        self._spec = spec

    def merge(self, merge: Merge) -> None:
        """As `Merger.merge`; if rows of before cannot be read any more, all are looked at."""
        try:
            self._settled(merge)
        except EngineFailed as failed:
            if merge.how is not How.KEYS:
                raise
            log.warning("made anew instead: %s", failed)
            self._settled(merge.anew())

    @cached_property
    def _session(self) -> SparkSession:
        return self._open_session()

    def _settled(self, merge: Merge) -> None:
        settings = {
            # fence: late-merge-is-a-past-transaction
            "spark.databricks.delta.write.txnAppId": merge.base,
            "spark.databricks.delta.write.txnVersion": str(merge.version),
            "spark.databricks.delta.commitInfo.userMetadata": merge.told(),
        }
        for name, value in settings.items():
            self._session.conf.set(name, value)
        try:
            self._do(merge)
        except (PySparkException, Py4JError, ValueError) as failure:
            raise spark_error(
                failure,
                f"merging {self._typed} into {self._latest}",
                location=self._latest,
                settings=session_settings(self._session),
                may_have_values=True,
            ) from None

    def _do(self, merge: Merge) -> None:
        rows = self._rows(merge.version)
        if merge.how is How.ALL:
            made = self._newest(rows, merge.order).where(~F.col(_GONE)).drop(_GONE, "known")
            whole = made.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
            whole.save(self._latest)
            return
        if merge.how is How.KEYS:
            keys = self._keys(merge)
            known = rows.join(keys, self._same_key(rows, keys), "left_semi")
            newest = self._newest(known, merge.order)
            source = keys.join(newest, self._same_key(keys, newest), "left").select(
                keys["partition"],
                keys["key"],
                *(newest[name] for name in newest.columns if name not in ("partition", "key")),
            )
            source = source.withColumn(_GONE, F.coalesce(_GONE, F.lit(True)))
        else:
            plans = [plan.sequence for plan in merge.changes.appended]
            source = self._newest(rows.where(F.col("plan_sequence").isin(plans)), merge.order)
        self._into_table(source, whole=merge.how is How.KEYS)

    def _rows(self, version: int) -> DataFrame:
        """Typed rows that have a key."""
        table = self._session.read.format("delta").option("versionAsOf", version).load(self._typed)
        return table.where(F.col("key").isNotNull())

    def _keys(self, merge: Merge) -> DataFrame:
        """Keys that something has happened to, by partition."""
        new, changes = self._rows(merge.version), merge.changes
        came = [plan.sequence for plan in (*changes.appended, *changes.replaced)]
        by_topic: dict[str, Mapping[int, SpanSet]] = {}
        for plan in changes.replaced:
            by_topic[plan.topic_id] = united([by_topic.get(plan.topic_id, {}), plan.spans()])
        went = F.col("plan_sequence").isin(list(changes.removed))
        for topic_id, spans in by_topic.items():
            went = went | at_offsets(topic_id, spans)
        keys = new.where(F.col("plan_sequence").isin(came)).select("partition", "key")
        if changes.replaced or changes.removed:
            before = self._rows(merge.since or 0).where(went)
            keys = keys.union(before.select("partition", "key"))
        return keys.distinct()

    @staticmethod
    def _same_key(left: DataFrame, right: DataFrame) -> Column:
        return (left["partition"] == right["partition"]) & left["key"].eqNullSafe(right["key"])

    def _newest(self, rows: DataFrame, order: Collection[str]) -> DataFrame:
        """One row for each key: its newest record's place, its last content, whether it goes."""
        content, deleted = F.col("value"), F.col("value").isNull()
        if self._spec.envelope is Envelope.DEBEZIUM:
            content = F.col("value")["after"]
            deleted = deleted | F.coalesce(F.col("value")["op"] == "d", F.lit(False))
            # Messages, and what tells of no row.
            rows = rows.where(deleted | content.isNotNull())
        ranks = {topic_id: rank for rank, topic_id in enumerate(order)}
        rank = F.coalesce(
            *(F.when(F.col("topic_id") == each, number) for each, number in ranks.items()),
            F.lit(-1),
        )
        at = F.struct(rank.alias("rank"), F.col("offset"))
        found = rows.groupBy("partition", "key").agg(
            F.max_by(F.struct(*_PLACE, deleted.alias("deleted")), at).alias("newest"),
            F.max_by(
                F.struct(content.alias("value")), F.when(content.isNotNull() & ~deleted, at)
            ).alias("last"),
        )
        is_hard = self._spec.deletes is Deletes.HARD
        return found.select(
            "key",
            F.col("last")["value"].alias("value"),
            F.col("newest")["deleted"].alias("deleted"),
            *(
                F.col("newest")[name].alias(name) if name != "partition" else F.col(name)
                for name in _PLACE
            ),
            F.col("last").isNotNull().alias("known"),
            (F.col("newest")["deleted"] & F.lit(is_hard)).alias(_GONE),
        )

    def _into_table(self, source: DataFrame, *, whole: bool) -> None:
        """Merge; `whole` says that the source knows all of a key's records."""
        changes = f"changes_{uuid4().hex}"
        columns = ("key", "value", "deleted", *_PLACE)
        # fence: keys-are-per-partition
        same = "t.`partition` = s.`partition` AND t.`key` <=> s.`key`"
        source.createOrReplaceTempView(changes)
        try:
            # Every Spark Connect server executes SQL; Delta's Python classes need a plugin.
            self._session.sql(
                f"MERGE INTO delta.{quoted(self._latest)} AS t USING {changes} AS s "
                f"ON {same} "
                f"WHEN MATCHED AND s.{_GONE} THEN DELETE "
                f"WHEN MATCHED AND ({whole} OR s.known) THEN UPDATE SET {_assigned(columns)} "
                # A deletion that arrives after its content keeps the content.
                f"WHEN MATCHED THEN UPDATE SET {_assigned(n for n in columns if n != 'value')} "
                f"WHEN NOT MATCHED AND NOT s.{_GONE} THEN "
                f"INSERT ({', '.join(map(quoted, columns))}) "
                f"VALUES ({', '.join(f's.{quoted(name)}' for name in columns)})"
            )
        finally:
            self._session.catalog.dropTempView(changes)


def _assigned(columns: Iterable[str]) -> str:
    return ", ".join(f"{quoted(name)} = s.{quoted(name)}" for name in columns)
