"""Verification finds every difference between rows and records, and no others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import pytest
from deltalake import DeltaTable

from tests.support.file_lake import FileLake
from tests.support.memory import MemoryKafka
from tests.support.plans import MemoryPipeline, make_spec, wanted
from tests.support.services import with_ports
from tidemark.bronze.ingest.errors import NothingLanded
from tidemark.core.errors import EndBehindCommitted, InvalidSelection, TopicRecreated
from tidemark.core.offsets import SpanSet
from tidemark.core.origins import RunOrigin
from tidemark.core.record import LogRecord
from tidemark.core.watermarks import IsolationLevel
from tidemark.delta.data_table import DeltaDataTable
from tidemark.delta.errors import TableAltered
from tidemark.ops.report.errors import TableDiffers
from tidemark.ops.report.verification import DifferenceKind
from tidemark.spec.model import StartPolicy


@pytest.fixture
def pipeline() -> MemoryPipeline:
    """Return a pipeline with two partitions, each with six landed records and two gaps."""
    made = MemoryPipeline()
    for partition in (0, 1):
        made.produce(partition, 3)
        made.kafka.add_gaps("events", partition, 2)
        made.produce(partition, 3)
    made.run("first")
    return made


def test_an_equal_table_has_no_differences(pipeline: MemoryPipeline) -> None:
    """Every landed offset is compared."""
    verification = pipeline.verify.verify()
    verification.check()
    assert [(v.offsets, v.records, v.rows, v.deleted) for v in verification.partitions] == [
        (8, 6, 6, 0),
        (8, 6, 6, 0),
    ]
    assert verification.as_record()["equal"] is True


def test_a_missing_row_is_found_with_its_offset(pipeline: MemoryPipeline) -> None:
    """I1."""
    pipeline.table.rows.remove(("id-1", 1, 5, 1))
    verification = pipeline.verify.verify()
    assert verification.differences == {DifferenceKind.MISSING: 1}
    with pytest.raises(TableDiffers, match="missing partition 1 offset 5"):
        verification.check()


def test_a_duplicate_row_is_found_even_if_kafka_has_deleted_the_record(
    pipeline: MemoryPipeline,
) -> None:
    """I1."""
    pipeline.table.rows += [("id-1", 0, 1, 1), ("id-1", 1, 6, 1)]
    pipeline.kafka.delete_records("events", 0, 4)
    verification = pipeline.verify.verify()
    assert verification.differences == {DifferenceKind.DUPLICATE: 2}
    assert [(v.offsets, v.deleted) for v in verification.partitions] == [(4, 4), (8, 0)]


def test_a_row_at_a_gap_is_unexpected(pipeline: MemoryPipeline) -> None:
    """Kafka shows no record at the offset."""
    pipeline.table.rows.append(("id-1", 0, 3, 1))
    assert pipeline.verify.verify().differences == {DifferenceKind.UNEXPECTED: 1}


def test_a_record_that_was_compacted_since_is_no_difference(pipeline: MemoryPipeline) -> None:
    """The plan has the rows that it landed, and Kafka has fewer records."""
    del pipeline.kafka.topics["events"][0].records[1]
    verification = pipeline.verify.verify()
    verification.check()
    assert [v.compacted for v in verification.partitions] == [1, 0]


def test_offsets_whose_loss_was_accepted_are_counted_and_not_compared() -> None:
    """Also in a partition without landed offsets; only within the given range."""
    pipeline = MemoryPipeline(spec=make_spec(start=StartPolicy.EARLIEST), partitions=3)
    pipeline.planner.plan("begin")
    for partition in (0, 1):
        pipeline.produce(partition, 6)
        pipeline.kafka.delete_records("events", partition, 4)
    pipeline.decisions.accept_loss((), "ada", "outage")
    pipeline.kafka.delete_records("events", 1, 6)
    pipeline.decisions.accept_loss((), "ada", "outage")
    pipeline.run("first")

    def counts(partition: int | None = None, start: int = 0) -> list[tuple[int, int, int]]:
        found = pipeline.verify.verify(partition, start)
        found.check()
        return [(v.partition, v.offsets, v.lost) for v in found.partitions]

    assert counts() == [(0, 2, 4), (1, 0, 6)]
    assert counts(start=2) == [(0, 2, 2), (1, 0, 4)]
    assert counts(partition=0, start=4) == [(0, 2, 0)]
    with pytest.raises(NothingLanded):
        pipeline.verify.verify(partition=1)


def test_an_altered_timestamp_is_found(pipeline: MemoryPipeline) -> None:
    """It is compared like the content."""
    pipeline.kafka.topics["events"][0].records[2] = 77
    assert pipeline.verify.verify().differences == {DifferenceKind.ALTERED: 1}


def test_a_log_that_ends_before_landed_offsets_is_an_error(pipeline: MemoryPipeline) -> None:
    """I7: a truncated log is not mistaken for retention."""
    log = pipeline.kafka.topics["events"][1]
    log.end = 6
    log.records = {offset: at for offset, at in log.records.items() if offset < 6}
    with pytest.raises(EndBehindCommitted):
        pipeline.verify.verify()


def test_only_the_given_range_is_verified(pipeline: MemoryPipeline) -> None:
    """Other offsets are not read."""
    pipeline.table.rows.remove(("id-1", 1, 5, 1))
    pipeline.verify.verify(partition=1, start=0, end=5).check()
    pipeline.verify.verify(partition=0).check()
    with pytest.raises(TableDiffers):
        pipeline.verify.verify(start=5, end=6).check()


def test_verifying_offsets_that_have_not_landed_is_an_error(pipeline: MemoryPipeline) -> None:
    """I7: a verification of no offsets must not succeed."""
    with pytest.raises(InvalidSelection, match="no partition 9"):
        pipeline.verify.verify(partition=9)
    with pytest.raises(NothingLanded):
        pipeline.verify.verify(start=8)
    with pytest.raises(InvalidSelection, match="0 <= start < end"):
        pipeline.verify.verify(start=5, end=5)
    with pytest.raises(NothingLanded):
        MemoryPipeline().verify.verify()
    pipeline.kafka.create("events", 2, "id-2")
    with pytest.raises(TopicRecreated):
        pipeline.verify.verify()


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(("id-1", 0, 10**15, 1), id="far_beyond_what_landed"),
        pytest.param(("id-1", 1, 8, 9), id="next_to_it_of_an_unknown_plan"),
        pytest.param(("id-0", 0, 3, 1), id="of_an_unknown_incarnation"),
        pytest.param(("id-1", 7, 0, 1), id="of_an_unknown_partition"),
    ],
)
def test_a_row_outside_landed_ranges_is_unexpected(
    pipeline: MemoryPipeline, row: tuple[str, int, int, int]
) -> None:
    """Covers other topic ids and other partitions."""
    pipeline.table.rows.append(row)
    verification = pipeline.verify.verify()
    assert verification.differences == {DifferenceKind.UNEXPECTED: 1}
    assert [(f.partition, f.offset) for f in verification.first] == [row[1:3]]


def test_rows_of_a_plan_that_is_landing_are_no_difference(pipeline: MemoryPipeline) -> None:
    """Its commit is not recorded yet. Rows of an earlier topic are no difference either."""
    pipeline.produce(0, 4)
    plan = pipeline.plan("second")
    pipeline.table.land(plan)
    assert not pipeline.verify.verify().differences
    pipeline.ingest.execute(plan.sequence)
    pipeline.kafka.create("events", 2, "id-2")
    pipeline.produce(1, 4)
    pipeline.decisions.accept_recreation("ann", "why")
    pipeline.run("third")
    assert not pipeline.verify.verify().differences


# -- isolation levels ----------------------------------------------------------------------------


def with_aborted(level: IsolationLevel) -> MemoryPipeline:
    """Land five records and ten aborted ones at a level; the spec then has the other level."""
    pipeline = MemoryPipeline(spec=make_spec(isolation_level=level), kafka=_WithAborted())
    pipeline.produce(0, 5)
    pipeline.produce(0, 10)
    pipeline.run("first")
    (other,) = set(IsolationLevel) - {level}
    pipeline.spec = replace(pipeline.spec, isolation_level=other)
    return pipeline


class _WithAborted(MemoryKafka):
    """A cluster where records of partition 0 from offset 5 on belong to an aborted transaction."""

    def read(
        self, topic: str, isolation_level: IsolationLevel, spans: Mapping[int, SpanSet]
    ) -> Iterator[LogRecord]:
        """See `LogReader.read`."""
        for record in super().read(topic, isolation_level, spans):
            if isolation_level is IsolationLevel.READ_UNCOMMITTED or record.offset < 5:
                yield record


def test_rows_are_compared_at_the_isolation_level_of_their_plan() -> None:
    """The current level of the spec does not matter."""
    uncommitted = with_aborted(IsolationLevel.READ_UNCOMMITTED).verify.verify()
    uncommitted.check()
    assert [(v.records, v.rows, v.compacted) for v in uncommitted.partitions] == [(15, 15, 0)]
    record = uncommitted.as_record()
    assert (record["isolation_level"], record["isolation_levels"]) == (
        "read_committed",
        ["read_uncommitted"],
    )
    other = {"isolation_level": "read_uncommitted", "plans": [1], "offsets": 15}
    assert record["other_levels"] == [other]
    pipeline = with_aborted(IsolationLevel.READ_COMMITTED)
    pipeline.table.rows = [row for row in pipeline.table.rows if row[2] < 5]
    committed = pipeline.verify.verify()
    committed.check()
    assert [(v.records, v.rows, v.compacted) for v in committed.partitions] == [(5, 5, 0)]


def test_plans_of_two_isolation_levels_in_one_partition_are_compared() -> None:
    """Each plan is compared at its own level."""
    pipeline = MemoryPipeline()
    pipeline.produce(0, 3)
    pipeline.run("committed")
    pipeline.spec = replace(pipeline.spec, isolation_level=IsolationLevel.READ_UNCOMMITTED)
    pipeline.produce(0, 3)
    pipeline.run("uncommitted")
    found = pipeline.verify.verify()
    found.check()
    assert found.isolation_levels == tuple(IsolationLevel)
    assert [*map(str, found.other_levels)] == [
        "3 offsets of plan 1 compared at read_committed, at which they landed: the rows lack "
        "records of aborted transactions"
    ]
    newer = pipeline.verify.verify(start=3)
    assert (newer.isolation_levels, newer.other_levels) == ((IsolationLevel.READ_UNCOMMITTED,), ())
    assert [(v.offsets, v.rows) for v in found.partitions] == [(6, 6)]


# -- metadata columns ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def landed_tables(tmp_path_factory: pytest.TempPathFactory) -> FileLake:
    """Return a lake where plan 1 landed offsets 0 to 4 of partition 0, and plan 2 the next five."""
    made = FileLake(root=tmp_path_factory.mktemp("landed"))
    made.run(5)
    made.run(5)
    return made


@pytest.fixture
def lake(landed_tables: FileLake, tmp_path: Path) -> FileLake:
    """Return a copy of the lake."""
    copytree(landed_tables.root, tmp_path / "lake")
    made = FileLake(root=tmp_path / "lake")
    made.kafka = deepcopy(landed_tables.kafka)
    return made


@pytest.mark.parametrize(
    ("column", "value", "kinds"),
    [
        ("topic", "'elsewhere'", {"mislabelled": 1}),
        ("topic", "NULL", {"mislabelled": 1}),
        ("plan_sequence", "2", {"mislabelled": 1}),
        ("plan_sequence", "99", {"mislabelled": 1}),
        ("ingested_at", "timestamp '2026-03-01T12:00:01Z'", {"mislabelled": 1}),
        ("ingested_at", "NULL", {"mislabelled": 1}),
        ("topic_id", "'id-9'", {"missing": 1, "unexpected": 1}),
    ],
)
@pytest.mark.parametrize("deleted", [0, 3])
def test_altered_metadata_columns_are_found(
    lake: FileLake, column: str, value: str, kinds: Mapping[str, int], deleted: int
) -> None:
    """They are found even if Kafka has deleted the record."""
    lake.kafka.delete_records("events", 0, deleted)
    assert not lake.verify.verify().differences
    table = DeltaTable(lake.uri)
    table.update({column: value}, predicate='partition = 0 AND "offset" = 2')
    found = {str(k): n for k, n in lake.verify.verify().differences.items()}
    assert found == {k: n for k, n in kinds.items() if k != "missing" or not deleted}
    # Outside the range nothing is compared.
    assert not lake.verify.verify(start=3).differences


def test_rows_ingested_after_the_recorded_landing_are_mislabelled(lake: FileLake) -> None:
    """All rows of the plan have the same time."""
    late = "timestamp '2026-03-01T14:00:00Z'"
    DeltaTable(lake.uri).update({"ingested_at": late}, predicate="plan_sequence = 2")
    verification = lake.verify.verify()
    assert verification.differences == {DifferenceKind.MISLABELLED: 5}
    with pytest.raises(TableDiffers, match=r"mislabelled partition 0 offset 5 and 4 more row"):
        verification.check()


def test_replaced_undone_and_landing_rows_are_not_mislabelled(lake: FileLake) -> None:
    """This also holds during a replacement that is not recorded yet."""
    lake.land_again((0, 3, 7))
    assert lake.verified() == [(10, 10)]
    lake.undo.undo(3, "ops", "wrong")
    plan = lake.planner.backfill(wanted((0, 3, 7)), RunOrigin("ops")).plan
    assert plan is not None
    lake.land(plan)
    lake.verify.verify().check()
    lake.ingest.execute(plan.sequence)
    request = replace(wanted((0, 0, 2)), replaces=True)
    plan = lake.planner.backfill(request, RunOrigin("killed")).plan
    assert plan is not None
    lake.land(plan)
    lake.verify.verify().check()


def test_a_table_with_a_constraint_can_be_verified(lake: FileLake) -> None:
    """Only a landing refuses such a table."""
    DeltaTable(lake.uri).alter.add_constraint({"early": '"offset" < 1000'})
    with pytest.raises(TableAltered):
        lake.verify.verify()
    reader = with_ports(lake.verify, table=DeltaDataTable(str(lake.uri), reads_only=True))
    reader.verify().check()
