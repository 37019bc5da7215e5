"""Repairs with real Kafka, Spark and Delta after damage to control table or data table."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable

from tests.conftest import TopicFactory
from tests.faults.tally import TableJudge
from tests.support.kafka_judge import read_all
from tests.support.lake import Lake
from tests.support.plans import wanted
from tests.support.topics import delete_records
from tests.support.transactions import (
    Record,
    produce_aborted,
    produce_committed,
    produce_values,
)
from tests.support.zombies import zombie as held_driver
from tidemark.bronze.ingest.errors import PlanCancelled
from tidemark.bronze.repair.errors import NothingToDo
from tidemark.core.errors import (
    LedgerBehindTable,
    LostRange,
    TableBehindLedger,
    TidemarkError,
)
from tidemark.core.origins import RunOrigin
from tidemark.local.broker import BrokerStatus

pytestmark = [pytest.mark.broker, pytest.mark.spark]

LONG = pytest.mark.faults


@pytest.fixture
def pipeline(lake: Lake, broker: BrokerStatus, topic: TopicFactory) -> Lake:
    """Return a pipeline with three landed plans, each with aborted records and markers."""
    pipeline = lake.of(topic(partitions=2))
    for run in ("first", "second", "third"):
        produce_more(pipeline)
        pipeline.run(run)
    return pipeline


def produce_more(pipeline: Lake) -> None:
    """Produce records in both partitions, and aborted ones in partition 0."""
    bootstrap, name = pipeline.connection["bootstrap.servers"], pipeline.spec.topic
    produce_aborted(bootstrap, name, [Record(value=b"aborted")] * 2)
    produce_committed(bootstrap, name, [Record(value=b"kept")] * 3)
    produce_values(bootstrap, name, 4, partition=1)


def drain(pipeline: Lake, table_judge: TableJudge) -> None:
    """Run until nothing is left to do; check that table and committed offsets equal the log."""
    produce_more(pipeline)
    run = 0
    while pipeline.planner.plan(f"drain {run}").plan:
        pipeline.run(f"drain {run}")
        run += 1
        assert run < 5
    table_judge.check(pipeline)
    watermarks = pipeline.watermarks.topic_watermarks(
        pipeline.spec.topic, pipeline.spec.isolation_level
    )
    assert pipeline.committed() == {
        p: watermark.end for p, watermark in watermarks.partitions.items()
    }
    pipeline.verify.verify().check()


def contents(folder: Path) -> dict[str, int]:
    return {
        str(file.relative_to(folder)): file.stat().st_size
        for file in folder.rglob("*")
        if file.is_file()
    }


def clean_log(table: str | Path) -> None:
    """Remove all commits before a new checkpoint, as log retention does."""
    DeltaTable(table).create_checkpoint()
    for commit in sorted((Path(table) / "_delta_log").glob("*.json"))[:-1]:
        commit.unlink()


# -- the control table ---------------------------------------------------------------------------


def remove(pipeline: Lake, backup: Path) -> None:
    shutil.rmtree(pipeline.control_uri)


def restore_copy(pipeline: Lake, backup: Path) -> None:
    shutil.rmtree(pipeline.control_uri)
    shutil.copytree(backup, pipeline.control_uri)


def truncate_by_spark(pipeline: Lake, backup: Path) -> None:
    """RESTORE the control table to the version of the backup."""
    version = DeltaTable(backup).version()
    pipeline.session.sql(
        f"ALTER TABLE delta.`{pipeline.control_uri}` "
        "SET TBLPROPERTIES ('delta.appendOnly' = 'false')"
    )
    restore_by_spark(pipeline, pipeline.control_uri, version)


def truncate_by_delta_rs(pipeline: Lake, backup: Path) -> None:
    DeltaTable(pipeline.control_uri).restore(DeltaTable(backup).version())


Damage = Callable[[Lake, Path], None]


@pytest.mark.parametrize(
    ("damage", "error", "cleaned"),
    [
        pytest.param(remove, LedgerBehindTable, False, id="removed", marks=LONG),
        pytest.param(remove, LedgerBehindTable, True, id="removed_rows_only"),
        pytest.param(restore_copy, LedgerBehindTable, False, id="older_copy", marks=LONG),
        pytest.param(restore_copy, LedgerBehindTable, True, id="older_copy_only_rows", marks=LONG),
        pytest.param(
            truncate_by_spark, LedgerBehindTable, False, id="truncated_by_spark", marks=LONG
        ),
        pytest.param(truncate_by_delta_rs, LedgerBehindTable, False, id="truncated", marks=LONG),
        pytest.param(truncate_by_delta_rs, LedgerBehindTable, True, id="rows", marks=LONG),
    ],
)
def test_i5_a_damaged_control_table_is_refused_and_rebuilt(
    pipeline: Lake,
    table_judge: TableJudge,
    tmp_path: Path,
    damage: Damage,
    error: type[TidemarkError],
    cleaned: bool,
) -> None:
    """I2. A live driver of an open plan lands nothing afterwards."""
    backup = tmp_path / "backup"
    shutil.copytree(pipeline.control_uri, backup)
    before = pipeline.ledger
    produce_more(pipeline)
    pipeline.run("fourth")
    produce_more(pipeline)
    zombie = pipeline.plan("fifth")
    if cleaned:
        clean_log(pipeline.uri)
    damage(pipeline, backup)

    with pytest.raises(error):
        pipeline.planner.plan("sixth")
    with pytest.raises(TidemarkError):
        pipeline.ingest.execute(zombie.sequence)
    files = contents(pipeline.root)
    draft = pipeline.repair.rebuild("ann", "disk lost", dry_run=True)
    assert contents(pipeline.root) == files
    found = pipeline.repair.rebuild("ann", "disk lost")
    assert found == draft
    known_plans = set() if damage is remove else set(before.plans)
    assert {plan.sequence for plan in found.unknown} == {1, 2, 3, 4} - known_plans

    after = pipeline.ledger
    assert after.epoch > before.epoch
    assert sorted(after.plans) == [1, 2, 3, 4]
    assert after.topic_id == before.topic_id
    if not cleaned:
        assert after.starts == before.starts
        assert {n: after.plans[n].plan.fingerprint for n in before.plans} == {
            n: record.plan.fingerprint for n, record in before.plans.items()
        }
    version = pipeline.version()
    pipeline.land(zombie)
    assert pipeline.version() == version
    with pytest.raises(NothingToDo):
        pipeline.repair.rebuild("ann", "again")
    drain(pipeline, table_judge)


@LONG
def test_i2_a_zombie_landing_is_rebuilt_after_a_backup_reassigned_its_number(
    pipeline: Lake, table_judge: TableJudge, broker: BrokerStatus, tmp_path: Path
) -> None:
    """The plan of the backup is smaller, and the zombie's other offsets are not read again."""
    backup = tmp_path / "backup"
    shutil.copytree(pipeline.control_uri, backup)
    produce_more(pipeline)
    zombie = pipeline.plan("fourth")
    restore_copy(pipeline, backup)
    limited = pipeline.of(pipeline.spec.topic, records_per_run=4)
    again = limited.plan("fourth again")
    assert (again.sequence, again.size) < (zombie.sequence + 1, zombie.size)
    pipeline.land(zombie)
    with pytest.raises(LedgerBehindTable, match="another plan with number"):
        pipeline.ingest.execute(again.sequence)
    with pytest.raises(LedgerBehindTable):
        pipeline.repair.rewind("ann", "no")
    found = pipeline.repair.rebuild("ann", "a backup was restored")
    assert [plan.fingerprint for plan in found.unknown] == [zombie.fingerprint]
    drain(pipeline, table_judge)


@LONG
def test_i5_backfills_are_rebuilt_from_rows_alone(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory, table_judge: TableJudge
) -> None:
    """A wide backfill surrounds narrow ones; the files are compacted, and the log is cleaned."""
    pipeline = lake.of(topic())
    name = pipeline.spec.topic
    produce_values(broker.bootstrap, name, 10)
    pipeline.run("first")
    for _ in range(4):
        produce_committed(broker.bootstrap, name, [Record()] * 4)
    for start, end in ((13, 17), (20, 22), (11, 25)):
        request = wanted((0, start, end))
        plan = pipeline.planner.backfill(request, RunOrigin(f"from {start}")).plan
        assert plan is not None
        pipeline.ingest.execute(plan.sequence)
    pipeline.run("the rest")
    DeltaTable(pipeline.uri).optimize.compact()
    clean_log(pipeline.uri)
    remove(pipeline, pipeline.root)
    with pytest.raises(LedgerBehindTable):
        pipeline.planner.plan("next")
    pipeline.repair.rebuild("ann", "disk lost")
    assert sorted(pipeline.ledger.plans) == [1, 2, 3, 4, 5]
    produce_values(broker.bootstrap, name, 3)
    pipeline.run("next")
    table_judge.check(pipeline)
    assert pipeline.committed() == {0: 33}
    pipeline.verify.verify().check()


@LONG
def test_i3_a_rebuild_records_gaps_that_kafka_deleted_as_unproven(
    pipeline: Lake, broker: BrokerStatus
) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    before = pipeline.delivered_rows()
    assert before == read_all(broker.bootstrap, pipeline.spec.topic)
    delete_records(admin, pipeline.spec.topic, pipeline.committed()[0])
    remove(pipeline, pipeline.root)
    pipeline.repair.rebuild("ann", "disk lost")
    landed = [r.held_now for r in pipeline.ledger.plans.values() if r.held_now]
    assert sum(c.unproven_gaps for landing in landed for c in landing.counts) == sum(
        landing.gaps for landing in landed
    )
    produce_more(pipeline)
    pipeline.run("fourth")
    deleted = [row for row in before if row.partition == 0]
    still_there = read_all(broker.bootstrap, pipeline.spec.topic)
    assert pipeline.delivered_rows() == sorted(deleted + still_there)
    assert pipeline.planner.plan("fifth").plan is None
    pipeline.verify.verify().check()


# -- the data table ------------------------------------------------------------------------------


def restore_by_spark(pipeline: Lake, uri: Path, version: int) -> None:
    pipeline.session.sql(f"RESTORE TABLE delta.`{uri}` TO VERSION AS OF {version}").collect()


def restore_by_sparks_time(pipeline: Lake, uri: Path, version: int) -> None:
    moment = f"{just_after(uri, version):%Y-%m-%d %H:%M:%S.%f}"
    pipeline.session.sql(f"RESTORE TABLE delta.`{uri}` TO TIMESTAMP AS OF '{moment}'").collect()


def restore_by_delta_rs(pipeline: Lake, uri: Path, version: int) -> None:
    DeltaTable(uri).restore(version)


def restore_by_delta_rs_time(pipeline: Lake, uri: Path, version: int) -> None:
    DeltaTable(uri).restore(just_after(uri, version))


def just_after(uri: Path, version: int) -> datetime:
    """Return a time just after a version; both libraries use the time of its file."""
    commit = uri / "_delta_log" / f"{version:020}.json"
    return datetime.fromtimestamp(commit.stat().st_mtime, UTC) + timedelta(milliseconds=2)


RESTORES = [
    restore_by_spark,
    restore_by_sparks_time,
    restore_by_delta_rs,
    restore_by_delta_rs_time,
]


def version_of(pipeline: Lake, sequence: int) -> int:
    landing = pipeline.ledger.plans[sequence].held_now
    assert landing is not None
    return landing.table_version


@LONG
@pytest.mark.parametrize("restore", RESTORES)
def test_i5_a_restored_data_table_is_refused_and_rewound(
    pipeline: Lake, table_judge: TableJudge, restore: Callable[[Lake, Path, int], None]
) -> None:
    """I4. A driver of the old epoch inside its Delta transaction fails."""
    produce_more(pipeline)
    plan = pipeline.plan("fourth")
    with held_driver(pipeline, plan) as driver:
        restore(pipeline, pipeline.uri, version_of(pipeline, 1))
        with pytest.raises(TableBehindLedger, match="A RESTORE"):
            pipeline.planner.plan("fifth")
        files = contents(pipeline.root)
        draft = pipeline.repair.rewind("ann", "bad deploy", dry_run=True)
        assert contents(pipeline.root) == files
        found = pipeline.repair.rewind("ann", "bad deploy")
        assert found == draft
        assert [plan.sequence for plan in found.gone] == [2, 3]
        assert [plan.sequence for plan in found.open] == [4]
        rows = len(pipeline.rows())
        assert isinstance(driver.wake(), TidemarkError)
    assert len(pipeline.rows()) == rows
    with pytest.raises(PlanCancelled):
        pipeline.ingest.execute(plan.sequence)
    drain(pipeline, table_judge)


@LONG
def test_i5_the_ledger_follows_each_of_several_restores(
    pipeline: Lake, table_judge: TableJudge
) -> None:
    uri, newest = pipeline.uri, version_of(pipeline, 3)
    restore_by_spark(pipeline, uri, version_of(pipeline, 2))
    restore_by_spark(pipeline, uri, version_of(pipeline, 1))
    assert [p.sequence for p in pipeline.repair.rewind("ann", "why").gone] == [2, 3]
    pipeline.run("again")
    restore_by_delta_rs(pipeline, uri, newest)
    with pytest.raises(TableBehindLedger, match="A RESTORE"):
        pipeline.planner.plan("then")
    found = pipeline.repair.rewind("ann", "it was right after all")
    assert [plan.sequence for plan in found.unrecorded] == [2, 3]
    assert [plan.sequence for plan in found.gone] == [4]
    drain(pipeline, table_judge)


@LONG
def test_i5_a_reverted_restore_needs_no_repair(pipeline: Lake, table_judge: TableJudge) -> None:
    newest = version_of(pipeline, 3)
    restore_by_spark(pipeline, pipeline.uri, version_of(pipeline, 1))
    restore_by_spark(pipeline, pipeline.uri, newest)
    with pytest.raises(NothingToDo):
        pipeline.repair.rewind("ann", "why")
    drain(pipeline, table_judge)
    assert pipeline.ledger.epoch == 0


@LONG
def test_i5_a_rewind_recreates_a_removed_data_table(
    pipeline: Lake, table_judge: TableJudge
) -> None:
    """A RESTORE of the new table, whose versions are lower, is detected."""
    produce_more(pipeline)
    zombie = pipeline.plan("fourth")
    shutil.rmtree(pipeline.uri)
    with pytest.raises(TableBehindLedger):
        pipeline.ingest.execute(zombie.sequence)
    draft = pipeline.repair.rewind("ann", "a fresh start", dry_run=True)
    assert not pipeline.uri.exists()
    assert [plan.sequence for plan in draft.gone] == [1, 2, 3]
    pipeline.repair.rewind("ann", "a fresh start")
    version = pipeline.version()
    assert version is not None
    pipeline.land(zombie)
    assert pipeline.version() == version
    drain(pipeline, table_judge)
    restore_by_delta_rs(pipeline, pipeline.uri, version)
    with pytest.raises(TableBehindLedger, match="A RESTORE"):
        pipeline.planner.plan("sixth")
    pipeline.repair.rewind("ann", "again")
    drain(pipeline, table_judge)


@LONG
def test_i1_rewound_offsets_that_kafka_deleted_are_a_lost_range(
    pipeline: Lake, broker: BrokerStatus
) -> None:
    first, middle = (pipeline.ledger.plans[number].plan.ranges[0].end for number in (1, 2))
    before = pipeline.delivered_rows()
    delete_records(
        AdminClient({"bootstrap.servers": broker.bootstrap}), pipeline.spec.topic, middle
    )
    restore_by_spark(pipeline, pipeline.uri, version_of(pipeline, 1))
    pipeline.repair.rewind("ann", "why")
    with pytest.raises(LostRange):
        pipeline.planner.plan("fourth")
    lost = pipeline.decisions.accept_loss((), "ann", "known").lost
    assert list(lost) == [0]
    pipeline.run("fourth")
    kept = [row for row in before if row.partition == 0 and row.offset < first]
    still_there = read_all(broker.bootstrap, pipeline.spec.topic)
    assert pipeline.delivered_rows() == sorted(kept + still_there)
    assert pipeline.planner.plan("fifth").plan is None
    pipeline.verify.verify().check()


@LONG
def test_i5_a_rebuild_after_damage_to_both_tables_follows_the_rows(
    pipeline: Lake, table_judge: TableJudge, tmp_path: Path
) -> None:
    restore_by_spark(pipeline, pipeline.uri, version_of(pipeline, 2))
    remove(pipeline, tmp_path)
    with pytest.raises(LedgerBehindTable):
        pipeline.planner.plan("fourth")
    found = pipeline.repair.rebuild("ann", "a bad day")
    assert [plan.sequence for plan in found.unknown] == [1, 2]
    drain(pipeline, table_judge)
