"""One suite for data tables: in memory, on Delta, and on files of Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake

from tests.conftest import TopicFactory
from tests.support.kafka_judge import log_ranges
from tests.support.lake import Lake
from tests.support.memory import MemoryKafka, MemoryTable
from tests.support.plans import UNCOMPARED, make_plan
from tests.support.services import NOW
from tests.support.transactions import (
    Record,
    produce_aborted,
    produce_committed,
    produce_records,
    produce_values,
)
from tidemark.bronze.ingest.protocols import DataTable
from tidemark.bronze.repair.rules import newest_plans
from tidemark.core.accounting import Landing
from tidemark.core.errors import OverfullRange, TidemarkError
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.origins import RunOrigin
from tidemark.core.plan import Plan, PlanKind, removal_app_id, transaction_app_id
from tidemark.core.record import LogRecord
from tidemark.core.table_state import FENCED_VERSION, Fence, RowRange, TableSize
from tidemark.delta import data_table
from tidemark.delta.data_table import DeltaDataTable
from tidemark.delta.errors import ForeignTable, RemovalFenced, TransactionConflict
from tidemark.local.broker import BrokerStatus

Place = tuple[int, int]
"""Partition and offset."""


def spans(*bounds: tuple[int, int]) -> SpanSet:
    return SpanSet.of(Span(*each) for each in bounds)


def places_of(partition: int, *offsets: int) -> list[Place]:
    return [(partition, offset) for offset in offsets]


# -- both implementations ------------------------------------------------------------------------


class TableUnderTest(Protocol):
    """Data table under test, and a way to land rows in it without Spark."""

    table: DataTable

    def land(self, plan: Plan, rows: Sequence[Place]) -> int:
        """Commit rows of a plan as the sink does; return the version."""
        ...


class InMemory:
    """In-memory table."""

    def __init__(self) -> None:
        self.memory = MemoryTable(kafka=MemoryKafka())
        self.table: DataTable = self.memory

    def land(self, plan: Plan, rows: Sequence[Place]) -> int:
        self.memory.plans[plan.fingerprint] = plan
        landed = [(plan.topic_id, partition, offset, plan.sequence) for partition, offset in rows]
        self.memory.commit(plan.app_id, plan.sequence, plan.fingerprint, landed)
        return len(self.memory.commits)


class OnDelta:
    """Delta table with rows of delta-rs that equal the in-memory ones."""

    def __init__(self, uri: Path) -> None:
        self.uri = str(uri)
        self.table: DataTable = DeltaDataTable(self.uri)

    def land(self, plan: Plan, rows: Sequence[Place]) -> int:
        self.table.prepare(plan.pipeline)
        epoch = datetime(1970, 1, 1, tzinfo=UTC)
        columns = {
            "key": pa.array([None] * len(rows), pa.binary()),
            "value": pa.array([b"%d" % offset for _, offset in rows], pa.binary()),
            "partition": pa.array([partition for partition, _ in rows], pa.int32()),
            "offset": pa.array([offset for _, offset in rows], pa.int64()),
            "timestamp": pa.array([epoch] * len(rows), pa.timestamp("us", tz="UTC")),
            "timestamp_type": pa.array([0] * len(rows), pa.int32()),
            "topic_id": pa.array([plan.topic_id] * len(rows), pa.string()),
            "plan_sequence": pa.array([plan.sequence] * len(rows), pa.int64()),
        }
        write_deltalake(
            self.uri,
            pa.table(columns),
            mode="append",
            schema_mode="merge",
            commit_properties=CommitProperties(
                custom_metadata={"userMetadata": plan.commit_metadata()},
                app_transactions=[Transaction(plan.app_id, plan.sequence)],
            ),
        )
        return int(DeltaTable(self.uri).version())


@pytest.fixture(params=["memory", "delta"])
def under_test(request: pytest.FixtureRequest, tmp_path: Path) -> TableUnderTest:
    return InMemory() if request.param == "memory" else OnDelta(tmp_path / "table")


def test_the_size_of_a_row_is_measured_on_large_files_only(tmp_path: Path) -> None:
    """A small file consists mainly of schema and statistics."""
    under_test = OnDelta(tmp_path / "table")
    assert under_test.table.size() == TableSize(records=0, bytes=0)
    under_test.land(make_plan((0, 0, 3)), [(0, 0), (0, 1), (0, 2)])
    assert under_test.table.size() == TableSize(records=0, bytes=0)
    under_test.land(make_plan((0, 3, 40_000), sequence=2), [(0, n) for n in range(3, 40_000)])
    size = under_test.table.prepare("events")
    (largest,) = sorted(path.stat().st_size for path in (tmp_path / "table").glob("*.parquet"))[1:]
    assert size == TableSize(records=39_997, bytes=largest)


def test_reading_an_absent_or_empty_table_returns_nothing(under_test: TableUnderTest) -> None:
    for is_prepared in (False, True):
        if is_prepared:
            under_test.table.prepare("events")
        assert under_test.table.row_ranges() == ()
        assert under_test.table.plan_commits(RunOrigin("ann")) == ()
        assert list(under_test.table.rows_of("id-1", 0, Span(0, 9))) == []
        assert under_test.table.find_landing(make_plan((0, 0, 9))) is None


def test_i5_rows_deleted_after_a_commit_are_not_counted(under_test: TableUnderTest) -> None:
    plan, other = make_plan((0, 0, 4)), make_plan((0, 4, 6), sequence=2)
    version = under_test.land(plan, places_of(0, 0, 1, 2, 3))
    under_test.land(other, places_of(0, 4, 5))
    assert under_test.table.remove_rows(plan, 0, UNCOMPARED) == (4, version + 2)
    found = under_test.table.find_landing(plan)
    assert found is not None
    assert (found.table_version, found.records, found.gaps) == (version, 0, 4)
    assert under_test.table.offsets_without_rows(plan) == {0: spans((0, 4))}
    assert under_test.table.current_landing(other).records == 2
    assert under_test.table.remove_rows(plan, 0, UNCOMPARED)[0] == 0


def test_i1_rows_stay_if_a_repair_has_fenced_the_epoch_of_their_removal(
    under_test: TableUnderTest,
) -> None:
    plan = make_plan((0, 0, 4))
    under_test.land(plan, places_of(0, 0, 1, 2, 3))
    under_test.table.fence_chains("events", [removal_app_id("events", 0)], "ops")
    with pytest.raises(RemovalFenced):
        under_test.table.remove_rows(plan, 0, UNCOMPARED)
    assert under_test.table.current_landing(plan).records == 4
    assert under_test.table.remove_rows(plan, 1, UNCOMPARED)[0] == 4


def test_i1_rows_of_shared_files_stay_if_a_repair_fences_before_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """delta-rs refuses the commit: the fence has its transaction, and came after its snapshot."""
    under_test = OnDelta(tmp_path / "table")
    plan = make_plan((0, 0, 2))
    under_test.land(plan, places_of(0, 0, 1))
    under_test.land(make_plan((0, 2, 4), sequence=2), places_of(0, 2, 3))
    DeltaTable(under_test.uri).optimize.compact()
    real = data_table._properties

    def fenced_meanwhile(*arguments: Any) -> Any:
        monkeypatch.undo()
        under_test.table.fence_chains("events", [removal_app_id("events", 0)], "ops")
        return real(*arguments)

    monkeypatch.setattr(data_table, "_properties", fenced_meanwhile)
    with pytest.raises(RemovalFenced):
        DeltaDataTable(str(under_test.uri)).remove_rows(plan, 0, UNCOMPARED)
    assert under_test.table.current_landing(plan).records == 2


def test_s6_gaps_are_planned_offsets_without_a_row_of_the_plan(under_test: TableUnderTest) -> None:
    """Rows of other plans do not fill gaps."""
    plan = make_plan((0, 0, 10), (0, 20, 23), (1, 5, 8), (2, 0, 4))
    under_test.land(plan, places_of(0, 2, 3, 7, 20, 21, 22) + places_of(1, 5, 6, 7))
    under_test.land(
        make_plan((0, 8, 9), (2, 0, 4), sequence=2), places_of(0, 8) + places_of(2, 0, 1)
    )
    assert under_test.table.offsets_without_rows(plan) == {
        0: spans((0, 2), (4, 7), (8, 10)),
        2: spans((0, 4)),
    }


def test_a_plan_without_rows_consists_of_gaps(under_test: TableUnderTest) -> None:
    plan = make_plan((3, 7, 9))
    under_test.land(plan, [])
    assert under_test.table.offsets_without_rows(plan) == {3: spans((7, 9))}
    assert under_test.table.current_landing(plan).records == 0


def test_row_ranges_count_rows_by_plan_topic_id_and_partition(
    under_test: TableUnderTest,
) -> None:
    under_test.land(make_plan((0, 0, 9), (1, 0, 9)), places_of(0, 1, 3, 8) + places_of(1, 5))
    under_test.land(
        make_plan((0, 0, 9), sequence=2, topic_id="id-2"), [*places_of(0, 4, 5), *places_of(0, 5)]
    )
    assert under_test.table.row_ranges() == (
        RowRange(sequence=1, topic_id="id-1", partition=0, first=1, last=8, rows=3),
        RowRange(sequence=1, topic_id="id-1", partition=1, first=5, last=5, rows=1),
        RowRange(sequence=2, topic_id="id-2", partition=0, first=4, last=5, rows=3),
    )


def test_a_row_range_ends_before_rows_of_another_plan(under_test: TableUnderTest) -> None:
    under_test.land(make_plan((0, 4, 6)), places_of(0, 4, 5))
    under_test.land(make_plan((0, 1, 4), (0, 6, 9), sequence=2), places_of(0, 1, 3, 6, 8))
    under_test.land(
        make_plan((0, 9, 12), (1, 0, 3), sequence=3), places_of(0, 9, 10) + places_of(1, 1)
    )
    row_ranges = [
        (h.sequence, h.partition, h.first, h.last, h.rows) for h in under_test.table.row_ranges()
    ]
    assert row_ranges == [
        (1, 0, 4, 5, 2),
        (2, 0, 1, 3, 2),
        (2, 0, 6, 8, 2),
        (3, 0, 9, 10, 2),
        (3, 1, 1, 1, 1),
    ]


def test_current_landing_counts_rows_and_refuses_duplicates(under_test: TableUnderTest) -> None:
    plan = make_plan((0, 0, 4), (0, 6, 8), (1, 0, 5))
    version = under_test.land(plan, places_of(0, 0, 1, 7) + places_of(1, 2))
    assert under_test.table.current_landing(plan) == Landing.of(plan, version, {0: 2, 1: 1, 2: 1})
    under_test.land(plan, places_of(0, 6, 7))
    with pytest.raises(OverfullRange):
        under_test.table.current_landing(plan)


def test_plan_commits_have_the_given_requester(under_test: TableUnderTest) -> None:
    live = make_plan((0, 0, 4))
    backfill = make_plan((1, 2, 4), sequence=2, kind=PlanKind.BACKFILL, epoch=3)
    for plan in (live, backfill):
        under_test.land(plan, [(plan.ranges[0].partition, plan.ranges[0].start)])
    assert newest_plans(under_test.table.plan_commits(RunOrigin("ann"))) == {
        1: replace(live, origin=RunOrigin("ann")),
        2: replace(backfill, origin=RunOrigin("ann")),
    }


def test_plan_commits_with_one_number_resolve_to_the_newer_plan(under_test: TableUnderTest) -> None:
    """A RESTORE removed the older one in an earlier epoch."""
    under_test.land(make_plan((0, 0, 4)), [])
    newer = make_plan((0, 0, 2), epoch=1)
    under_test.land(newer, places_of(0, 0))
    assert newest_plans(under_test.table.plan_commits(RunOrigin("test:1"))) == {1: newer}


def test_s11_rows_of_returns_rows_of_a_span_in_offset_order(under_test: TableUnderTest) -> None:
    under_test.land(make_plan((0, 0, 9), (1, 0, 9)), places_of(0, 8, 2, 4) + places_of(1, 3))
    under_test.land(make_plan((0, 0, 9), sequence=2), places_of(0, 4, 3))
    under_test.land(make_plan((0, 0, 9), sequence=3, topic_id="id-2"), places_of(0, 5))
    found = list(under_test.table.rows_of("id-1", 0, Span(2, 8)))
    assert [(sequence, row.offset) for sequence, row in found] == [(1, 2), (2, 3), (1, 4), (2, 4)]
    assert all(isinstance(row, LogRecord) and row.partition == 0 for _, row in found)
    assert [row.value for _, row in found] == [b"2", b"3", b"4", b"4"]
    assert len({row.checksum for _, row in found}) == 3


def test_i4_fencing_a_fenced_chain_is_refused_and_commits_nothing(
    under_test: TableUnderTest,
) -> None:
    plan = make_plan((0, 0, 2))
    under_test.land(plan, places_of(0, 0, 1))
    app_ids = [transaction_app_id("events", epoch, kind) for epoch in (0, 1) for kind in PlanKind]
    version = under_test.table.fence_chains("events", app_ids, "ops")
    with pytest.raises(TransactionConflict):
        under_test.table.fence_chains("events", app_ids, "ops:2")
    assert under_test.table.state("events", ()).version == version
    assert under_test.table.fences() == dict.fromkeys(app_ids, Fence(version, "ops"))
    state = under_test.table.state("events", app_ids)
    assert state.transactions == dict.fromkeys(app_ids, FENCED_VERSION)
    landing = under_test.table.find_landing(plan)
    assert landing is not None
    assert landing.records == 2
    assert under_test.table.find_landing(make_plan((0, 2, 4), sequence=2)) is None
    assert len(list(under_test.table.rows_of("id-1", 0, Span(0, 9)))) == 2


def test_i7_fencing_refuses_a_table_of_another_pipeline(tmp_path: Path) -> None:
    OnDelta(tmp_path).land(make_plan((0, 0, 1), pipeline="other"), places_of(0, 0))
    version = DeltaTable(tmp_path).version()
    with pytest.raises(ForeignTable):
        DeltaDataTable(str(tmp_path)).fence_chains("events", ["tidemark:events:0"], "ops")
    assert DeltaTable(tmp_path).version() == version


def test_rows_of_returns_rows_with_altered_timestamps(tmp_path: Path) -> None:
    """Another program set a timestamp or its type to null or an unknown value."""
    under_test = OnDelta(tmp_path)
    under_test.land(make_plan((0, 0, 3)), places_of(0, 0, 1, 2))
    intact = [row.checksum for _, row in under_test.table.rows_of("id-1", 0, Span(0, 3))]
    table = DeltaTable(tmp_path)
    table.update(predicate='"offset" = 0', updates={"timestamp": "NULL"})
    table.update(predicate='"offset" = 1', updates={"timestamp_type": "NULL"})
    table.update(predicate='"offset" = 2', updates={"timestamp_type": "7"})
    broken = [row.checksum for _, row in under_test.table.rows_of("id-1", 0, Span(0, 3))]
    assert len(broken) == 3
    assert not set(broken) & set(intact)


# -- files of Spark ------------------------------------------------------------------------------


EDGE_CASES = [
    Record(key=None, value=None),
    Record(key=b"", value=b""),
    Record(headers=(("a", None), ("a", b""), ("é", b"\x00\xff"))),
    Record(value=b"\x00" * 3_000, timestamp_ms=-1),
    Record(timestamp_ms=-86_400_001),
    Record(timestamp_ms=1),
    Record(timestamp_ms=32_503_680_000_001),
]


def checksums_in_kafka(lake: Lake) -> dict[tuple[int, int], str]:
    """Return the checksums of the whole topic, as the second reader reads it."""
    ranges = log_ranges(str(lake.connection["bootstrap.servers"]), lake.spec.topic)
    wanted = {p: spans((start, end)) for p, (start, end) in ranges.items() if start < end}
    read = lake.log_reader.read(lake.spec.topic, lake.spec.isolation_level, wanted)
    return {(record.partition, record.offset): record.checksum for record in read}


def checksums_in_the_table(lake: Lake, topic_id: str) -> dict[tuple[int, int], str]:
    return {
        (row.partition, row.offset): row.checksum
        for partition in (0, 1)
        for _, row in lake.table.rows_of(topic_id, partition, Span(0, 2**63 - 1))
    }


@pytest.mark.broker
@pytest.mark.spark
def test_rows_written_by_spark_equal_records_of_the_second_reader(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """S4. Covers nulls, headers, timestamps, and files of several plans."""
    anytime = {"message.timestamp.after.max.ms": str(2**62), "retention.ms": "-1"}
    pipeline = lake.of(topic(partitions=2, config=anytime))
    name = pipeline.spec.topic
    plans = []
    for run in ("first", "second"):
        produce_records(broker.bootstrap, name, EDGE_CASES)
        produce_aborted(broker.bootstrap, name, [Record(partition=1)] * 3)
        produce_committed(broker.bootstrap, name, [Record(key=b"k", partition=1)])
        plans.append(pipeline.run(run).plan)
    row_ranges = pipeline.table.row_ranges()
    assert [(h.sequence, h.partition, h.first, h.last, h.rows) for h in row_ranges] == [
        (1, 0, 0, 6, 7),
        (1, 1, 4, 4, 1),
        (2, 0, 7, 13, 7),
        (2, 1, 10, 10, 1),
    ]
    checksums = checksums_in_kafka(pipeline)
    assert len(checksums) == 16
    plans_by_number = newest_plans(pipeline.table.plan_commits(RunOrigin("ann")))
    for compacted in (False, True):
        if compacted:
            lake.session.sql(f"OPTIMIZE delta.`{lake.uri}`").collect()
            assert lake.files() == 1
        assert checksums_in_the_table(pipeline, plans[0].topic_id) == checksums
        assert pipeline.table.row_ranges() == row_ranges
        assert [pipeline.table.offsets_without_rows(plan) for plan in plans] == [
            {1: spans((0, 4), (5, 6))},
            {1: spans((6, 10), (11, 12))},
        ]
        assert [
            [count.records for count in pipeline.table.current_landing(plan).counts]
            for plan in plans
        ] == [[7, 1], [7, 1]]
        assert {n: plan.fingerprint for n, plan in plans_by_number.items()} == {
            plan.sequence: plan.fingerprint for plan in plans
        }


@pytest.mark.broker
@pytest.mark.spark
def test_i4_plans_of_a_fenced_chain_land_nothing_with_spark(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """A plan of the old epoch is skipped; the execution raises an error."""
    pipeline = lake.of(topic())
    produce_values(broker.bootstrap, pipeline.spec.topic, 5)
    pipeline.run("first")
    produce_values(broker.bootstrap, pipeline.spec.topic, 5)
    plan = pipeline.plan("second")
    app_ids = [transaction_app_id(plan.pipeline, 0, kind) for kind in PlanKind]
    version = pipeline.table.fence_chains(plan.pipeline, app_ids, "ops")
    pipeline.land(plan)
    pipeline.land(replace(plan, kind=PlanKind.BACKFILL))
    assert pipeline.version() == version
    with pytest.raises(TidemarkError):
        pipeline.ingest.execute(plan.sequence)
    assert (pipeline.version(), len(pipeline.rows())) == (version, 5)
    assert pipeline.committed() == {0: 5}
    pipeline.land(replace(plan, epoch=1))
    assert len(pipeline.rows()) == 10
    assert {row["ingested_at"] for row in pipeline.rows()} == {NOW}


# -- pages of records ------------------------------------------------------------------------------


def test_only_files_that_may_have_rows_of_a_window_count_and_of_large_files_their_row_groups(
    tmp_path: Path,
) -> None:
    rows = [
        {"topic_id": "id-1", "partition": partition, "offset": offset, "value": b"x" * 1000}
        for partition in (0, 1)
        for offset in range(400)
    ]
    for partition in (0, 1):
        some = pa.Table.from_pylist([row for row in rows if row["partition"] == partition])
        write_deltalake(
            tmp_path,
            some,
            mode="append",
            writer_properties=WriterProperties(max_row_group_size=100),
        )
    table, window = DeltaDataTable(str(tmp_path)), Span(150, 250)
    whole = table.bytes_to_read(0, window, most=10**9)
    files = {size for size in DeltaTable(tmp_path).get_add_actions()["size_bytes"].to_pylist()}
    assert whole in files
    assert 0 < table.bytes_to_read(0, window, most=0) < whole * 0.75
    assert table.bytes_to_read(0, Span(400, 500), most=0) == 0
    assert table.bytes_to_read(2, window, most=0) == 0
    assert DeltaDataTable(str(tmp_path / "missing")).bytes_to_read(0, window, most=0) == 0


def test_a_value_that_python_cannot_represent_is_a_text_in_its_own_cell(tmp_path: Path) -> None:
    late = pa.array([0, 400_000_000_000_000_000], pa.timestamp("us", tz="UTC"))
    columns = {
        "topic_id": ["id-1"] * 2,
        "partition": [0, 0],
        "offset": [4, 5],
        "plan_sequence": [1, 1],
        "value": [{"at": "a"}, {"at": "b"}],
    }
    write_deltalake(tmp_path, pa.table({**columns, "late": late}))
    first, second = DeltaDataTable(str(tmp_path)).values_at("id-1", 0, Span(0, 9))
    assert (first["value"], first["late"]) == ({"at": "a"}, datetime(1970, 1, 1, tzinfo=UTC))
    assert second["value"] == {"at": "b"}
    assert str(second["late"]).startswith("<")
    assert DeltaDataTable(str(tmp_path)).values_at("id-2", 0, Span(0, 9)) == []
