"""One pipeline on real tables without Spark: a log in memory, and files as Spark leaves them."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from tests.support.memory import MemoryKafka
from tests.support.plans import make_spec, wanted
from tests.support.services import NOW, Services
from tidemark.core.datafile import DataFile, plan_folder
from tidemark.core.offsets import SpanSet
from tidemark.core.origins import RunOrigin
from tidemark.core.plan import Plan
from tidemark.ingest.protocols import LogReader, TopicLogReader, TopicReader
from tidemark.lake.columns import BRONZE_SCHEMA
from tidemark.lake.control_table import DeltaControlTable
from tidemark.lake.data_table import DeltaDataTable
from tidemark.lake.maintained_table import DeltaMaintainedTable
from tidemark.lake.storage import folder_of
from tidemark.maintenance.service import Maintenance, finished_plans
from tidemark.spark import parquet
from tidemark.spec.model import PipelineSpec

WEEK = timedelta(days=7)
LATER = timedelta(days=30)
"""After it, all that a test has done is older than any retention here."""


@dataclass
class FileSink:
    """Writes a plan's records to a folder beside the table's rows, a file for each range."""

    uri: Path
    kafka: LogReader

    def write(self, plan: Plan, records_per_task: int) -> Sequence[DataFile]:  # noqa: ARG002
        name = plan_folder(plan.sequence, uuid4())
        (self.uri / name).mkdir()
        (self.uri / name / "_SUCCESS").touch()
        for planned in plan.ranges:
            spans = {planned.partition: SpanSet.of([planned.span])}
            rows = [
                {
                    "key": record.key,
                    "value": record.value,
                    "headers": [{"key": k, "value": v} for k, v in record.headers or ()],
                    "topic": plan.topic,
                    "partition": record.partition,
                    "offset": record.offset,
                    "timestamp": record.timestamp_ms * 1000,
                    "timestamp_type": int(record.timestamp_type),
                    "topic_id": plan.topic_id,
                    "plan_sequence": plan.sequence,
                    "ingested_at": NOW,
                }
                for record in self.kafka.read(plan.topic, plan.isolation_level, spans)
            ]
            file = self.uri / name / f"part-00000-{uuid4()}-c000.snappy.parquet"
            pq.write_table(pa.Table.from_pylist(rows, pa.schema(BRONZE_SCHEMA.to_arrow())), file)
            (self.uri / name / f".{file.name}.crc").touch()
        return parquet.single_partition_files(*folder_of(str(self.uri)), name)


@dataclass(frozen=True)
class AfterSomeTime:
    """Maintenance as it would be some time from now, by this machine's clock and the storage's.

    Attributes:
        time: How long from now.
    """

    time: timedelta

    def now(self) -> datetime:
        """The time by this machine's clock."""
        return datetime.now(UTC) + self.time

    def maintained_table(self, uri: str, pipeline: str | None = None) -> DeltaMaintainedTable:
        """Upkeep of a table on a storage that has the same time."""
        time = self.time

        class Later(DeltaMaintainedTable):
            def _storage_time(self) -> datetime:
                return super()._storage_time() + time

        return Later(uri, pipeline)


@dataclass
class FileLake(Services):
    """A pipeline over topic `events` of two partitions.

    Attributes:
        root: Folder of its tables.
    """

    root: Path
    spec: PipelineSpec = field(default_factory=make_spec)
    kafka: MemoryKafka = field(default_factory=MemoryKafka)

    def __post_init__(self) -> None:
        self.kafka.create("events", 2, "id-1")

    @property
    def uri(self) -> Path:
        """The data table."""
        return self.root / self.spec.target

    @property
    def watermarks(self) -> TopicReader:
        """Marks are the log's own."""
        return self.kafka

    @property
    def log_reader(self) -> TopicLogReader:
        """Another reader of the same log."""
        return self.kafka

    @property
    def control(self) -> DeltaControlTable:
        """The control table."""
        return DeltaControlTable(str(self.root / "control"))

    @property
    def table(self) -> DeltaDataTable:
        """The data table."""
        return DeltaDataTable(str(self.uri))

    @property
    def sink(self) -> FileSink:
        """Writes files."""
        return FileSink(self.uri, self.log_reader)

    def maintenance(self, after: timedelta = timedelta(0), **changes: Any) -> Maintenance:
        """Maintains the data table, some time from now."""
        name = self.spec.name
        usual = {
            "name": name,
            "table": AfterSomeTime(after).maintained_table(str(self.uri), name),
            "finished_plans": lambda: finished_plans(self.control, name, self.table),
            "now": AfterSomeTime(after).now,
        }
        return Maintenance(**{**usual, **changes})

    def plan(self, records: int, partition: int = 0) -> Plan:
        """Produce records and plan them."""
        self.produce(records, partition)
        plan = self.planner.plan(f"run {uuid4()}").plan
        assert plan is not None
        self.table.prepare(self.spec.name)
        return plan

    def produce(self, records: int, partition: int) -> None:
        """Append records to the log."""
        self.kafka.produce("events", partition, records, timestamp_ms=1_000)

    def run(self, records: int, partition: int = 0) -> Plan:
        """Produce records, plan and land them."""
        plan = self.plan(records, partition)
        self.ingest.execute(plan.sequence)
        return plan

    def plan_replacing(self, *ranges: tuple[int, int, int], requested_by: str = "test") -> Plan:
        """Plan ranges (partition, start, end) in place of what has landed there."""
        request = replace(wanted(*ranges), replaces=True)
        plan = self.planner.backfill(request, RunOrigin(f"{requested_by} {ranges}")).plan
        assert plan is not None
        return plan

    def land_again(self, *ranges: tuple[int, int, int], requested_by: str = "test") -> Plan:
        """Plan them and land them."""
        plan = self.plan_replacing(*ranges, requested_by=requested_by)
        self.ingest.execute(plan.sequence)
        return plan

    def bronze_rows(self) -> list[dict[str, Any]]:
        """Every row of the newest version, with all columns."""
        rows: list[dict[str, Any]] = pa.table(DeltaTable(self.uri).scan()).to_pylist()
        return rows

    def rows(self, version: int | None = None) -> list[tuple[int, int]]:
        """Partition and offset of every row of a version, the newest if none is named."""
        found = pa.table(DeltaTable(self.uri, version=version).scan()).to_pylist()
        return sorted((row["partition"], row["offset"]) for row in found)

    def verified(self) -> list[tuple[int, int]]:
        """Records and rows of each partition, if the table is exactly what the log has."""
        verification = self.verify.verify()
        verification.check()
        return [(each.records, each.rows) for each in verification.partitions]

    def stored(self) -> set[str]:
        """Every file and folder below the data table's folder, but for its log."""
        paths = (path.relative_to(self.uri).as_posix() for path in self.uri.rglob("*"))
        return {path for path in paths if not path.startswith("_delta_log")}


_Lake = TypeVar("_Lake", bound=FileLake)


class HomeFileLake(FileLake):
    """A lake where commands and tasks look for it."""

    @property
    def control(self) -> DeltaControlTable:
        """The control table, in its place below the lakehouse."""
        return DeltaControlTable(str(self.root / "control" / "offset_ranges"))


def home_lake(home: Path) -> HomeFileLake:
    """Pipeline `events` with three plans that have landed, and `idle` without a table."""
    (home / "pipelines").mkdir()
    for name in ("events", "idle"):
        text = f"name: {name}\ntopic: {name}\ntarget: bronze/{name}\nschedule: '@daily'\n"
        (home / "pipelines" / f"{name}.yaml").write_text(text)
    return landed_lake(home / "lakehouse", HomeFileLake, plans=3)


def landed_lake(root: Path, kind: Callable[[Path], _Lake], plans: int) -> _Lake:
    """Return a copy of a lake with landed plans of three records each; landing takes longer."""
    first = _first_lake(kind, plans)
    shutil.copytree(first.root, root, dirs_exist_ok=True)
    made = kind(root)
    made.kafka = deepcopy(first.kafka)
    return made


@cache
def _first_lake(kind: Callable[[Path], FileLake], plans: int) -> FileLake:
    """Return the lake that this process copies for each test."""
    folder = tempfile.mkdtemp(prefix="tidemark-lake-")
    atexit.register(shutil.rmtree, folder)
    made = kind(Path(folder))
    for _ in range(plans):
        made.run(3)
    return made


def age(folder: Path, days: int = 20) -> None:
    """Make files, the log's own as well, look as if they had been written so many days ago."""
    then = datetime.now(UTC).timestamp() - days * 86400
    for file in folder.rglob("*"):
        if file.is_file():
            os.utime(file, (then, then))


def without_checksums(folder: Path) -> None:
    """Remove the checksums beside the files, which are empty here: Spark would compare them."""
    for checksums in folder.rglob("*.crc"):
        checksums.unlink()


def double(uri: str | Path) -> None:
    """Compact a table twice from one version with delta-rs: each row is there twice."""
    one, other = DeltaTable(uri), DeltaTable(uri)
    one.optimize.compact()
    other.optimize.compact()
