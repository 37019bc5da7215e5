"""The table of latest rows against a model, with Spark's MERGE over real tables."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.support.payloads import PayloadLake
from tests.support.typed_lake import TypedLake
from tidemark.adapters.delta.data_table import DeltaDataTable
from tidemark.adapters.delta.latest import DeltaLatest
from tidemark.adapters.spark.merging import SparkMerger
from tidemark.core.decoding import Part
from tidemark.core.fields import Struct
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.upserts import Changes, Deletes, Envelope, How, Merge, UpsertSpec
from tidemark.errors import ColumnsDiffer
from tidemark.services.upserts import Upserts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

Row = dict[str, Any]


@dataclass
class LatestLake(TypedLake):
    """A typed table, and the table of latest rows that follows it."""

    spark: SparkSession = field(kw_only=True)
    deletes: Deletes = Deletes.SOFT

    def __post_init__(self) -> None:
        self.bronze = PayloadLake(root=self.root)

    @property
    def payloads(self) -> PayloadLake:
        """The bronze pipeline."""
        assert isinstance(self.bronze, PayloadLake)
        return self.bronze

    @property
    def latest_uri(self) -> Path:
        """The table of latest rows."""
        return self.root / "silver" / "latest"

    @property
    def upserts(self) -> Upserts:
        """What keeps it."""
        latest = DeltaLatest(str(self.latest_uri), Envelope.NONE)
        return Upserts(
            spec=self.spec,
            upsert=self.upsert,
            control=self.control,
            typed=self.table,
            latest=latest,
        )

    @property
    def upsert(self) -> UpsertSpec:
        """What a latest row is."""
        return UpsertSpec(target="silver/latest", deletes=self.deletes)

    @property
    def merger(self) -> SparkMerger:
        """What merges."""
        return SparkMerger(self.spark, str(self.typed_uri), str(self.latest_uri), self.upsert)

    def merge(self) -> Merge | None:
        """Decode and merge what is missing."""
        self.run()
        return self.upserts.execute(self.merger)

    def land_records(self, *payloads: tuple[str | None, str | None], partition: int = 0) -> int:
        """Land records with these keys and values; the number of the plan."""
        pairs = [
            (None if key is None else key.encode(), None if value is None else value.encode())
            for key, value in payloads
        ]
        return self.payloads.land_payloads(pairs, partition).sequence

    def typed_rows(self) -> list[Row]:
        """Rows of the typed table."""
        rows: list[Row] = pa.table(DeltaTable(self.typed_uri).scan()).to_pylist()
        return rows

    def latest(self) -> dict[tuple[int, bytes], Row]:
        """Latest rows by partition and key, each of which is there once."""
        rows = pa.table(DeltaTable(self.latest_uri).scan()).to_pylist()
        found = {(row["partition"], row["key"]): row for row in rows}
        assert len(found) == len(rows)
        return found

    def shown(self) -> dict[str, str | None]:
        """Values by key, of what is not deleted."""
        rows = self.latest().values()
        return {row["key"].decode(): row["value"] for row in rows if not row["deleted"]}

    def modelled(self, order: tuple[str, ...]) -> dict[tuple[int, bytes], Row]:
        """What the typed table says should be there, by Python alone."""
        newest: dict[tuple[int, bytes], Row] = {}
        content: dict[tuple[int, bytes], Any] = {}
        ordered = sorted(
            self.typed_rows(), key=lambda row: (order.index(row["topic_id"]), row["offset"])
        )
        for row in ordered:
            if row["key"] is None:
                continue
            place = (row["partition"], row["key"])
            newest[place] = row
            if row["value"] is not None:
                content[place] = row["value"]
        made = {}
        for place, row in newest.items():
            deleted = row["value"] is None
            if deleted and self.deletes is Deletes.HARD:
                continue
            names = ("topic_id", "partition", "offset", "timestamp", "plan_sequence", "key")
            made[place] = {
                **{name: row[name] for name in names},
                "value": content.get(place),
                "deleted": deleted,
            }
        return made

    def check(self, order: tuple[str, ...] = ("id-1",)) -> None:
        """The table is what the model says, and nothing is left to merge."""
        super().check()
        assert self.latest() == self.modelled(order)
        assert self.upserts.next() is None


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession, request: pytest.FixtureRequest) -> LatestLake:
    """Nothing has landed; rows that are deleted go, unless the test says otherwise."""
    return LatestLake(root=tmp_path, spark=spark, deletes=getattr(request, "param", Deletes.HARD))


both_ways = pytest.mark.parametrize("lake", list(Deletes), indirect=True)


@both_ways
def test_the_newest_record_of_a_key_is_its_row(lake: LatestLake) -> None:
    """By offset within a partition; what has no key has no row; a tombstone deletes."""
    lake.land_records(("a", "1"), ("b", "1"), (None, "x"), ("a", "2"), ("c", None))
    lake.land_records(("a", "other"), partition=1)
    merge = lake.merge()
    assert merge is not None
    assert merge.how is How.ALL
    lake.check()
    lake.land_records(("b", None), ("a", "3"), ("d", "1"), ("d", None), ("d", "2"))
    merge = lake.merge()
    assert merge is not None
    assert merge.how is How.NEW
    lake.check()
    rows = lake.latest()
    assert rows[0, b"a"]["value"] == "3"
    assert rows[1, b"a"]["value"] == "other"
    if lake.deletes is Deletes.SOFT:
        # The content that it had, and where it was deleted.
        assert (rows[0, b"b"]["value"], rows[0, b"b"]["deleted"]) == ("1", True)
        assert rows[0, b"b"]["offset"] == 5
    else:
        assert (0, b"b") not in rows
    assert lake.merge() is None


@both_ways
def test_a_record_that_comes_late_never_rolls_a_row_back(lake: LatestLake) -> None:
    """What was quarantined and is decoded later, of keys that are newer, deleted, or unknown."""
    lake.broken = {0, 1, 2}
    lake.land_records(("a", "old"), ("b", "old"), ("c", "old"))
    lake.land_records(("a", "new"), ("b", None))
    lake.merge()
    lake.check()
    lake.broken = ()
    records = lake.quarantine.records()
    spans = {0: SpanSet.of([Span(0, 3)])}
    plan = lake.decoding.replay(records[0].topic_id, spans).plan
    assert plan is not None
    lake.ingest.execute(plan.sequence)
    merge = lake.merge()
    assert merge is not None
    assert merge.how is How.KEYS
    lake.check()
    assert lake.shown() == {"a": "new", "c": "old"}


def test_what_is_undone_leaves_and_what_was_before_it_is_back(lake: LatestLake) -> None:
    """A deletion as well."""
    lake.land_records(("a", "1"), ("b", "1"))
    undone = lake.land_records(("a", "2"), ("b", None), ("c", "1"))
    lake.merge()
    lake.bronze.undo.undo(undone, "test", "not meant")
    merge = lake.merge()
    assert merge is not None
    assert merge.how is How.KEYS
    lake.check()
    assert lake.shown() == {"a": "1", "b": "1"}


def test_a_table_that_was_taken_back_or_lost_is_made_anew(lake: LatestLake) -> None:
    """From the typed table, which has all records."""
    lake.land_records(("a", "1"))
    lake.merge()
    lake.land_records(("a", "2"), ("b", "1"))
    lake.merge()
    DeltaTable(lake.latest_uri).restore(1)
    merge = lake.merge()
    assert merge is not None
    assert merge.how is How.ALL
    lake.check()
    # Of the typed table nobody knows what somebody else has done.
    DeltaTable(lake.typed_uri).update(updates={"value": "'changed'"}, predicate="key IS NOT NULL")
    merge = lake.merge()
    assert merge is not None
    assert merge.how is How.ALL
    assert set(lake.shown().values()) == {"changed"}


def test_two_drivers_from_one_place_are_noticed(lake: LatestLake) -> None:
    """Each was right by itself; what was undone in between would stay."""
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
    assert merge.how is How.ALL
    lake.check()


def test_what_others_do_to_the_table_is_mended(lake: LatestLake) -> None:
    """Rows that they delete, a folder that is gone while a driver was under way."""
    lake.land_records(("a", "1"), ("b", "1"))
    lake.merge()
    DeltaTable(lake.latest_uri).delete("key IS NOT NULL")
    lake.merge()
    lake.check()
    lake.land_records(("c", "1"))
    lake.run()
    late = lake.upserts.next()
    assert late is not None
    shutil.rmtree(lake.latest_uri)
    lake.upserts.latest.prepare("events", lake.table.columns())
    lake.merger.merge(late)
    lake.merge()
    lake.check()


def test_another_rule_makes_the_table_anew(lake: LatestLake) -> None:
    """Deletions are shown in the other way, those of before as well."""
    lake.land_records(("a", "1"), ("a", None), ("b", "1"))
    lake.merge()
    lake.deletes = Deletes.SOFT
    merge = lake.merge()
    assert merge is not None
    assert merge.how is How.ALL
    lake.check()
    assert lake.latest()[0, b"a"]["value"] == "1"


def test_rows_of_before_that_cannot_be_read_any_more(lake: LatestLake) -> None:
    """Maintenance has removed their files: all rows are looked at instead."""
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
    assert merge.how is How.KEYS
    lake.check()


def test_compaction_and_fences_are_no_reason_to_merge(lake: LatestLake) -> None:
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


def test_a_driver_that_comes_late_changes_nothing(lake: LatestLake) -> None:
    """It was stopped before its merge, and others have merged more since."""
    lake.land_records(("a", "1"), ("b", "1"))
    lake.merge()
    lake.land_records(("a", "2"), ("b", None), ("c", "1"))
    lake.run()
    late = lake.upserts.next()
    assert late is not None
    lake.upserts.execute(lake.merger)
    lake.land_records(("a", "3"), ("b", None), ("c", None))
    lake.merge()
    lake.check()
    before = DeltaTable(lake.latest_uri).version()
    lake.merger.merge(late)
    assert DeltaTable(lake.latest_uri).version() == before
    lake.check()


def test_a_topic_that_was_made_again_goes_on_in_the_same_rows(lake: LatestLake) -> None:
    """Its records are newer than all of the one before, whatever their offsets."""
    lake.land_records(("a", "1"), ("a", "2"), ("b", "1"))
    lake.merge()
    lake.payloads.kafka.create("events", 2, "id-2")
    lake.bronze.decisions.new_incarnation("test", "made again")
    lake.payloads.values.clear()
    lake.land_records(("a", "again"))
    lake.merge()
    assert lake.latest() == lake.modelled(("id-1", "id-2"))
    assert lake.shown() == {"a": "again", "b": "1"}


def actions(random: Random, lake: LatestLake) -> Iterator[str]:  # noqa: C901  one for each kind
    """Something that happens to the tables, again and again."""
    while True:
        action = random.choice(["land", "land", "land", "break", "replay", "undo", "restore"])
        if action in ("land", "break"):
            partition = random.randrange(2)
            first = lake.payloads.kafka.topics["events"][partition].end
            count = random.randrange(1, 6)
            if action == "break" and partition == 0:
                lake.broken = {*lake.broken, *range(first, first + count, 2)}
            lake.land_records(
                *(
                    (
                        random.choice(["a", "b", "c", "d", None]),
                        random.choice([None, "1", "2", "3"]),
                    )
                    for _ in range(count)
                ),
                partition=partition,
            )
        elif action == "replay":
            kept = lake.quarantine.records()
            if not kept:
                continue
            some = random.sample(kept, random.randrange(1, len(kept) + 1))
            spans = {0: SpanSet.of([Span(each.offset, each.offset + 1) for each in some])}
            lake.run()
            lake.broken = set(lake.broken) - {each.offset for each in some}
            plan = lake.decoding.replay("id-1", spans).plan
            assert plan is not None
            lake.ingest.execute(plan.sequence)
        elif action == "undo":
            records = lake.bronze.control.ledger("events").plans.values()
            landed = [r for r in records if r.landing and r.abandoned is None]
            if len(landed) < 2:
                continue
            record = random.choice(landed)
            lake.bronze.undo.undo(record.plan.sequence, "test", "by chance")
            if random.random() < 0.5:
                # They come back, below what has landed since.
                plan = lake.bronze.planner.plan("again").plan
                if plan is not None:
                    lake.bronze.ingest.execute(plan.sequence)
        else:
            latest = DeltaTable(lake.latest_uri)
            if latest.version() < 2:
                continue
            latest.restore(random.randrange(1, latest.version()))
        yield action


@both_ways
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.faults) for seed in range(1, 6))]
)
def test_whatever_happens_the_table_is_what_the_model_says(lake: LatestLake, seed: int) -> None:
    """Random landings, quarantines, replays, undo and RESTOREs, merged now and then."""
    random = Random(seed)
    lake.land_records(("a", "1"))
    lake.merge()
    done = []
    for number, action in enumerate(actions(random, lake)):
        done.append(action)
        if random.random() < 0.6:
            lake.merge()
            lake.check()
        if number == 11:
            break
    lake.merge()
    print(f"seed {seed}: {done}")
    lake.check()


_ROW = "id BIGINT, name STRING"
_ENVELOPE = (
    f"key STRING, value STRUCT<before: STRUCT<{_ROW}>, after: STRUCT<{_ROW}>, op: STRING>, "
    "topic_id STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, plan_sequence BIGINT"
)


@pytest.mark.parametrize("deletes", list(Deletes))
def test_debeziums_envelope_is_taken_off(
    tmp_path: Path, spark: SparkSession, deletes: Deletes
) -> None:
    """The content is what is after a change; a deletion is told twice, and a message by no row."""
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
    typed, uri = tmp_path / "typed", tmp_path / "latest"
    rows = [(key, value, "id-1", 0, n, None, 1) for n, (key, value) in enumerate(changes)]
    spark.createDataFrame(rows, _ENVELOPE).write.format("delta").save(str(typed))
    latest = DeltaLatest(str(uri), Envelope.DEBEZIUM)
    columns = DeltaDataTable(str(typed)).columns()
    latest.prepare("events", {part: columns[part] for part in Part})
    spec = UpsertSpec(target="latest", deletes=deletes, envelope=Envelope.DEBEZIUM)
    merge = Merge(
        how=How.ALL,
        since=None,
        version=0,
        changes=Changes(),
        order=("id-1",),
        typed_table="typed",
        rule="any",
        base="one",
    )
    SparkMerger(spark, str(typed), str(uri), spec).merge(merge)
    found = {
        row["key"]: (row["value"], row["deleted"], row["offset"])
        for row in pa.table(DeltaTable(uri).scan()).to_pylist()
    }
    kept = {"b": (old, True, 4), "c": (None, True, 5)} if deletes is Deletes.SOFT else {}
    assert found == {"a": (new, False, 1), "e": (old, False, 7), **kept}


def test_values_that_are_in_no_envelope_are_refused(tmp_path: Path) -> None:
    """Before anything is made."""
    latest = DeltaLatest(str(tmp_path / "latest"), Envelope.DEBEZIUM)
    with pytest.raises(ColumnsDiffer, match="the fields `after` and `op`"):
        latest.prepare("events", {Part.KEY: "string", Part.VALUE: Struct((("after", "long"),))})
    assert not (tmp_path / "latest").exists()
