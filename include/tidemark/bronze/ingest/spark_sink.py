"""Spark sink: reads exactly the planned ranges from Kafka into new files."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import datetime
from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own docs use

from tidemark.bronze.ingest.protocols import Clock, LogReader
from tidemark.bronze.ingest.spark_exact import ExactFileWriter, altered_spans, has_exact_timestamps
from tidemark.core.datafile import DataFile, plan_folder
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.plan import Plan
from tidemark.delta.storage import table_folder
from tidemark.kafka.errors import KafkaFailure, KafkaRefused, KafkaUnavailable
from tidemark.spark import parquet
from tidemark.spark.failures import exception_chain, session_settings, spark_error
from tidemark.spark.java_client import headers_at
from tidemark.spark.sessions import use_scheduler_pool

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

log = logging.getLogger(__name__)

_KAFKA_ERRORS = "org.apache.kafka.common.errors."
_REFUSALS = {
    f"{_KAFKA_ERRORS}{name}Exception"
    for name in (
        *("TopicAuthorization", "GroupAuthorization", "ClusterAuthorization"),
        *("SaslAuthentication", "SslAuthentication", "UnsupportedSaslMechanism"),
    )
}
_LOST_ANSWERS = {
    f"{_KAFKA_ERRORS}{name}Exception"
    for name in (
        *("Timeout", "Disconnect", "Network", "BrokerNotAvailable", "LeaderNotAvailable"),
        *("NotLeaderOrFollower", "ReplicaNotAvailable", "ListenerNotFound", "KafkaStorage"),
        *("OffsetNotAvailable", "UnknownLeaderEpoch", "FencedLeaderEpoch"),
    )
}
"""Transient exceptions of Kafka's client."""
_NO_RECORD = re.compile(r"Cannot fetch record for offset (\d+) in (\d+) milliseconds")
"""The message of Spark's own exception after polls without a record of a partition."""
_NO_ADDRESS = "No resolvable bootstrap urls"
"""Begins the message of Kafka's client if a machine cannot resolve the names of the brokers."""

_OVERFLOW = "java.lang.ArithmeticException"
"""The exception of Spark's Kafka source for a timestamp beyond 64-bit microseconds."""

_ONE_AT_A_TIME: Mapping[str, str] = MappingProxyType({"kafka.max.poll.records": "1"})
"""Options to read records that are too large for the memory together."""
_CACHE_S = 20
"""Time after which Spark has dropped the records that failed tasks fetched. It exceeds the time-out
of the cache and the interval of the eviction."""
_NAMED_RANGES = 5


class SparkSink:
    """Writes plans to files in the folder of one existing bronze table.

    Args:
        open_session: Returns the Spark session, with the Kafka source on its class path. The first
            write of a plan calls it.
        uri: The bronze table.
        kafka_options: Options of Spark's Kafka source (kafka/options.py).
        log_reader: Reads records that Spark's source would alter or fail at.
        now: The clock for `ingested_at`, read once for each landing.
        write_options: Options for writing Parquet files, in addition to the session's settings.
    """

    def __init__(
        self,
        open_session: Callable[[], SparkSession],
        uri: str,
        kafka_options: Mapping[str, str],
        log_reader: LogReader,
        now: Clock,
        write_options: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._open_session = open_session
        self._uri = uri
        self._kafka_options = kafka_options
        self._log_reader = log_reader
        self._now = now
        self._write_options = write_options

    @cached_property
    def _session(self) -> SparkSession:
        return self._open_session()

    def write(self, plan: Plan, records_per_task: int) -> list[DataFile]:
        """Read the plan's ranges into files of a new folder, each of one partition.

        Args:
            plan: The plan.
            records_per_task: Maximum offsets of one task; longer ranges are split (S12).

        Raises:
            KafkaRefused: The brokers denied access.
            SetupError: The table's storage cannot be used from Python, or Spark misses a class.
            StorageFailure: The files cannot be written.
            EngineFailed: Spark failed.
            KafkaUnavailable: The brokers did not answer Spark or the second reader.
            OffsetsDeleted, TopicMissing: The second reader failed.
        """
        what = f"plan {plan.sequence} of pipeline {plan.pipeline!r}"
        files, table = table_folder(self._uri)
        name = plan_folder(plan.sequence, uuid4())
        use_scheduler_pool(self._session, plan.pipeline)
        with ExitStack() as undo:
            # No commit refers to the folder; if this removal fails, maintenance removes it.
            undo.callback(_remove, files, f"{table}/{name}")
            try:
                made = self._write_files(plan, records_per_task, files, table, name)
            except (PySparkException, Py4JError, OSError, ValueError) as failure:
                lost = _kafka_failure(failure, plan, f"reading {what}")
                if lost:
                    raise lost from failure
                if _is_out_of_memory(failure):
                    what += f" ({_offsets_text(plan)}), one record at a time"
                raise spark_error(
                    failure,
                    f"landing {what}",
                    location=self._uri,
                    settings=session_settings(self._session),
                    options=self._kafka_options,
                    may_have_values=False,
                ) from failure
            undo.pop_all()
        return made

    def _write_files(
        self, plan: Plan, records_per_task: int, files: FileSystem, table: str, name: str
    ) -> list[DataFile]:
        """Write the plan's rows: the driver writes rows with timestamps that Spark alters."""
        now, folder = self._now(), f"{table}/{name}"
        exact = ExactFileWriter(
            log_reader=self._log_reader,
            headers_of=partial(headers_at, self._session, self._kafka_options, plan),
            plan=plan,
            ingested_at=now,
            files=files,
            folder=folder,
        )
        planned = [(each.partition, SpanSet((each.span,))) for each in plan.ranges]
        altered_offsets: Mapping[int, SpanSet] = {}
        write = partial(
            self._write_with_spark,
            *(plan, records_per_task, name, now),
            remove_files=partial(_remove, files, folder),
        )
        try:
            write(planned)
        except (PySparkException, Py4JError) as failure:
            if all(cause.kind != _OVERFLOW for cause in exception_chain(failure)):
                raise
            altered_offsets = altered_spans(self._log_reader, plan)
            if not altered_offsets:
                raise
            _remove(files, folder)
            kept = [
                (p, spans.difference(altered_offsets.get(p, SpanSet()))) for p, spans in planned
            ]
            write(kept)
            files.create_dir(folder)
        made = parquet.single_partition_files(files, table, name)
        altered_files = [file for file in made if not has_exact_timestamps(file)]
        if not altered_files and not altered_offsets:
            return made
        for file in altered_files:
            exact.write_again(file, records_per_task)
            files.delete_file(f"{table}/{file.path}")
        for partition, spans in planned:
            for span in spans.intersection(altered_offsets.get(partition, SpanSet())):
                exact.write(partition, span, records_per_task)
        return parquet.single_partition_files(files, table, name)

    def _write_with_spark(
        self,
        plan: Plan,
        records_per_task: int,
        name: str,
        now: datetime,
        wanted: Iterable[tuple[int, SpanSet]],
        *,
        remove_files: Callable[[], None],
    ) -> None:
        """Write the records of some offsets; Spark's source reads one range of a partition.

        A compressed batch of a megabyte can contain records of gigabytes, and only decompression
        shows their size. If the memory does not suffice, Spark reads one record at a time.
        """
        rounds: list[dict[int, Span]] = []
        for partition, spans in wanted:
            for span in spans:
                free = next((taken for taken in rounds if partition not in taken), None)
                if free is None:
                    rounds.append({partition: span})
                else:
                    free[partition] = span
        if not rounds:
            return
        try:
            self._write_rounds(plan, records_per_task, name, now, rounds, {})
        except (PySparkException, Py4JError) as failure:
            if not _is_out_of_memory(failure):
                raise
            log.warning(
                "out of memory, reading one record at a time pipeline=%s plan=%d",
                *(plan.pipeline, plan.sequence),
            )
            remove_files()
            time.sleep(_CACHE_S)
            self._write_rounds(plan, records_per_task, name, now, rounds, _ONE_AT_A_TIME)

    def _write_rounds(
        self,
        plan: Plan,
        records_per_task: int,
        name: str,
        now: datetime,
        rounds: Sequence[Mapping[int, Span]],
        options: Mapping[str, str],
    ) -> None:
        frames = [self._read_round(plan, taken, records_per_task, options) for taken in rounds]
        read = self._with_provenance(_united(frames), plan, now)
        read.write.options(**self._write_options).parquet(f"{self._uri}/{name}")

    def _read_round(
        self,
        plan: Plan,
        ranges: Mapping[int, Span],
        records_per_task: int,
        options: Mapping[str, str],
    ) -> DataFrame:
        topic = plan.topic
        return (
            self._session.read.format("kafka")
            .options(**{**self._kafka_options, **options})
            # The plan's level, because its end offsets depend on it; the spec may have changed.
            # fence: reader-has-plans-isolation-level
            .option("kafka.isolation.level", plan.isolation_level.value)
            .option("assign", json.dumps({topic: sorted(ranges)}))
            .option("startingOffsets", _offsets(topic, {p: r.start for p, r in ranges.items()}))
            .option("endingOffsets", _offsets(topic, {p: r.end for p, r in ranges.items()}))
            .option("includeHeaders", "true")
            .option("failOnDataLoss", "true")  # fence: reader-fails-on-data-loss
            .option("maxRecordsPerPartition", records_per_task)
            .load()
        )

    @staticmethod
    def _with_provenance(records: DataFrame, plan: Plan, now: datetime) -> DataFrame:
        return records.select(
            "key",
            "value",
            "headers",
            "topic",
            "partition",
            "offset",
            "timestamp",
            # The driver writes the rows with a value.
            F.lit(None).cast("bigint").alias("timestamp_out_of_range_ms"),
            F.col("timestampType").alias("timestamp_type"),
            F.lit(plan.topic_id).alias("topic_id"),
            F.lit(plan.sequence).cast("bigint").alias("plan_sequence"),
            F.lit(now).alias("ingested_at"),
        )


def _united(frames: Sequence[DataFrame]) -> DataFrame:
    """Return the union of all frames as a balanced tree; Spark cannot plan a chain of hundreds."""
    if len(frames) == 1:
        return frames[0]
    middle = len(frames) // 2
    return _united(frames[:middle]).unionAll(_united(frames[middle:]))


def _offsets(topic: str, by_partition: Mapping[int, int]) -> str:
    return json.dumps({topic: {str(p): offset for p, offset in sorted(by_partition.items())}})


def _kafka_failure(failure: Exception, plan: Plan, operation: str) -> KafkaFailure | None:
    """Return the named error if the brokers denied access or did not answer, else None."""
    causes = list(exception_chain(failure))
    for each in causes:
        if each.kind in _REFUSALS:
            return KafkaRefused(operation=operation, reason=each.message)
    for each in causes:
        if reason := _lost_answer(each.kind, each.message, plan):
            return KafkaUnavailable(operation=operation, reason=reason)
    return None


def _lost_answer(kind: str, message: str, plan: Plan) -> str:
    """Return how Kafka failed to answer; empty for an exception with another cause."""
    if found := _NO_RECORD.search(message):
        offset = int(found[1])
        places = [
            f"{plan.topic}-{each.partition}"
            for each in plan.ranges
            if each.span.start <= offset < each.span.end
        ]
        return f"no answer for offset {offset} of {' or '.join(places)} in {found[2]} ms"
    if kind in _LOST_ANSWERS or message.startswith(_NO_ADDRESS):
        # Some of these exceptions have no message: Py4J returns "None", a server an empty text.
        has_message = message not in ("", "None")
        name = kind.rpartition(".")[2]
        return message.rstrip(".") if has_message else f"{name} of topic {plan.topic}"
    return ""


def _offsets_text(plan: Plan) -> str:
    """Return the planned offsets of each partition, of the first few ranges."""
    ranges = [f"partition {each.partition}, offsets {each.span}" for each in plan.ranges]
    more = f"; {len(ranges) - _NAMED_RANGES} more ranges" if len(ranges) > _NAMED_RANGES else ""
    return "; ".join(ranges[:_NAMED_RANGES]) + more


def _is_out_of_memory(failure: Exception) -> bool:
    return any(cause.kind.endswith("OutOfMemoryError") for cause in exception_chain(failure))


def _remove(files: FileSystem, folder: str) -> None:
    with suppress(OSError):
        files.delete_dir(folder)
