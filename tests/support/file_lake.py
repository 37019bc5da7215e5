"""One pipeline on real tables without Spark: a log in memory, and files as Spark writes them."""

from __future__ import annotations

import atexit
import os
import shutil
import struct
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.support.memory import MemoryKafka
from tests.support.plans import bronze_row, make_spec, wanted
from tests.support.services import NOW, DeltaServices
from tidemark.bronze.ingest.protocols import LogReader, TopicLogReader, TopicReader
from tidemark.core.datafile import DataFile, plan_folder
from tidemark.core.errors import TableBehindLedger
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.origins import RunOrigin
from tidemark.core.plan import Plan
from tidemark.core.record import LogRecord
from tidemark.core.watermarks import IsolationLevel, Position
from tidemark.delta.columns import BRONZE_SCHEMA
from tidemark.delta.storage import folder_of
from tidemark.spark import parquet
from tidemark.spec.model import PipelineSpec

WEEK = timedelta(days=7)
LATER = timedelta(days=30)
"""Longer than every retention time of a test."""


@dataclass
class FileSink:
    """Writes the records of a plan to a new folder of the table, one file for each range."""

    uri: Path
    kafka: LogReader

    def write(self, plan: Plan, records_per_task: int) -> Sequence[DataFile]:  # noqa: ARG002
        name = plan_folder(plan.sequence, uuid4())
        (self.uri / name).mkdir()
        (self.uri / name / "_SUCCESS").touch()
        for planned in plan.ranges:
            spans = {planned.partition: SpanSet.of([planned.span])}
            rows = [
                bronze_row(plan, record, NOW)
                for record in self.kafka.read(plan.topic, plan.isolation_level, spans)
            ]
            file = self.uri / name / f"part-00000-{uuid4()}-c000.snappy.parquet"
            pq.write_table(pa.Table.from_pylist(rows, pa.schema(BRONZE_SCHEMA.to_arrow())), file)
            write_checksums(file)
        return parquet.single_partition_files(*folder_of(str(self.uri)), name)


def write_checksums(file: Path) -> None:
    """Write the file of checksums that Hadoop keeps beside each file, and that Spark compares."""
    content, chunk = file.read_bytes(), 512
    sums = [zlib.crc32(content[at : at + chunk]) for at in range(0, len(content), chunk)]
    data = b"crc\0" + struct.pack(f">i{len(sums)}I", chunk, *sums)
    file.with_name(f".{file.name}.crc").write_bytes(data)


Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True)
class Payload:
    """Key, value and headers of a record."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()


@dataclass(frozen=True)
class PayloadReader:
    """Reads a log, and gives some of its records payloads of their own.

    Attributes:
        kafka: The log.
        payloads: Payloads by partition and offset.
    """

    kafka: MemoryKafka
    payloads: Mapping[tuple[int, int], Payload]

    def read(
        self, topic: str, isolation_level: IsolationLevel, spans: Mapping[int, SpanSet]
    ) -> Iterator[LogRecord]:
        for record in self.kafka.read(topic, isolation_level, spans):
            own = self.payloads.get((record.partition, record.offset))
            yield replace(record, **vars(own)) if own else record

    def first_records(
        self, topic: str, isolation_level: IsolationLevel, spans: Mapping[int, SpanSet]
    ) -> Iterator[LogRecord]:
        for partition, some in spans.items():
            yield from islice(self.read(topic, isolation_level, {partition: some}), 1)

    def read_briefly(
        self,
        topic: str,
        isolation_level: IsolationLevel,
        partition: int,
        span: Span,
        *,
        seconds: float,  # noqa: ARG002  memory needs no time
        size: int,  # noqa: ARG002  records are small
    ) -> tuple[Sequence[LogRecord], int]:
        spans = {partition: SpanSet((span,))}
        return [*self.read(topic, isolation_level, spans)], span.end

    def truncated_partition(self, topic: str, positions: Mapping[int, Position]) -> int | None:
        return self.kafka.truncated_partition(topic, positions)


@dataclass
class FileLake(DeltaServices):
    """A pipeline over topic `events` of two partitions.

    Attributes:
        root: Folder of the lakehouse.
        kafka: The log.
        payloads: Payloads of records, by partition and offset. The other records have usual ones.
    """

    root: Path
    spec: PipelineSpec = field(default_factory=make_spec)
    kafka: MemoryKafka = field(default_factory=MemoryKafka)
    payloads: dict[tuple[int, int], Payload] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.kafka.create("events", 2, "id-1")

    @property
    def watermarks(self) -> TopicReader:
        """Reads watermarks of the log."""
        return self.kafka

    @property
    def log_reader(self) -> TopicLogReader:
        """Reads the records with their payloads."""
        return PayloadReader(self.kafka, self.payloads)

    @property
    def sink(self) -> FileSink:
        """Writes files."""
        return FileSink(self.uri, self.log_reader)

    def plan(self, records: int, partition: int = 0) -> Plan:
        """Produce records and plan them."""
        self.produce(records, partition)
        plan = self.planner.plan(f"run {uuid4()}").plan
        assert plan is not None
        self.table.prepare(self.spec.name)
        return plan

    def produce(self, records: int, partition: int) -> None:
        """Append records to a partition of the log."""
        self.kafka.produce("events", partition, records, timestamp_ms=1_000)

    def run(self, records: int, partition: int = 0) -> Plan:
        """Produce records, plan them, and land the plan."""
        plan = self.plan(records, partition)
        self.ingest.execute(plan.sequence)
        return plan

    def land_payloads(
        self,
        payloads: Sequence[tuple[bytes | None, bytes | None]],
        partition: int = 0,
        headers: Headers = (),
    ) -> Plan:
        """Land records with these keys and values, all with the same headers."""
        first = self.kafka.topics["events"][partition].end
        for offset, (key, value) in enumerate(payloads, start=first):
            self.payloads[partition, offset] = Payload(key, value, headers)
        return self.run(len(payloads), partition)

    def plan_replacing(self, *ranges: tuple[int, int, int], requested_by: str = "test") -> Plan:
        """Plan ranges (partition, start, end) in place of their rows."""
        request = replace(wanted(*ranges), replaces=True)
        plan = self.planner.backfill(request, RunOrigin(f"{requested_by} {ranges}")).plan
        assert plan is not None
        return plan

    def land_again(self, *ranges: tuple[int, int, int], requested_by: str = "test") -> Plan:
        """Plan them and land them."""
        plan = self.plan_replacing(*ranges, requested_by=requested_by)
        self.ingest.execute(plan.sequence)
        return plan

    def commit_again(self, *ranges: tuple[int, int, int], requested_by: str = "test") -> Plan:
        """Plan them and replace the rows, as a driver that is killed before it records this."""
        plan = self.plan_replacing(*ranges, requested_by=requested_by)
        self.land(plan)
        return plan

    def bronze_rows(self) -> list[dict[str, Any]]:
        """Return every row of the newest version, with all columns."""
        rows: list[dict[str, Any]] = pa.table(DeltaTable(self.uri).scan()).to_pylist()
        return rows

    def rows(self, version: int | None = None) -> list[tuple[int, int]]:
        """Return partition and offset of every row of a version; None for the newest version."""
        found = pa.table(DeltaTable(self.uri, version=version).scan()).to_pylist()
        return sorted((row["partition"], row["offset"]) for row in found)

    def verified(self) -> list[tuple[int, int]]:
        """Verify the table; return the numbers of records and rows of each partition."""
        verification = self.verify.verify()
        verification.check()
        return [(each.records, each.rows) for each in verification.partitions]

    def stored(self) -> set[str]:
        """Return every file and folder below the data table's folder, without its log."""
        paths = (path.relative_to(self.uri).as_posix() for path in self.uri.rglob("*"))
        return {path for path in paths if not path.startswith("_delta_log")}


def home_lake(home: Path) -> FileLake:
    """Return pipeline `events` with three landed plans, beside `idle`, which has no table."""
    (home / "pipelines").mkdir()
    for name in ("events", "idle"):
        text = f"name: {name}\ntopic: {name}\ntarget: bronze/{name}\nschedule: '@daily'\n"
        (home / "pipelines" / f"{name}.yaml").write_text(text)
    return landed_lake(home / "lakehouse", plans=3)


def landed_lake(root: Path, plans: int) -> FileLake:
    """Return a lake with landed plans of three records each. A copy is faster than landing."""
    first = _first_lake(plans)
    shutil.copytree(first.root, root, dirs_exist_ok=True)
    made = FileLake(root)
    made.kafka = deepcopy(first.kafka)
    return made


@cache
def _first_lake(plans: int) -> FileLake:
    """Return the lake that this process copies."""
    folder = tempfile.mkdtemp(prefix="tidemark-lake-")
    atexit.register(shutil.rmtree, folder)
    made = FileLake(Path(folder))
    for _ in range(plans):
        made.run(3)
    return made


def remove_old_commits(uri: str | Path) -> None:
    """Remove all commits of a table's log but the newest, after a checkpoint."""
    table = DeltaTable(uri)
    table.create_checkpoint()
    for commit in Path(uri, "_delta_log").glob("*.json"):
        if int(commit.stem) < table.version():
            commit.unlink()


def check_older_copy_is_repaired(lake: FileLake) -> None:
    """Check that the next run notices an older copy of the data table, and that a rewind helps."""
    with pytest.raises(TableBehindLedger):
        lake.run(1)
    lake.repair.rewind("ops", "a backup")
    lake.run(1)
    produced = len(lake.rows())
    assert lake.verified() == [(produced, produced)]


def put_back(copy: Path, place: str | Path) -> None:
    """Put a copy of a table in its place."""
    shutil.rmtree(place)
    shutil.copytree(copy, place)


def age(folder: Path, days: int = 20) -> None:
    """Set the modification times of all files below a folder to some days ago."""
    then = datetime.now(UTC).timestamp() - days * 86400
    for file in folder.rglob("*"):
        if file.is_file():
            os.utime(file, (then, then))


def double(uri: str | Path) -> None:
    """Compact a table twice from one version with delta-rs, which duplicates each row."""
    one, other = DeltaTable(uri), DeltaTable(uri)
    one.optimize.compact()
    other.optimize.compact()
