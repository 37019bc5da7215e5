"""A home whose tables are in an object store, with Kafka in memory and without Spark.

Commands run in this process. PyArrow and delta-rs replace Spark: they read and write rows, and
commit merges. The counter does not count these requests.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    contextmanager,
    nullcontext,
    redirect_stderr,
    redirect_stdout,
)
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast
from unittest.mock import patch
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from tests.support.memory import MemoryKafka
from tests.support.plans import bronze_row
from tests.support.request_counts import RequestCounter
from tests.support.stores import Store
from tidemark import cli
from tidemark.app.app import App
from tidemark.app.connections import LOCAL_CONNECTION, connection_variable, kafka_connection
from tidemark.app.engines import Engines
from tidemark.app.run import execute
from tidemark.bronze.ingest.spark_sink import SparkSink
from tidemark.core.decode_work import DecodeRequest
from tidemark.core.errors import ExitCode
from tidemark.core.following import Batch
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.plan import Plan
from tidemark.core.record import LogRecord
from tidemark.core.watermarks import IsolationLevel
from tidemark.delta.columns import BRONZE_SCHEMA
from tidemark.delta.conditional_writes import _proof
from tidemark.delta.errors import EngineFailed
from tidemark.delta.log_copies import forget_copies
from tidemark.delta.storage import folder_of
from tidemark.silver.typed.spark_decoder import SparkDecoder
from tidemark.silver.upsert.spark import SparkMerger
from tidemark.spark.engine import JobRun, Submit
from tidemark.spec.upsert import MergePlan

PIPELINE = "prices"
PARTITIONS = 3
COMMITS = 10
"""Commits of each table after its last checkpoint."""
NEXT_PLAN = 3
"""Number of the first plan after the prepared ones."""
_KEYS = 20
_Part = TypeVar("_Part")

_SPEC = {
    "name": PIPELINE,
    "topic": PIPELINE,
    "schedule": "@once",
    "start": "earliest",
    "decode": {
        "key": {"format": "string"},
        "value": {"format": "string"},
        "upsert": {"deletes": "hard"},
    },
}


class KeyedKafka(MemoryKafka):
    """A cluster in memory whose records have keys."""

    def read(
        self, topic: str, isolation_level: IsolationLevel, spans: Mapping[int, SpanSet]
    ) -> Iterator[LogRecord]:
        for record in super().read(topic, isolation_level, spans):
            yield replace(record, key=b"%d" % (record.offset % _KEYS))


@dataclass(frozen=True)
class _NoSpark:
    """Replaces the sessions of Spark."""

    write_options: Mapping[str, str] = field(default_factory=dict)

    def shared(self) -> Any:
        context = SimpleNamespace(setLocalProperty=lambda *_: None)
        conf = SimpleNamespace(set=lambda *_: None)
        return SimpleNamespace(sparkContext=context, conf=conf)

    def own(self) -> Any:
        return self.shared()

    def plans_at_once(self) -> int:
        return 1


class _NoEngine(Engines):
    def select(self, master: str | None = None) -> Submit:  # noqa: ARG002
        return Submit("none")


@dataclass(frozen=True)
class _StoreApp(App):
    kafka: KeyedKafka = field(default_factory=KeyedKafka)

    @cached_property
    def engines(self) -> Engines:
        return _NoEngine(self.layout, self.environ)

    def wrap_adapter(self, name: str, part: _Part, /) -> _Part:
        reads_topic = name in ("watermarks", "log_reader")
        return cast("_Part", self.kafka) if reads_topic else part


class StoreHome:
    """A home with one pipeline, which has a typed table and an upsert table.

    Its tables are prepared in a folder, and `place` copies them to the object store.

    Args:
        folder: Folder of the home.
        store: The object store, behind `counter`.
        counter: Counts the requests to the store.
    """

    def __init__(self, folder: Path, store: Store, counter: RequestCounter) -> None:
        self._store, self._counter = store, counter
        self._local = folder / "lakehouse"
        self._remote = f"{store.uri}/{uuid4().hex}"
        self._kafka = KeyedKafka()
        self._kafka.create(PIPELINE, PARTITIONS, "id-1")
        self._prepared_kafka = self._kafka
        specs = folder / "pipelines"
        specs.mkdir(parents=True)
        # JSON is YAML.
        (specs / f"{PIPELINE}.yaml").write_text(json.dumps(_SPEC))
        address = store.environ["AWS_ENDPOINT_URL"].rpartition(":")[0]
        self._environ = {
            **store.environ,
            "AWS_ENDPOINT_URL": f"{address}:{counter.port}",
            "TIDEMARK_HOME": str(folder),
            "TIDEMARK_LAKEHOUSE": str(self._local),
            "TIDEMARK_PIPELINES": str(specs),
            # No broker has this address: the records are in memory.
            connection_variable(LOCAL_CONNECTION): kafka_connection("127.0.0.1:1"),
        }

    def prepare(self, *places: str) -> None:
        """Land, decode and merge some records, and extend the logs, all in a folder.

        Each table has exactly `COMMITS` commits after its last checkpoint. Its log records that the
        storage of each place passed the tests.
        """
        self._run_everything()
        for uri in self._tables():
            table, name = DeltaTable(uri), Path(uri).relative_to(self._local)
            proofs = [_proof(f"{self._remote}/{place}/{name}") for place in places]
            table.create_write_transaction(
                *([], "append", table.schema()),
                commit_properties=CommitProperties(app_transactions=proofs),
            )
            table = DeltaTable(uri)
            for _ in range(table.version(), COMMITS):
                table.create_write_transaction([], "append", table.schema())
        # The upsert table has to merge the new commits of the typed table.
        self._run_everything()
        for uri in self._tables():
            for file in Path(uri, "_delta_log").glob("*checkpoint*"):
                file.unlink()
            newest = DeltaTable(uri).version()
            DeltaTable(uri, version=newest - COMMITS).create_checkpoint()
        self._prepared_kafka = deepcopy(self._kafka)

    def _run_everything(self) -> None:
        self.produce(30)
        self.command("run", PIPELINE)

    def _tables(self) -> list[str]:
        return [str(log.parent) for log in sorted(self._local.rglob("_delta_log"))]

    def place(self, name: str) -> None:
        """Copy the prepared tables to a place of `prepare`, for later commands. Reset the topic."""
        for file in self._local.rglob("*"):
            if file.is_file():
                uri = f"{self._remote}/{name}/{file.relative_to(self._local)}"
                self._store.put(uri, file.read_bytes())
        self._kafka = deepcopy(self._prepared_kafka)
        os.environ["TIDEMARK_LAKEHOUSE"] = f"{self._remote}/{name}"

    @property
    def lakehouse(self) -> str:
        """The folder or URI of the tables that commands use."""
        return os.environ["TIDEMARK_LAKEHOUSE"]

    def place_in_folder(self, _: str) -> None:
        """Make commands use the prepared tables themselves, and finish earlier work on them."""
        os.environ["TIDEMARK_LAKEHOUSE"] = str(self._local)
        self.command("run", PIPELINE)

    def produce(self, records: int) -> None:
        """Append records to the topic, the same number to each partition."""
        for partition in range(PARTITIONS):
            self._kafka.produce(PIPELINE, partition, records // PARTITIONS, timestamp_ms=1_000)

    def records(self) -> list[tuple[int, int, bytes]]:
        """Return partition, offset and value of every record of the topic."""
        logs = self._kafka.topics[PIPELINE]
        everything = {number: SpanSet.of([Span(0, log.end)]) for number, log in logs.items()}
        read = self._kafka.read(PIPELINE, IsolationLevel.READ_COMMITTED, everything)
        return sorted((each.partition, each.offset, each.value or b"") for each in read)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Set the environment of the store, and replace Spark."""
        with _opened(self._environ, lambda: self._kafka, self._counter.uncounted):
            yield

    def process(
        self, *words: str, machine: str = "", before: Callable[[int], None] = lambda _: None
    ) -> SpawnProcess:
        """Start a process for a command. It writes its output to a file of the home.

        Args:
            words: The command.
            machine: Name of another machine, which has log copies of its own; empty for this one.
            before: Called with the number of the process before the command begins.
        """
        home = Path(f"{os.environ['TIDEMARK_HOME']}{machine}")
        home.mkdir(exist_ok=True)
        environ = {**os.environ, **self._environ, "TIDEMARK_HOME": str(home)}
        environ["TIDEMARK_LAKEHOUSE"] = self.lakehouse
        # A test process has threads, so it cannot fork.
        spawn = multiprocessing.get_context("spawn")
        may_begin, begin = spawn.Pipe(duplex=False)
        arguments = (may_begin, environ, self._kafka, words)
        process = spawn.Process(target=_run_command, args=arguments, daemon=True)
        process.start()
        before(process.pid or 0)
        begin.send(True)
        return process

    def command(self, *words: str) -> Any:
        """Run a command, and return what it prints as JSON.

        Raises:
            RuntimeError: The command failed.
        """
        code, printed, _ = self.attempt(*words)
        if code != ExitCode.OK:
            raise RuntimeError(f"{words}: {code} {printed}")
        return json.loads(printed)

    def attempt(self, *words: str) -> tuple[int, str, str]:
        """Run a command; return its exit code, its JSON and its standard error."""
        # As a process of its own.
        forget_copies()
        printed, errors = io.StringIO(), io.StringIO()
        arguments = ["tidemark", *words, "--json"]
        try:
            with (
                patch.object(sys, "argv", arguments),
                redirect_stdout(printed),
                redirect_stderr(errors),
            ):
                cli.main()
        except SystemExit as ended:
            return int(ended.code or ExitCode.OK), printed.getvalue(), errors.getvalue()
        return ExitCode.OK, printed.getvalue(), errors.getvalue()


@contextmanager
def _opened(
    environ: Mapping[str, str],
    kafka: Callable[[], KeyedKafka],
    uncounted: Callable[[], AbstractContextManager[None]],
) -> Iterator[None]:
    def app() -> App:
        """Return a new app, as each process has its own."""
        return _StoreApp(environ=dict(os.environ), sessions=_NoSpark(), kafka=kafka())

    stand_ins = _StandIns(uncounted)
    with (
        patch.dict(os.environ, environ),
        patch.object(App, "from_environment", app),
        patch("tidemark.cli.engine.run", _run),
        patch.object(SparkSink, "_write_with_spark", stand_ins.land),
        patch.object(SparkDecoder, "_rows_of", stand_ins.rows_of),
        patch.object(SparkDecoder, "_decoded", stand_ins.decoded),
        patch.object(SparkDecoder, "_write_typed", stand_ins.write_typed),
        patch.object(SparkMerger, "_set_properties"),
        patch.object(SparkMerger, "_merge_in_transaction", stand_ins.merge),
    ):
        yield


def _run_command(
    may_begin: Connection, environ: Mapping[str, str], kafka: KeyedKafka, words: Sequence[str]
) -> None:
    """Run a command in this process, and count the requests of Spark's stand-ins as well."""
    may_begin.recv()
    with (
        _opened(environ, lambda: kafka, nullcontext),
        Path(environ["TIDEMARK_HOME"], "output").open("a") as output,
        patch.object(sys, "argv", ["tidemark", *words, "--json"]),
        redirect_stdout(output),
        redirect_stderr(output),
    ):
        cli.main()


def _run(app: App, _engine: object, job: str, plans: Sequence[Any], **_: object) -> JobRun:
    """Run a job in this process, as on a Spark Connect server."""
    results, code = execute(app, job, plans, nullcontext(app.sessions))
    return JobRun(exit_code=code, results=results)


class _StandIns:
    """Replacements of methods that use Spark, for an ingest, a decode and a merge.

    Args:
        uncounted: Returns a block whose requests are not counted.
    """

    def __init__(self, uncounted: Callable[[], AbstractContextManager[None]]) -> None:
        def land(
            sink: SparkSink,
            plan: Plan,
            records_per_task: int,
            name: str,
            now: datetime,
            wanted: Any,
            *,
            remove_files: object,
        ) -> None:
            with uncounted():
                for partition, spans in wanted:
                    rows = [
                        bronze_row(plan, record, now)
                        for record in sink._log_reader.read(
                            plan.topic, plan.isolation_level, {partition: spans}
                        )
                    ]
                    _write(sink._uri, name, rows, pa.schema(BRONZE_SCHEMA.to_arrow()))

        def rows_of(_: SparkDecoder, request: DecodeRequest) -> Any:
            return SimpleNamespace(request=request, sequence=1, frame=None)

        def decoded(_: SparkDecoder, rows: Any, *__: object, **___: object) -> DecodeRequest:
            request: DecodeRequest = rows.request
            return request

        def write_typed(
            decoder: SparkDecoder, request: DecodeRequest, place: str
        ) -> tuple[int, int, int]:
            with uncounted():
                bronze = DeltaTable(decoder._bronze, request.version)
                rows = [
                    {**row, "key": row["key"].decode(), "value": row["value"].decode()}
                    for row in pa.table(bronze.scan()).to_pylist()
                    if row["offset"]
                    in request.offsets.get(Batch(row["plan_sequence"], row["topic_id"]), {}).get(
                        row["partition"], SpanSet()
                    )
                ]
                schema = pa.schema(DeltaTable(decoder._typed).schema().to_arrow())
                table, _, name = place.rpartition("/")
                _write(table, name, rows, schema)
            return len(rows), 0, 0

        def merge(merger: SparkMerger, merge: MergePlan) -> None:
            with uncounted():
                table = DeltaTable(merger._upsert)
                rows = pa.table(DeltaTable(merger._typed, merge.version).scan()).to_pylist()
                newest = {
                    (row["partition"], row["key"]): {**row, "deleted": False}
                    for row in sorted(rows, key=lambda row: row["offset"])
                }
                schema = pa.schema(table.schema().to_arrow())
                properties = CommitProperties(
                    app_transactions=[Transaction(merge.app_id, merge.version)],
                    custom_metadata={"userMetadata": merge.commit_metadata()},
                    max_commit_retries=0,
                )
                merged = pa.Table.from_pylist(list(newest.values()), schema)
                try:
                    write_deltalake(table, merged, mode="overwrite", commit_properties=properties)
                except CommitFailedError as refused:
                    raise EngineFailed(operation="a merge", reason=str(refused)) from refused

        self.land, self.rows_of, self.decoded = land, rows_of, decoded
        self.write_typed, self.merge = write_typed, merge


def _write(table: str, name: str, rows: Sequence[Mapping[str, object]], schema: pa.Schema) -> None:
    files, folder = folder_of(table)
    files.create_dir(f"{folder}/{name}")
    path = f"{folder}/{name}/part-00000-{uuid4()}-c000.zstd.parquet"
    pq.write_table(pa.Table.from_pylist(list(rows), schema), path, filesystem=files)
