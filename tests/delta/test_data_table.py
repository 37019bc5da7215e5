"""Tests of the data table's log: which plan landed, in which commit, and its counts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from tests.conftest import TopicFactory
from tests.support.lake import Lake
from tests.support.plans import make_plan
from tests.support.transactions import Record, produce_aborted, produce_values
from tidemark.core.errors import LedgerBehindTable
from tidemark.core.plan import Plan, PlanKind
from tidemark.delta.data_table import DeltaDataTable
from tidemark.local.broker import BrokerStatus

Row = tuple[int, int]
SCHEMA = pa.schema(
    [("partition", pa.int32()), ("offset", pa.int64()), ("plan_sequence", pa.int64())]
)


def commit(uri: Path, plan: Plan, rows: Sequence[Row], metadata: str | None = None) -> int:
    """Land rows `(partition, offset)` in one file as the sink does; return the version."""
    columns = [[row[0] for row in rows], [row[1] for row in rows], [plan.sequence] * len(rows)]
    write_deltalake(
        uri,
        pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], SCHEMA),
        mode="append",
        commit_properties=CommitProperties(
            custom_metadata={"userMetadata": metadata or plan.commit_metadata()},
            app_transactions=[Transaction(plan.app_id, plan.sequence)],
        ),
    )
    return DeltaTable(uri).version()


def counts(uri: Path, plan: Plan) -> list[int]:
    """Return the records of each range of a plan that must have landed."""
    landing = DeltaDataTable(str(uri)).find_landing(plan)
    assert landing is not None
    assert landing.sequence == plan.sequence
    assert [(c.partition, c.start, c.end) for c in landing.counts] == [
        (r.partition, r.start, r.end) for r in plan.ranges
    ]
    return [count.records for count in landing.counts]


# -- lookup --------------------------------------------------------------------------------------


def test_a_landing_is_found_with_the_version_of_its_own_commit(tmp_path: Path) -> None:
    plans = [make_plan((0, 5 * n, 5 * n + 5), sequence=n + 1) for n in range(3)]
    versions = [
        commit(tmp_path, plan, [(0, offset) for offset in range(r.start, r.end)])
        for plan in plans
        for r in plan.ranges
    ]
    log = DeltaDataTable(str(tmp_path))
    found = [log.find_landing(plan) for plan in plans]
    assert [landing and landing.table_version for landing in found] == versions
    assert [landing and landing.records for landing in found] == [5, 5, 5]
    assert log.find_landing(make_plan((0, 15, 20), sequence=4)) is None


def test_a_plan_of_another_chain_or_epoch_is_not_found(tmp_path: Path) -> None:
    """It has another transaction."""
    live = make_plan((0, 0, 5))
    commit(tmp_path, live, [(0, 0)])
    log = DeltaDataTable(str(tmp_path))
    assert log.find_landing(replace(live, kind=PlanKind.BACKFILL)) is None
    assert log.find_landing(replace(live, epoch=1)) is None
    assert log.find_landing(live) is not None


def test_i7_a_commit_of_another_plan_with_the_number_raises_foreign_commit(tmp_path: Path) -> None:
    theirs, ours = make_plan((0, 0, 5)), make_plan((0, 0, 6))
    commit(tmp_path, theirs, [(0, 0)])
    with pytest.raises(LedgerBehindTable, match="another plan with number") as caught:
        DeltaDataTable(str(tmp_path)).find_landing(ours)
    assert caught.value.needed == f"fingerprint {ours.fingerprint}"
    assert caught.value.seen == f"fingerprint {theirs.fingerprint}"


def test_a_transaction_without_the_fingerprint_is_no_landing(tmp_path: Path) -> None:
    """The fence of an abandoned plan is such a transaction."""
    plan = make_plan((0, 0, 5))
    for metadata in ("not json", "[]", '"text"', "null", "{}", json.dumps({"note": "compacted"})):
        commit(tmp_path, replace(plan, sequence=plan.sequence + 1), [], metadata)
        assert DeltaDataTable(str(tmp_path)).find_landing(plan) is None


def test_an_old_plan_is_found_behind_many_commits(tmp_path: Path) -> None:
    """The lookup reads recent commits first."""
    plan = make_plan((0, 0, 5))
    version = commit(tmp_path, plan, [(0, 0), (0, 1)])
    table = DeltaTable(tmp_path)
    for number in range(60):
        table.alter.set_table_properties(
            {"delta.logRetentionDuration": f"interval {30 + number} days"}
        )
    landing = DeltaDataTable(str(tmp_path)).find_landing(plan)
    assert landing is not None
    assert (landing.table_version, landing.records) == (version, 2)


# -- counts --------------------------------------------------------------------------------------

PLAN = make_plan((0, 0, 10), (0, 20, 30), (1, 5, 10), (2, 0, 5))


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ([[]], [0, 0, 0, 0]),
        ([[(0, 0), (0, 9)]], [2, 0, 0, 0]),
        ([[(0, 0)], [(0, 5), (0, 6)], [(0, 20)], [(1, 9)]], [3, 1, 1, 0]),
        # The statistics of a file with rows of two ranges do not suffice.
        ([[(0, 9), (0, 20), (0, 29)]], [1, 2, 0, 0]),
        ([[(0, 0), (1, 5), (2, 4)], [(0, 1)]], [2, 0, 1, 1]),
    ],
)
def test_i1_records_are_counted_for_each_range(
    tmp_path: Path, files: list[list[Row]], wanted: list[int]
) -> None:
    commit_files(tmp_path, PLAN, files)
    assert counts(tmp_path, PLAN) == wanted


def commit_files(uri: Path, plan: Plan, files: Sequence[Sequence[Row]]) -> None:
    """Land several files in one commit each; only the last has the plan's transaction."""
    for file in files[:-1]:
        commit(uri, replace(plan, pipeline="another app id"), file, metadata="part of it")
    commit(uri, plan, files[-1])


def test_rows_of_other_plans_are_not_counted(tmp_path: Path) -> None:
    commit(tmp_path, PLAN, [(0, 0), (0, 1)])
    commit(tmp_path, replace(PLAN, sequence=2), [(0, 2), (1, 5)])
    assert counts(tmp_path, PLAN) == [2, 0, 0, 0]
    assert counts(tmp_path, replace(PLAN, sequence=2)) == [1, 0, 1, 0]


def test_a_landing_is_counted_after_compaction_of_other_plans(tmp_path: Path) -> None:
    """A backfill with a lower number lands after the compaction."""
    first, late, third = (replace(PLAN, sequence=n) for n in (1, 2, 3))
    late = replace(late, kind=PlanKind.BACKFILL)
    commit(tmp_path, first, [(0, 0), (1, 5)])
    commit(tmp_path, third, [(0, 1)])
    DeltaTable(tmp_path).optimize.compact()
    assert len(DeltaTable(tmp_path).file_uris()) == 1
    commit(tmp_path, late, [(0, 2), (0, 3), (2, 0)])
    assert counts(tmp_path, late) == [2, 0, 0, 1]
    assert counts(tmp_path, first) == [1, 0, 1, 0]


# -- files of Spark ------------------------------------------------------------------------------


def counts_by_rows(lake: Lake) -> dict[tuple[int, int], int]:
    rows: list[Any] = lake.session.read.format("delta").load(str(lake.uri)).collect()
    return dict(Counter((row["plan_sequence"], row["partition"]) for row in rows))


@pytest.mark.broker
@pytest.mark.spark
def test_i3_counts_from_statistics_equal_counts_of_rows(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """Covers gaps, split ranges, an empty partition, and files that OPTIMIZE merged."""
    from delta.tables import DeltaTable as SparkDeltaTable

    pipeline = lake.of(topic(partitions=3), records_per_task=1_000)
    name = pipeline.spec.topic
    landings = {}
    for run in (1, 2):
        produce_values(broker.bootstrap, name, 1_500, partition=0)
        produce_aborted(broker.bootstrap, name, [Record(partition=1)] * 3)
        produce_values(broker.bootstrap, name, 20 * run, partition=1)
        done = pipeline.run(f"run {run}")
        landings[done.plan] = done.landing
    counted = {
        (plan.sequence, count.partition): count.records
        for plan, landing in landings.items()
        for count in landing.counts
    }
    assert counted == counts_by_rows(pipeline)
    assert counted == {(1, 0): 1_500, (1, 1): 20, (2, 0): 1_500, (2, 1): 40}
    SparkDeltaTable.forPath(lake.session, str(lake.uri)).optimize().executeCompaction()
    assert pipeline.files() == 1
    assert {plan: pipeline.table.find_landing(plan) for plan in landings} == landings
    produce_values(broker.bootstrap, name, 7, partition=2)
    done = pipeline.run("after it")
    assert [count.records for count in done.landing.counts] == [7]


@pytest.mark.broker
@pytest.mark.spark
def test_files_have_statistics_only_for_columns_that_are_looked_up(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory
) -> None:
    pipeline = lake.of(topic())
    produce_values(broker.bootstrap, pipeline.spec.topic, 5)
    pipeline.run("test")
    actions = pa.table(DeltaTable(pipeline.uri).get_add_actions(flatten=True))
    (action,) = actions.to_pylist()
    columns = {
        name.removeprefix("min.")
        for name, value in action.items()
        if name.startswith("min.") and value is not None
    }
    assert columns == {"partition", "offset", "timestamp", "plan_sequence"}
    assert (action["min.offset"], action["max.offset"], action["num_records"]) == (0, 4, 5)


def test_stored_bytes_are_those_of_all_files_or_of_the_own_files_of_a_plan(tmp_path: Path) -> None:
    """After a compaction, no file has rows of one plan alone."""
    table = DeltaDataTable(str(tmp_path))
    assert table.stored_bytes() is None
    for sequence, size in ((1, 2), (2, 300)):
        plan = make_plan((0, 0, size), sequence=sequence)
        commit(tmp_path, plan, [(0, offset) for offset in range(size)])
    first, second = table.stored_bytes(1), table.stored_bytes(2)
    sizes = [file.stat().st_size for file in tmp_path.glob("*.parquet")]
    assert sorted(sizes) == [first, second]
    assert table.stored_bytes() == sum(sizes)
    DeltaTable(tmp_path).optimize.compact()
    assert (table.stored_bytes(1), table.stored_bytes(2)) == (None, None)
    assert table.stored_bytes() == DeltaTable(tmp_path).get_add_actions()["size_bytes"][0].as_py()
