"""The data table's own log: which plan landed, in which commit, and how much of each range."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from tests.conftest import TopicFactory
from tests.support.lake import Lake
from tests.support.plans import make_plan
from tests.support.transactions import Record, produce_aborted, produce_values
from tidemark.core.plan import Plan, PlanKind
from tidemark.dev.broker import BrokerStatus
from tidemark.lake.data_table import DeltaDataTable
from tidemark.lake.errors import ForeignCommit

if TYPE_CHECKING:
    pass

Row = tuple[int, int]
SCHEMA = pa.schema(
    [("partition", pa.int32()), ("offset", pa.int64()), ("plan_sequence", pa.int64())]
)


def commit(uri: Path, plan: Plan, rows: Sequence[Row], metadata: str | None = None) -> int:
    """Land rows `(partition, offset)` as the sink does, in one file; the version it made."""
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
    """Records of each range of a plan that must have landed."""
    landing = DeltaDataTable(str(uri)).find_landing(plan)
    assert landing is not None
    assert landing.sequence == plan.sequence
    assert [(c.partition, c.start, c.end) for c in landing.counts] == [
        (r.partition, r.start, r.end) for r in plan.ranges
    ]
    return [count.records for count in landing.counts]


# -- is it there ---------------------------------------------------------------------------------


def test_a_plan_is_found_by_its_fingerprint(tmp_path: Path) -> None:
    """Among others, with the version of its own commit, also when later ones came."""
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
    """A backfill, or the same number after a rewind, is another transaction."""
    live = make_plan((0, 0, 5))
    commit(tmp_path, live, [(0, 0)])
    log = DeltaDataTable(str(tmp_path))
    assert log.find_landing(replace(live, kind=PlanKind.BACKFILL)) is None
    assert log.find_landing(replace(live, epoch=1)) is None
    assert log.find_landing(live) is not None


def test_another_plan_under_our_number_is_refused(tmp_path: Path) -> None:
    """I7: the two tables are of different histories; the error has both fingerprints."""
    theirs, ours = make_plan((0, 0, 5)), make_plan((0, 0, 6))
    commit(tmp_path, theirs, [(0, 0)])
    with pytest.raises(ForeignCommit) as caught:
        DeltaDataTable(str(tmp_path)).find_landing(ours)
    assert caught.value.fingerprint == ours.fingerprint
    assert caught.value.other_fingerprint == theirs.fingerprint


def test_a_transaction_without_our_fingerprint_is_no_landing(tmp_path: Path) -> None:
    """A plan that was given up raises the transaction past its number, and lands nothing."""
    plan = make_plan((0, 0, 5))
    for metadata in ("not json", "[]", '"text"', "null", "{}", json.dumps({"note": "compacted"})):
        commit(tmp_path, replace(plan, sequence=plan.sequence + 1), [], metadata)
        assert DeltaDataTable(str(tmp_path)).find_landing(plan) is None


def test_an_old_plan_is_found_behind_many_commits(tmp_path: Path) -> None:
    """Recent commits are looked at first, all others after them."""
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


# -- how much ------------------------------------------------------------------------------------

PLAN = make_plan((0, 0, 10), (0, 20, 30), (1, 5, 10), (2, 0, 5))


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ([[]], [0, 0, 0, 0]),
        ([[(0, 0), (0, 9)]], [2, 0, 0, 0]),
        ([[(0, 0)], [(0, 5), (0, 6)], [(0, 20)], [(1, 9)]], [3, 1, 1, 0]),
        # One file over two ranges, two partitions: its statistics alone decide nothing.
        ([[(0, 9), (0, 20), (0, 29)]], [1, 2, 0, 0]),
        ([[(0, 0), (1, 5), (2, 4)], [(0, 1)]], [2, 0, 1, 1]),
    ],
)
def test_i1_every_range_is_counted(
    tmp_path: Path, files: list[list[Row]], wanted: list[int]
) -> None:
    """By statistics where each file is of one range, by rows where a file is of several."""
    commit_files(tmp_path, PLAN, files)
    assert counts(tmp_path, PLAN) == wanted


def commit_files(uri: Path, plan: Plan, files: Sequence[Sequence[Row]]) -> None:
    """Land several files, one commit after the other, all under the plan's last transaction."""
    for file in files[:-1]:
        commit(uri, replace(plan, pipeline="another app id"), file, metadata="part of it")
    commit(uri, plan, files[-1])


def test_rows_of_other_plans_are_not_counted(tmp_path: Path) -> None:
    """The same offsets under another plan's number are another plan's."""
    commit(tmp_path, PLAN, [(0, 0), (0, 1)])
    commit(tmp_path, replace(PLAN, sequence=2), [(0, 2), (1, 5)])
    assert counts(tmp_path, PLAN) == [2, 0, 0, 0]
    assert counts(tmp_path, replace(PLAN, sequence=2)) == [1, 0, 1, 0]


def test_compaction_before_a_landing_does_not_confuse_its_counts(tmp_path: Path) -> None:
    """A backfill with a smaller number lands after plans around it were compacted into one file."""
    first, late, third = (replace(PLAN, sequence=n) for n in (1, 2, 3))
    late = replace(late, kind=PlanKind.BACKFILL)
    commit(tmp_path, first, [(0, 0), (1, 5)])
    commit(tmp_path, third, [(0, 1)])
    DeltaTable(tmp_path).optimize.compact()
    assert len(DeltaTable(tmp_path).file_uris()) == 1
    commit(tmp_path, late, [(0, 2), (0, 3), (2, 0)])
    assert counts(tmp_path, late) == [2, 0, 0, 1]
    assert counts(tmp_path, first) == [1, 0, 1, 0]


# -- what Spark writes ---------------------------------------------------------------------------


def counts_by_rows(lake: Lake) -> dict[tuple[int, int], int]:
    """Rows by plan and partition, counted by Spark."""
    rows: list[Any] = lake.session.read.format("delta").load(lake.uri).collect()
    return dict(Counter((row["plan_sequence"], row["partition"]) for row in rows))


@pytest.mark.broker
@pytest.mark.spark
def test_i3_counts_from_statistics_are_counts_of_rows(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """With gaps, split ranges and an empty partition; and again when OPTIMIZE mixed the files."""
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
    told = {
        (plan.sequence, count.partition): count.records
        for plan, landing in landings.items()
        for count in landing.counts
    }
    assert told == counts_by_rows(pipeline)
    assert told == {(1, 0): 1_500, (1, 1): 20, (2, 0): 1_500, (2, 1): 40}
    SparkDeltaTable.forPath(lake.session, lake.uri).optimize().executeCompaction()
    assert pipeline.files() == 1
    assert {plan: pipeline.table.find_landing(plan) for plan in landings} == landings
    produce_values(broker.bootstrap, name, 7, partition=2)
    done = pipeline.run("after it")
    assert [count.records for count in done.landing.counts] == [7]


@pytest.mark.broker
@pytest.mark.spark
def test_statistics_are_kept_for_what_is_looked_up_only(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """Minima and maxima of partition, offset, timestamp and plan; none of keys and values."""
    pipeline = lake.of(topic())
    produce_values(broker.bootstrap, pipeline.spec.topic, 5)
    pipeline.run("test")
    actions = pa.table(DeltaTable(pipeline.uri).get_add_actions(flatten=True))
    (action,) = actions.to_pylist()
    known = {
        name.removeprefix("min.")
        for name, value in action.items()
        if name.startswith("min.") and value is not None
    }
    assert known == {"partition", "offset", "timestamp", "plan_sequence"}
    assert (action["min.offset"], action["max.offset"], action["num_records"]) == (0, 4, 5)
