"""A process with one warm Spark session, which receives landings over a pipe.

Every side of a benchmark has a separate worker. So the settings of one side for its session or JVM
do not affect another side, and all JVMs are equally warm.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from bench.clock import cpu_of_tree, timed
from bench.context import PROJECT, Context
from bench.frame import Metrics
from tidemark.spark.processes import last_lines

_ANSWER_S = 900


@dataclass(frozen=True, slots=True, kw_only=True)
class LandPipeline:
    """Tidemark: plan, land, confirm, record, through the services that the jobs use.

    Attributes:
        environ: Environment variables of the app (`Context.environ`).
        pipeline: Name of the pipeline.
        requested_by: Requester of the plan.
    """

    environ: Mapping[str, str]
    pipeline: str
    requested_by: str

    def land(self) -> dict[str, float]:
        """Plan and execute, in the session of this process."""
        from tidemark.app.app import App

        app = App.from_environment(self.environ)
        with timed(own_cpu) as watch:
            plan = app.pipeline(self.pipeline).planner.plan(self.requested_by).plan
            if plan is None:
                raise RuntimeError(f"there is nothing to land for {self.pipeline}")
            done = app.pipeline(self.pipeline).ingest(plan.sequence)
        return {**watch.metrics(), "records": done.landing.records}


@dataclass(frozen=True, slots=True, kw_only=True)
class LandBatch:
    """Plain Spark: a batch read with default options, written to Delta with default options."""

    bootstrap: str
    topic: str
    path: str

    def land(self) -> dict[str, float]:
        """Read the whole topic and write it."""
        from pyspark.sql import SparkSession

        spark = SparkSession.getActiveSession()
        with timed(own_cpu) as watch:
            (
                spark.read.format("kafka")
                .option("kafka.bootstrap.servers", self.bootstrap)
                .option("subscribe", self.topic)
                .load()
                .write.format("delta")
                .save(self.path)
            )
        return watch.metrics()


@dataclass(frozen=True, slots=True, kw_only=True)
class LandStream:
    """Structured Streaming: availableNow from the topic's beginning, otherwise default options."""

    bootstrap: str
    topic: str
    path: str
    checkpoint: str

    def land(self) -> dict[str, float]:
        """Run the query to its end."""
        from pyspark.sql import SparkSession

        spark = SparkSession.getActiveSession()
        with timed(own_cpu) as watch:
            (
                spark.readStream.format("kafka")
                .option("kafka.bootstrap.servers", self.bootstrap)
                .option("subscribe", self.topic)
                # By default a stream begins at the end.
                .option("startingOffsets", "earliest")
                .load()
                .writeStream.format("delta")
                .option("checkpointLocation", self.checkpoint)
                .trigger(availableNow=True)
                .start(self.path)
                .awaitTermination()
            )
        return watch.metrics()


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodePipeline:
    """Tidemark: a landing and its decoding, through the services that the jobs use.

    Attributes:
        landing: The pipeline, whose spec has a typed table.
    """

    landing: LandPipeline

    def land(self) -> dict[str, float]:
        """Land and decode, in the session of this process."""
        from tidemark.app.app import App

        app = App.from_environment(self.landing.environ)
        with timed(own_cpu) as watch:
            landed = self.landing.land()
            app.pipeline(self.landing.pipeline).typed.decode()
        metrics = watch.metrics()
        return {**metrics, "decode_seconds": metrics["seconds"] - landed["seconds"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeStream:
    """Structured Streaming: availableNow into a bronze and a typed table, default options.

    Attributes:
        bootstrap, topic: The broker, and the topic, which is read from its beginning.
        bronze, typed: Paths of the two tables.
        decoded: The decoded value, in Spark SQL; used if `avro` is None.
        avro: Avro schema in JSON of values after a frame, which is skipped.
        checkpoint: Folder of the checkpoints.
        in_one: Whether one query keeps each micro-batch in memory and writes it twice. Otherwise
            two queries read the topic.
    """

    bootstrap: str
    topic: str
    bronze: str
    typed: str
    checkpoint: str
    decoded: str | None = None
    avro: str | None = None
    in_one: bool = False

    def land(self) -> dict[str, float]:
        """Run the queries to their end."""
        with timed(own_cpu) as watch:
            if self.in_one:
                self._await(self._read().writeStream.foreachBatch(self._write_both), "both")
            else:
                bronze = self._read().writeStream.format("delta").option("path", self.bronze)
                self._await(bronze, "bronze")
                typed = self._decoded(self._read()).writeStream.format("delta")
                self._await(typed.option("path", self.typed), "typed")
        return watch.metrics()

    def _read(self) -> Any:
        from pyspark.sql import SparkSession

        spark = SparkSession.getActiveSession()
        return (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self.bootstrap)
            .option("subscribe", self.topic)
            .option("startingOffsets", "earliest")
            .load()
        )

    def _decoded(self, rows: Any) -> Any:
        from pyspark.sql import functions as F  # noqa: N812  the name that Spark's docs use

        if self.avro:
            from pyspark.sql.avro.functions import from_avro

            value = from_avro(F.expr("substring(value, 6)"), self.avro, {"mode": "PERMISSIVE"})
        else:
            value = F.expr(str(self.decoded))
        return rows.withColumn("value", value).withColumn("key", F.col("key").cast("string"))

    def _write_both(self, batch: Any, _: int) -> None:
        batch.persist()
        batch.write.format("delta").mode("append").save(self.bronze)
        self._decoded(batch).write.format("delta").mode("append").save(self.typed)
        batch.unpersist()

    def _await(self, writer: Any, name: str) -> None:
        place = f"{self.checkpoint}/{name}"
        query = writer.option("checkpointLocation", place).trigger(availableNow=True).start()
        query.awaitTermination()


class Landing(Protocol):
    """Work that a worker executes in its process: a landing, or a merge."""

    def land(self) -> Metrics:
        """Do the work in the session of this process, and return its metrics."""


def plain_settings(master: str) -> dict[str, str]:
    """Return the settings of the peers' sessions: only those that Kafka and Delta require."""
    jars = f"{PROJECT}/.tidemark/jvm/spark/*"
    return {
        "spark.master": master,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.driver.extraClassPath": jars,
        "spark.executor.extraClassPath": jars,
    }


class Worker:
    """The parent's end of one worker process."""

    def __init__(self, connection: Connection, log: Path) -> None:
        self._connection = connection
        self._log = log

    def land(self, landing: Landing) -> Metrics:
        """Execute a landing in the worker, and return its metrics.

        Raises:
            RuntimeError: The landing failed or the worker ended; the message has the cause.
        """
        try:
            self._connection.send(landing)
            if not self._connection.poll(_ANSWER_S):
                raise RuntimeError(f"no answer of the worker in {_ANSWER_S} s; see {self._log}")
            answer = self._connection.recv()
        except (EOFError, BrokenPipeError) as gone:
            raise RuntimeError(f"the worker ended: {last_lines(self._log, lines=20)}") from gone
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return dict(answer)


@contextmanager
def started(context: Context, name: str, settings: Mapping[str, str]) -> Iterator[Worker]:
    """Start a worker with a Spark session of these settings; end it after the block.

    The session uses the Spark master of all sides, and listens on the loopback address only.
    """
    from tidemark.spark.settings import LOCAL_SETTINGS

    context.progress(f"starting the session of {name}")
    placed = {**settings, "spark.master": context.master, **LOCAL_SETTINGS}
    log = context.home / f"{name}.log"
    processes = multiprocessing.get_context("spawn")
    ours, theirs = processes.Pipe()
    process = processes.Process(target=_serve, args=(theirs, name, placed, str(log)), name=name)
    process.start()
    theirs.close()
    try:
        yield Worker(ours, log)
    finally:
        # The worker ends when the pipe is closed, and its JVM ends with it.
        ours.close()
        process.join(60)
        if process.is_alive():
            process.kill()
            process.join()


def _serve(connection: Connection, name: str, settings: dict[str, str], log: str) -> None:
    with open(log, "w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    from tidemark.spark.sessions import open_application

    session = open_application(name, settings)
    try:
        while True:
            try:
                landing = connection.recv()
            except EOFError:
                return
            connection.send(_answer(landing.land))
    finally:
        session.stop()


def _answer(work: Callable[[], Metrics]) -> Metrics | str:
    """Return the metrics of the work, or its failure as text, which the parent raises."""
    try:
        return work()
    except Exception as failure:  # noqa: BLE001  (the boundary between two processes)
        return f"{type(failure).__name__}: {str(failure)[:2000]}"


def own_cpu() -> float:
    """Return the processor seconds of this process and its descendants so far."""
    return cpu_of_tree(os.getpid())
