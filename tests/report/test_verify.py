"""Verification finds what is lost, doubled, foreign or altered, and nothing else."""

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
from tidemark.core.errors import EndBehindCommitted, InvalidRange, TopicRecreated
from tidemark.core.offsets import SpanSet
from tidemark.core.record import LogRecord
from tidemark.core.watermarks import IsolationLevel
from tidemark.ingest.errors import NothingLanded
from tidemark.lake.data_table import DeltaDataTable
from tidemark.lake.errors import TableAltered
from tidemark.report.errors import TableDiffers
from tidemark.report.verification import Difference


@pytest.fixture
def pipeline() -> MemoryPipeline:
    """Two partitions, six records and two gaps landed of each."""
    made = MemoryPipeline()
    for partition in (0, 1):
        made.produce(partition, 3)
        made.kafka.add_gaps("events", partition, 2)
        made.produce(partition, 3)
    made.run("first")
    return made


def test_an_exact_table_verifies(pipeline: MemoryPipeline) -> None:
    """Each offset is looked at."""
    verification = pipeline.verify.verify()
    verification.check()
    assert [(v.offsets, v.records, v.rows, v.gone) for v in verification.partitions] == [
        (8, 6, 6, 0),
        (8, 6, 6, 0),
    ]
    assert verification.as_record()["equal"] is True


def test_a_lost_row_is_told(pipeline: MemoryPipeline) -> None:
    """I1: with its place."""
    pipeline.table.rows.remove(("id-1", 1, 5, 1))
    verification = pipeline.verify.verify()
    assert verification.differences == {Difference.LOST: 1}
    with pytest.raises(TableDiffers, match="lost partition 1 offset 5"):
        verification.check()


def test_a_doubled_row_is_told_also_where_kafka_has_deleted_it(pipeline: MemoryPipeline) -> None:
    """I1: a row beside its like needs no Kafka to be told."""
    pipeline.table.rows += [("id-1", 0, 1, 1), ("id-1", 1, 6, 1)]
    pipeline.kafka.delete_records("events", 0, 4)
    verification = pipeline.verify.verify()
    assert verification.differences == {Difference.DOUBLED: 2}
    assert [(v.offsets, v.gone) for v in verification.partitions] == [(4, 4), (8, 0)]


def test_a_row_where_kafka_has_nothing_is_foreign(pipeline: MemoryPipeline) -> None:
    """A gap with a row."""
    pipeline.table.rows.append(("id-1", 0, 3, 1))
    assert pipeline.verify.verify().differences == {Difference.FOREIGN: 1}


def test_a_record_that_was_compacted_since_is_no_difference(pipeline: MemoryPipeline) -> None:
    """The plan has the rows that it landed; Kafka has fewer."""
    del pipeline.kafka.topics["events"][0].records[1]
    verification = pipeline.verify.verify()
    verification.check()
    assert [v.compacted for v in verification.partitions] == [1, 0]


def test_an_altered_record_is_told(pipeline: MemoryPipeline) -> None:
    """The timestamp counts like the content."""
    pipeline.kafka.topics["events"][0].records[2] = 77
    assert pipeline.verify.verify().differences == {Difference.ALTERED: 1}


def test_a_log_that_was_cut_before_what_landed_is_told(pipeline: MemoryPipeline) -> None:
    """I7: offsets that no log has any more are not taken for deleted by retention."""
    log = pipeline.kafka.topics["events"][1]
    log.end = 6
    log.records = {offset: at for offset, at in log.records.items() if offset < 6}
    with pytest.raises(EndBehindCommitted):
        pipeline.verify.verify()


def test_a_range_is_verified_alone(pipeline: MemoryPipeline) -> None:
    """Outside it nothing is read."""
    pipeline.table.rows.remove(("id-1", 1, 5, 1))
    pipeline.verify.verify(partition=1, start=0, end=5).check()
    pipeline.verify.verify(partition=0).check()
    with pytest.raises(TableDiffers):
        pipeline.verify.verify(start=5, end=6).check()


def test_what_has_not_landed_cannot_be_verified(pipeline: MemoryPipeline) -> None:
    """I7: a verification of nothing must not look like success."""
    with pytest.raises(NothingLanded):
        pipeline.verify.verify(partition=9)
    with pytest.raises(NothingLanded):
        pipeline.verify.verify(start=8)
    with pytest.raises(InvalidRange):
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
def test_a_row_where_nothing_landed_is_foreign(
    pipeline: MemoryPipeline, row: tuple[str, int, int, int]
) -> None:
    """Whoever put it there: no landed range would look at it."""
    pipeline.table.rows.append(row)
    verification = pipeline.verify.verify()
    assert verification.differences == {Difference.FOREIGN: 1}
    assert [(f.partition, f.offset) for f in verification.first] == [row[1:3]]


def test_rows_of_a_plan_that_is_landing_are_no_difference(pipeline: MemoryPipeline) -> None:
    """Its commit is there and not yet recorded; nor are those of an older incarnation."""
    pipeline.produce(0, 4)
    plan = pipeline.planner.plan("second").plan
    assert plan is not None
    pipeline.table.land(plan)
    assert not pipeline.verify.verify().differences
    pipeline.ingest.execute(plan.sequence)
    pipeline.kafka.create("events", 2, "id-2")
    pipeline.produce(1, 4)
    pipeline.decisions.new_incarnation("ann", "why")
    pipeline.run("third")
    assert not pipeline.verify.verify().differences


# -- what each plan was executed with ------------------------------------------------------------


def with_aborted(level: IsolationLevel) -> MemoryPipeline:
    """Five records, then ten aborted ones, landed with a level; the spec has the other one now."""
    pipeline = MemoryPipeline(spec=make_spec(isolation_level=level), kafka=_WithAborted())
    pipeline.produce(0, 5)
    pipeline.produce(0, 10)
    pipeline.run("first")
    (other,) = set(IsolationLevel) - {level}
    pipeline.spec = replace(pipeline.spec, isolation_level=other)
    return pipeline


class _WithAborted(MemoryKafka):
    """A cluster where records of partition 0 from offset 5 on are of an aborted transaction."""

    def read(
        self, topic: str, isolation_level: IsolationLevel, spans: Mapping[int, SpanSet]
    ) -> Iterator[LogRecord]:
        """As in every cluster."""
        for record in super().read(topic, isolation_level, spans):
            if isolation_level is IsolationLevel.READ_UNCOMMITTED or record.offset < 5:
                yield record


def test_rows_are_compared_at_the_isolation_level_of_their_plan() -> None:
    """Not at the level that the spec has now: aborted records are no rows that were compacted."""
    uncommitted = with_aborted(IsolationLevel.READ_UNCOMMITTED).verify.verify()
    uncommitted.check()
    assert [(v.records, v.rows, v.compacted) for v in uncommitted.partitions] == [(15, 15, 0)]
    assert uncommitted.as_record()["isolation_levels"] == ["read_uncommitted"]
    pipeline = with_aborted(IsolationLevel.READ_COMMITTED)
    pipeline.table.rows = [row for row in pipeline.table.rows if row[2] < 5]
    committed = pipeline.verify.verify()
    committed.check()
    assert [(v.records, v.rows, v.compacted) for v in committed.partitions] == [(5, 5, 0)]


def test_each_plan_has_its_own_isolation_level() -> None:
    """Rows of both levels in one partition."""
    pipeline = MemoryPipeline()
    pipeline.produce(0, 3)
    pipeline.run("committed")
    pipeline.spec = replace(pipeline.spec, isolation_level=IsolationLevel.READ_UNCOMMITTED)
    pipeline.produce(0, 3)
    pipeline.run("uncommitted")
    found = pipeline.verify.verify()
    found.check()
    assert found.isolation_levels == tuple(IsolationLevel)
    assert [(v.offsets, v.rows) for v in found.partitions] == [(6, 6)]


# -- where rows say that they are from -----------------------------------------------------------


@pytest.fixture(scope="module")
def landed(tmp_path_factory: pytest.TempPathFactory) -> FileLake:
    """Plan 1 landed offsets 0 to 4 of partition 0, plan 2 the five after them."""
    made = FileLake(root=tmp_path_factory.mktemp("landed"))
    made.run(5)
    made.run(5)
    return made


@pytest.fixture
def lake(landed: FileLake, tmp_path: Path) -> FileLake:
    """A copy of it."""
    copytree(landed.root, tmp_path / "lake")
    made = FileLake(root=tmp_path / "lake")
    made.kafka = deepcopy(landed.kafka)
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
        ("topic_id", "'id-9'", {"lost": 1, "foreign": 1}),
    ],
)
@pytest.mark.parametrize("deleted", [0, 3])
def test_a_row_that_says_it_is_from_elsewhere_is_found(
    lake: FileLake, column: str, value: str, kinds: Mapping[str, int], deleted: int
) -> None:
    """Also where Kafka has deleted its record."""
    lake.kafka.delete_records("events", 0, deleted)
    assert not lake.verify.verify().differences
    table = DeltaTable(lake.uri)
    table.update({column: value}, predicate='partition = 0 AND "offset" = 2')
    found = {str(k): n for k, n in lake.verify.verify().differences.items()}
    assert found == {k: n for k, n in kinds.items() if k != "lost" or not deleted}
    # Outside the range nothing is compared.
    assert not lake.verify.verify(start=3).differences


def test_a_plan_that_landed_later_than_it_was_recorded_is_found(lake: FileLake) -> None:
    """All of its rows have one time; the control table has another."""
    late = "timestamp '2026-03-01T14:00:00Z'"
    DeltaTable(lake.uri).update({"ingested_at": late}, predicate="plan_sequence = 2")
    verification = lake.verify.verify()
    assert verification.differences == {Difference.MISLABELLED: 5}
    with pytest.raises(TableDiffers, match=r"mislabelled partition 0 offset 5 and 4 more row"):
        verification.check()


def test_replaced_undone_and_landing_rows_have_the_right_labels(lake: FileLake) -> None:
    """Also while a replacement has landed and is not recorded."""
    lake.land_again((0, 3, 7))
    assert lake.verified() == [(10, 10)]
    lake.undo.undo(3, "ops", "wrong")
    plan = lake.planner.backfill(wanted((0, 3, 7)), "ops").plan
    assert plan is not None
    lake.land(plan)
    lake.verify.verify().check()
    lake.ingest.execute(plan.sequence)
    request = replace(wanted((0, 0, 2)), replaces=True)
    plan = lake.planner.backfill(request, "killed").plan
    assert plan is not None
    lake.land(plan)
    lake.verify.verify().check()


def test_a_table_with_a_constraint_can_be_verified(lake: FileLake) -> None:
    """It is read; only a landing has to refuse it."""
    DeltaTable(lake.uri).alter.add_constraint({"early": '"offset" < 1000'})
    with pytest.raises(TableAltered):
        lake.verify.verify()
    reader = replace(lake.verify, data_log=DeltaDataTable(str(lake.uri), reads_only=True))
    reader.verify().check()
