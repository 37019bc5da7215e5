"""Upsert tables against a model in Python, with Spark's MERGE on real tables."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.support.upsert_lake import UpsertLake, change
from tidemark.core.bookmark import TypedChanges
from tidemark.core.offsets import Span
from tidemark.delta.data_table import DeltaDataTable
from tidemark.delta.errors import TableAltered
from tidemark.silver.upsert.spark import SparkMerger
from tidemark.silver.upsert.table import DeltaUpsertTable
from tidemark.spec.decode import Part
from tidemark.spec.fields import Struct
from tidemark.spec.upsert import Deletes, Envelope, MergePlan, MergeScope, UpsertSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession, request: pytest.FixtureRequest) -> UpsertLake:
    """Nothing has landed; deletes are hard unless the test sets another value."""
    return UpsertLake(root=tmp_path, spark=spark, deletes=getattr(request, "param", Deletes.HARD))


@pytest.fixture
def changes(tmp_path: Path, spark: SparkSession, request: pytest.FixtureRequest) -> UpsertLake:
    """The same with Debezium's envelope."""
    deletes = getattr(request, "param", Deletes.HARD)
    return UpsertLake(root=tmp_path, spark=spark, deletes=deletes, envelope=Envelope.DEBEZIUM)


mostly_hard = pytest.mark.parametrize(
    "lake", [Deletes.HARD, pytest.param(Deletes.SOFT, marks=pytest.mark.faults)], indirect=True
)


@mostly_hard
def test_the_row_of_a_key_is_its_newest_record(lake: UpsertLake) -> None:
    """Offsets order the records of a partition. A record without a key has no row."""
    lake.land_records(("a", "1"), ("b", "1"), (None, "x"), ("a", "2"), ("c", None))
    lake.land_records(("a", "other"), partition=1)
    merge = lake.merge()
    assert merge is not None
    assert merge.scope is MergeScope.ALL
    lake.check()
    lake.land_records(("b", None), ("a", "3"), ("d", "1"), ("d", None), ("d", "2"))
    merge = lake.merge()
    assert merge is not None
    assert merge.scope is MergeScope.NEW
    lake.check()
    rows = lake.upsert_rows()
    assert rows[0, b"a"]["value"] == "3"
    assert rows[1, b"a"]["value"] == "other"
    if lake.deletes is Deletes.SOFT:
        # The row has the last content, and the offset of the deletion.
        assert (rows[0, b"b"]["value"], rows[0, b"b"]["deleted"]) == ("1", True)
        assert rows[0, b"b"]["offset"] == 5
    else:
        assert (0, b"b") not in rows
    assert lake.merge() is None


def test_a_typed_table_without_landed_plans_makes_no_upsert_table(lake: UpsertLake) -> None:
    """Its first decode was refused after the table was created."""
    lake.land_records(("a", "1"))
    assert lake.decodes.next() is not None
    assert lake.upserts.next() is None
    assert lake.merge() is not None
    lake.check()


@mostly_hard
def test_a_replay_never_moves_a_row_back(lake: UpsertLake) -> None:
    """Covers late records of newer, deleted and unknown keys."""
    lake.broken = {0, 1, 2}
    lake.land_records(("a", "old"), ("b", "old"), ("c", "old"))
    lake.land_records(("a", "new"), ("b", None))
    lake.merge()
    lake.check()
    lake.broken = ()
    lake.replay(Span(0, 3))
    merge = lake.merge()
    assert merge is not None
    assert merge.scope is MergeScope.KEYS
    lake.check()
    assert lake.visible() == {"a": "new", "c": "old"}


@mostly_hard
def test_a_backfill_never_moves_a_row_back(lake: UpsertLake) -> None:
    """Covers the oldest records, of newer, deleted, unknown and removed keys."""
    early = lake.land_records(("a", "old"), ("b", "old"), ("c", "old"))
    lake.land_records(("a", "new"), ("b", None), ("d", "new"))
    lake.merge()
    lake.bronze.undo.undo(early, "test", "not meant")
    lake.merge()
    lake.check()
    assert lake.visible() == {"a": "new", "d": "new"}
    lake.bronze.land_again((0, 0, 3))
    merge = lake.merge()
    assert merge is not None
    assert merge.scope is MergeScope.KEYS
    # The records replace no rows, so only their offsets show their age.
    assert not merge.changes.removed
    lake.check()
    assert lake.visible() == {"a": "new", "c": "old", "d": "new"}


def test_an_undo_restores_the_previous_rows(lake: UpsertLake) -> None:
    """It also restores a deleted row."""
    lake.land_records(("a", "1"), ("b", "1"))
    undone = lake.land_records(("a", "2"), ("b", None), ("c", "1"))
    lake.merge()
    lake.bronze.undo.undo(undone, "test", "not meant")
    merge = lake.merge()
    assert merge is not None
    assert merge.scope is MergeScope.KEYS
    lake.check()
    assert lake.visible() == {"a": "1", "b": "1"}


def test_a_restored_upsert_table_or_a_foreign_update_causes_a_rebuild(lake: UpsertLake) -> None:
    """The typed table has all records."""
    lake.land_records(("a", "1"))
    lake.merge()
    lake.land_records(("a", "2"), ("b", "1"))
    lake.merge()
    DeltaTable(lake.upsert_uri).restore(1)
    merge = lake.merge()
    assert merge is not None
    assert merge.scope is MergeScope.ALL
    lake.check()
    # The effect of a foreign commit on the typed table is unknown.
    DeltaTable(lake.typed_uri).update(updates={"value": "'changed'"}, predicate="key IS NOT NULL")
    merge = lake.merge()
    assert merge is not None
    assert merge.scope is MergeScope.ALL
    assert set(lake.visible().values()) == {"changed"}


def test_two_drivers_that_merge_from_one_version_cause_a_rebuild(lake: UpsertLake) -> None:
    """Each merge is right by itself, but together they keep undone rows."""
    lake.land_records(("a", "1"))
    lake.merge()
    undone = lake.land_records(("a", "2"), ("b", "1"))
    lake.run()
    first = lake.upserts.next()
    lake.bronze.undo.undo(undone, "test", "not meant")
    lake.run()
    second = lake.upserts.next()
    assert first is not None
    assert second is not None
    lake.merger.merge(first)
    lake.merger.merge(second)
    merge = lake.merge()
    assert merge is not None
    assert merge.scope is MergeScope.ALL
    lake.check()


def test_a_foreign_delete_and_a_lost_folder_are_repaired(lake: UpsertLake) -> None:
    """The folder is lost between the plan of a merge and its execution."""
    lake.land_records(("a", "1"), ("b", "1"))
    lake.merge()
    DeltaTable(lake.upsert_uri).delete("key IS NOT NULL")
    lake.merge()
    lake.check()
    lake.land_records(("c", "1"))
    lake.run()
    late = lake.upserts.next()
    assert late is not None
    shutil.rmtree(lake.upsert_uri)
    lake.upserts.table.prepare("events", lake.tables.columns())
    lake.merger.merge(late)
    lake.merge()
    lake.check()


def test_a_changed_spec_causes_a_rebuild(lake: UpsertLake) -> None:
    """Old deletions also follow the new setting."""
    lake.land_records(("a", "1"), ("a", None), ("b", "1"))
    lake.merge()
    lake.deletes = Deletes.SOFT
    merge = lake.merge()
    assert merge is not None
    assert merge.scope is MergeScope.ALL
    lake.check()
    assert lake.upsert_rows()[0, b"a"]["value"] == "1"


def test_a_vacuum_of_the_previous_version_causes_a_rebuild(lake: UpsertLake) -> None:
    """Spark cannot read the removed rows."""
    first = lake.land_records(("a", "1"))
    lake.land_records(("a", "2"), ("b", "1"))
    lake.merge()
    lake.bronze.undo.undo(first, "test", "not meant")
    lake.run()
    DeltaTable(lake.typed_uri).vacuum(
        retention_hours=0, dry_run=False, enforce_retention_duration=False
    )
    merge = lake.merge()
    assert merge is not None
    assert merge.scope is MergeScope.KEYS
    lake.check()


def test_a_merge_refused_for_a_concurrent_one_does_not_revert_it(
    lake: UpsertLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rebuild would read an older version."""
    lake.land_records(("a", "1"))
    undone = lake.land_records(("a", "2"), ("b", "1"))
    lake.merge()
    lake.bronze.undo.undo(undone, "test", "not meant")
    lake.run()
    late = lake.upserts.next()
    assert late is not None
    assert late.scope is MergeScope.KEYS
    merger, do = lake.merger, SparkMerger._execute

    def meet(self: SparkMerger, merge: MergePlan) -> None:
        if self is merger and merge.scope is MergeScope.KEYS:
            lake.land_records(("a", "3"), ("c", "1"))
            lake.merge()
            raise ValueError("Delta has refused it")
        do(self, merge)

    monkeypatch.setattr(SparkMerger, "_execute", meet)
    merger.merge(late)
    lake.check()
    # The next run has landed the undone records again.
    assert lake.visible() == {"a": "3", "b": "1", "c": "1"}


def test_compaction_and_changed_properties_cause_no_merge(lake: UpsertLake) -> None:
    """They change no row."""
    for number in range(3):
        lake.land_records(("a", str(number)))
    lake.merge()
    DeltaTable(lake.typed_uri).optimize.compact()
    DeltaTable(lake.typed_uri).alter.set_table_properties(
        {"delta.logRetentionDuration": "interval 9 days"}
    )
    assert lake.upserts.next() is None
    lake.check()


def test_a_late_merge_changes_nothing(lake: UpsertLake) -> None:
    """Another driver has merged the same records and newer ones."""
    lake.land_records(("a", "1"), ("b", "1"))
    lake.merge()
    lake.land_records(("a", "2"), ("b", None), ("c", "1"))
    lake.run()
    late = lake.upserts.next()
    assert late is not None
    lake.land_records(("a", "3"), ("b", None), ("c", None))
    lake.merge()
    lake.check()
    before = DeltaTable(lake.upsert_uri).version()
    lake.merger.merge(late)
    assert DeltaTable(lake.upsert_uri).version() == before
    lake.check()


def test_records_of_a_recreated_topic_are_newer_than_all_before(lake: UpsertLake) -> None:
    """Their offsets do not matter."""
    lake.land_records(("a", "1"), ("a", "2"), ("b", "1"))
    lake.merge()
    lake.bronze.kafka.create("events", 2, "id-2")
    lake.bronze.decisions.accept_recreation("test", "recreated on purpose")
    lake.bronze.payloads.clear()
    lake.land_records(("a", "again"))
    lake.merge()
    assert lake.upsert_rows() == lake.expected_rows(("id-1", "id-2"))
    assert lake.visible() == {"a": "again", "b": "1"}


def actions(random: Random, lake: UpsertLake) -> Iterator[str]:  # noqa: C901  one for each kind
    """Apply random changes to the tables, and yield the name of each."""
    while True:
        action = random.choice(
            ["land", "land", "land", "break", "replay", "undo", "land again", "restore"]
        )
        if action in ("land", "break"):
            partition = random.randrange(2)
            first = lake.bronze.kafka.topics["events"][partition].end
            count = random.randrange(1, 6)
            if action == "break" and partition == 0:
                lake.broken = {*lake.broken, *range(first, first + count, 2)}
            lake.land_records(
                *(
                    (random.choice(["a", "b", "c", "d", None]), lake.payload(random))
                    for _ in range(count)
                ),
                partition=partition,
            )
        elif action == "replay":
            kept = lake.quarantine.records()
            if not kept:
                continue
            some = random.sample(kept, random.randrange(1, len(kept) + 1))
            lake.run()
            lake.broken = set(lake.broken) - {each.offset for each in some}
            lake.replay(*(Span(each.offset, each.offset + 1) for each in some))
        elif action == "undo":
            records = lake.bronze.control.ledger("events").plans.values()
            landed = [r for r in records if r.held_now and r.cancelled_by is None]
            if len(landed) < 2:
                continue
            record = random.choice(landed)
            lake.bronze.undo.undo(record.plan.sequence, "test", "by chance")
            if random.random() < 0.5:
                # The undone offsets land again, below newer offsets.
                plan = lake.bronze.planner.plan("again").plan
                if plan is not None:
                    lake.bronze.ingest.execute(plan.sequence)
        elif action == "land again":
            partition = random.randrange(2)
            end = lake.bronze.kafka.topics["events"][partition].end
            if not end:
                continue
            start = random.randrange(end)
            lake.bronze.land_again((partition, start, random.randrange(start, end) + 1))
        else:
            latest = DeltaTable(lake.upsert_uri)
            if latest.version() < 2:
                continue
            latest.restore(random.randrange(1, latest.version()))
        yield action


@pytest.mark.faults
@pytest.mark.parametrize("lake", list(Deletes), indirect=True)
@pytest.mark.parametrize("seed", range(6))
def test_many_random_changes_leave_the_rows_of_the_model(lake: UpsertLake, seed: int) -> None:
    """Random landings, replays, undos, backfills and RESTOREs, with merges in between."""
    run_random_changes(lake, seed, count=12)


@pytest.mark.parametrize(
    "deletes", [Deletes.HARD, pytest.param(Deletes.SOFT, marks=pytest.mark.faults)]
)
def test_random_changes_of_flattened_values_leave_the_rows_of_the_model(
    tmp_path: Path, spark: SparkSession, deletes: Deletes
) -> None:
    """Changes as above; the content of Debezium's envelope is in the columns of the table."""
    lake = UpsertLake(
        root=tmp_path, spark=spark, deletes=deletes, envelope=Envelope.DEBEZIUM, flattens=True
    )
    run_random_changes(lake, seed=3, count=4)
    names = [field.name for field in DeltaTable(lake.upsert_uri).schema().fields]
    assert names[:3] == ["key", "n", "deleted"]


@pytest.mark.faults
@pytest.mark.parametrize("changes", list(Deletes), indirect=True)
@pytest.mark.parametrize("seed", range(4))
def test_random_changes_with_debezium_leave_the_rows_of_the_model(
    changes: UpsertLake, seed: int
) -> None:
    """Deletions occur twice, once, or not at all."""
    run_random_changes(changes, seed, count=12)


def run_random_changes(lake: UpsertLake, seed: int, count: int) -> None:
    """Apply random changes and merges, and compare the table with the model."""
    random = Random(seed)
    lake.land_records(("a", lake.payload(random)))
    lake.merge()
    done = []
    for action in islice(actions(random, lake), count):
        done.append(action)
        if random.random() < 0.6:
            lake.merge()
            lake.check()
    lake.merge()
    print(f"seed {seed}: {done}")
    lake.check()


_ROW = "id BIGINT, name STRING"
_ENVELOPE = (
    f"key STRING, value STRUCT<before: STRUCT<{_ROW}>, after: STRUCT<{_ROW}>, op: STRING>, "
    "topic_id STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, plan_sequence BIGINT"
)


@pytest.mark.parametrize("deletes", list(Deletes))
def test_the_content_of_debeziums_envelope_becomes_the_row(
    tmp_path: Path, spark: SparkSession, deletes: Deletes
) -> None:
    """Deletions occur twice, and messages have no row."""
    old, new = {"id": 1, "name": "old"}, {"id": 1, "name": "new"}
    changes: list[tuple[str | None, Any]] = [
        ("a", {"before": None, "after": old, "op": "r"}),
        ("a", {"before": old, "after": new, "op": "u"}),
        ("b", {"before": None, "after": old, "op": "c"}),
        ("b", {"before": old, "after": None, "op": "d"}),
        ("b", None),
        ("c", {"before": old, "after": None, "op": "d"}),
        ("d", {"before": None, "after": None, "op": "m"}),
        ("e", {"before": None, "after": old, "op": None}),
        (None, {"before": None, "after": None, "op": "t"}),
    ]
    typed, uri = tmp_path / "typed", tmp_path / "upsert"
    rows = [(key, value, "id-1", 0, n, None, 1) for n, (key, value) in enumerate(changes)]
    spark.createDataFrame(rows, _ENVELOPE).write.format("delta").save(str(typed))
    spec = UpsertSpec(target="upsert", deletes=deletes, envelope=Envelope.DEBEZIUM)
    columns = DeltaDataTable(str(typed)).columns()
    DeltaUpsertTable(str(uri), spec).prepare("events", {part: columns[part] for part in Part})
    merge = MergePlan(
        scope=MergeScope.ALL,
        since=None,
        version=0,
        changes=TypedChanges(),
        withdrawn=0,
        incarnations=("id-1",),
        typed_commit=None,
        definition="any",
        app_id="one",
        upsert_version=0,
    )
    SparkMerger(lambda: spark, str(typed), str(uri), spec).merge(merge)
    found = {
        row["key"]: (row["value"], row["deleted"], row["offset"])
        for row in pa.table(DeltaTable(uri).scan()).to_pylist()
    }
    kept = {"b": (old, True, 4), "c": (None, True, 5)} if deletes is Deletes.SOFT else {}
    assert found == {"a": (new, False, 1), "e": (old, False, 7), **kept}


@pytest.mark.faults
@pytest.mark.parametrize("changes", list(Deletes), indirect=True)
def test_debeziums_deletion_and_tombstone_may_be_in_separate_merges(changes: UpsertLake) -> None:
    """The tombstone keeps the content, and a later update brings the row back."""
    lake = changes
    lake.land_records(("a", change("c", "1")), ("b", change("r", "1")), ("c", change("c", "1")))
    lake.merge()
    lake.check()
    for payload in (change("d", "1"), None):
        lake.land_records(("a", payload), ("b", payload), ("c", change("m", None)))
        merge = lake.merge()
        assert merge is not None
        assert merge.scope is MergeScope.NEW
        lake.check()
        assert lake.visible() == {"c": {"n": "1"}}
    kept = {key.decode(): row["value"] for (_, key), row in lake.upsert_rows().items()}
    one = {"n": "1"}
    soft = lake.deletes is Deletes.SOFT
    assert kept == ({"a": one, "b": one, "c": one} if soft else {"c": one})
    back = lake.land_records(("a", change("u", "2")), ("c", change("u", "2")))
    merge = lake.merge()
    assert merge is not None
    assert merge.scope is MergeScope.NEW
    lake.check()
    assert lake.visible() == {"a": {"n": "2"}, "c": {"n": "2"}}
    # The undo restores the deletion and the content before it.
    lake.bronze.undo.undo(back, "test", "not meant")
    merge = lake.merge()
    assert merge is not None
    assert merge.scope is MergeScope.KEYS
    lake.check()
    assert lake.visible() == {"c": {"n": "1"}}


def test_values_without_the_envelope_raise_an_error(tmp_path: Path) -> None:
    """The error comes before a table is created."""
    spec = UpsertSpec(target="upsert", envelope=Envelope.DEBEZIUM)
    latest = DeltaUpsertTable(str(tmp_path / "upsert"), spec)
    with pytest.raises(TableAltered, match="the fields `after` and `op`"):
        latest.prepare("events", {Part.KEY: "string", Part.VALUE: Struct((("after", "long"),))})
    assert not (tmp_path / "upsert").exists()
