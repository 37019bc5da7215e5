"""The table of latest rows against a model, with Spark's MERGE over real tables."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from _pytest.mark import ParameterSet
from deltalake import DeltaTable

from tests.support.payloads import PayloadLake
from tests.support.typed_lake import DECODE, TypedLake
from tidemark.core.offsets import Span, SpanSet
from tidemark.lake.data_table import DeltaDataTable
from tidemark.lake.errors import ColumnsDiffer
from tidemark.spec.decode import Format, Part, PayloadSpec
from tidemark.spec.fields import Struct
from tidemark.spec.upsert import Changes, Deletes, Envelope, How, Merge, UpsertSpec
from tidemark.upsert.service import Upserts
from tidemark.upsert.spark import SparkMerger
from tidemark.upsert.table import DeltaLatest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

Row = dict[str, Any]

_CONTENT = Struct((("n", "string"),))
_CHANGE = Struct((("before", _CONTENT), ("after", _CONTENT), ("op", "string")))


def change(op: str | None, content: str | None) -> str:
    """What Debezium tells of a row that now has this content, or that had it."""
    row = None if content is None else {"n": content}
    is_there = op not in ("d", "m")
    return json.dumps(
        {"before": None if is_there else row, "after": row if is_there else None, "op": op}
    )


@dataclass
class LatestLake(TypedLake):
    """A typed table, and the table of latest rows that follows it."""

    spark: SparkSession = field(kw_only=True)
    deletes: Deletes = Deletes.SOFT
    envelope: Envelope = Envelope.NONE

    def __post_init__(self) -> None:
        self.bronze = PayloadLake(root=self.root)
        if self.envelope is Envelope.DEBEZIUM:
            changes = PayloadSpec(format=Format.JSON, schema=_CHANGE)
            self.decode = replace(DECODE, value=changes)

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
        latest = DeltaLatest(str(self.latest_uri), self.envelope)
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
        return UpsertSpec(target="silver/latest", deletes=self.deletes, envelope=self.envelope)

    @property
    def merger(self) -> SparkMerger:
        """What merges."""
        return SparkMerger(
            lambda: self.spark, str(self.typed_uri), str(self.latest_uri), self.upsert
        )

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

    def shown(self) -> dict[str, Any]:
        """Contents by key, of what is not deleted."""
        rows = self.latest().values()
        return {row["key"].decode(): row["value"] for row in rows if not row["deleted"]}

    def told(self, value: Any) -> tuple[Any, bool]:
        """The content that a value tells of, and whether it is a deletion."""
        if self.envelope is Envelope.NONE or value is None:
            return value, value is None
        return value["after"], value["op"] == "d"

    def payload(self, random: Random) -> str | None:
        """Some value."""
        content = random.choice(["1", "2", "3"])
        if self.envelope is Envelope.NONE:
            return random.choice([None, content, content, content])
        op = random.choice([None, "c", "u", "r", "d", "d", "m", "tombstone"])
        return None if op == "tombstone" else change(op, content)

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
            after, deleted = self.told(row["value"])
            if after is None and not deleted:
                continue
            newest[place] = row
            if not deleted:
                content[place] = after
        made = {}
        for place, row in newest.items():
            _, deleted = self.told(row["value"])
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


@pytest.fixture
def changes(tmp_path: Path, spark: SparkSession, request: pytest.FixtureRequest) -> LatestLake:
    """The same of Debezium's changes."""
    deletes = getattr(request, "param", Deletes.HARD)
    return LatestLake(root=tmp_path, spark=spark, deletes=deletes, envelope=Envelope.DEBEZIUM)


both_ways = pytest.mark.parametrize("lake", list(Deletes), indirect=True)


def mostly(deletes: Deletes) -> list[ParameterSet]:
    """Both ways, the other one in the long matrix."""
    return [
        pytest.param(each, marks=() if each is deletes else pytest.mark.faults) for each in Deletes
    ]


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


@pytest.mark.parametrize("lake", mostly(Deletes.HARD), indirect=True)
def test_a_backfill_never_rolls_a_row_back(lake: LatestLake) -> None:
    """Below all that has landed: of keys that are newer, deleted, unknown, or gone entirely."""
    early = lake.land_records(("a", "old"), ("b", "old"), ("c", "old"))
    lake.land_records(("a", "new"), ("b", None), ("d", "new"))
    lake.merge()
    lake.bronze.undo.undo(early, "test", "not meant")
    lake.merge()
    lake.check()
    assert lake.shown() == {"a": "new", "d": "new"}
    lake.bronze.land_again((0, 0, 3))
    merge = lake.merge()
    assert merge is not None
    assert merge.how is How.KEYS
    # In the place of nothing, so that only their offsets tell how old they are.
    assert (len(merge.changes.appended), len(merge.changes.replaced)) == (1, 0)
    lake.check()
    assert lake.shown() == {"a": "new", "c": "old", "d": "new"}


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


def test_a_merge_that_meets_another_takes_nothing_of_it_back(
    lake: LatestLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was refused for the other: looking at all rows, it would show less than is there."""
    lake.land_records(("a", "1"))
    undone = lake.land_records(("a", "2"), ("b", "1"))
    lake.merge()
    lake.bronze.undo.undo(undone, "test", "not meant")
    lake.run()
    late = lake.upserts.next()
    assert late is not None
    assert late.how is How.KEYS
    merger, do = lake.merger, SparkMerger._do

    def meet(self: SparkMerger, merge: Merge) -> None:
        if self is merger and merge.how is How.KEYS:
            lake.land_records(("a", "3"), ("c", "1"))
            lake.merge()
            raise ValueError("Delta has refused it")
        do(self, merge)

    monkeypatch.setattr(SparkMerger, "_do", meet)
    merger.merge(late)
    lake.check()
    # The next run has landed again what was undone.
    assert lake.shown() == {"a": "3", "b": "1", "c": "1"}


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
    """It was stopped before its merge, and another has merged the same and more at once."""
    lake.land_records(("a", "1"), ("b", "1"))
    lake.merge()
    lake.land_records(("a", "2"), ("b", None), ("c", "1"))
    lake.run()
    late = lake.upserts.next()
    assert late is not None
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
        action = random.choice(
            ["land", "land", "land", "break", "replay", "undo", "land again", "restore"]
        )
        if action in ("land", "break"):
            partition = random.randrange(2)
            first = lake.payloads.kafka.topics["events"][partition].end
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
        elif action == "land again":
            partition = random.randrange(2)
            end = lake.payloads.kafka.topics["events"][partition].end
            if not end:
                continue
            start = random.randrange(end)
            lake.bronze.land_again((partition, start, random.randrange(start, end) + 1))
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
    """Random landings, quarantines, replays, undo, backfills and RESTOREs, merged now and then."""
    follow(lake, seed)


@pytest.mark.parametrize("changes", list(Deletes), indirect=True)
@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.faults) for seed in range(4)]
)
def test_whatever_happens_debeziums_table_is_what_the_model_says(
    changes: LatestLake, seed: int
) -> None:
    """The same of changes, whose deletions are told twice, once, or not at all."""
    follow(changes, seed)


def follow(lake: LatestLake, seed: int) -> None:
    """Do things by chance, and compare the table with the model all the while."""
    random = Random(seed)
    lake.land_records(("a", lake.payload(random)))
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
    SparkMerger(lambda: spark, str(typed), str(uri), spec).merge(merge)
    found = {
        row["key"]: (row["value"], row["deleted"], row["offset"])
        for row in pa.table(DeltaTable(uri).scan()).to_pylist()
    }
    kept = {"b": (old, True, 4), "c": (None, True, 5)} if deletes is Deletes.SOFT else {}
    assert found == {"a": (new, False, 1), "e": (old, False, 7), **kept}


@pytest.mark.parametrize("changes", mostly(Deletes.SOFT), indirect=True)
def test_debeziums_deletions_in_runs_of_their_own(changes: LatestLake) -> None:
    """The tombstone after a `d` takes no content, and an update after both brings the row back."""
    lake = changes
    lake.land_records(("a", change("c", "1")), ("b", change("r", "1")), ("c", change("c", "1")))
    lake.merge()
    lake.check()
    for payload in (change("d", "1"), None):
        lake.land_records(("a", payload), ("b", payload), ("c", change("m", None)))
        merge = lake.merge()
        assert merge is not None
        assert merge.how is How.NEW
        lake.check()
        assert lake.shown() == {"c": {"n": "1"}}
    kept = {key.decode(): row["value"] for (_, key), row in lake.latest().items()}
    one = {"n": "1"}
    soft = lake.deletes is Deletes.SOFT
    assert kept == ({"a": one, "b": one, "c": one} if soft else {"c": one})
    back = lake.land_records(("a", change("u", "2")), ("c", change("u", "2")))
    merge = lake.merge()
    assert merge is not None
    assert merge.how is How.NEW
    lake.check()
    assert lake.shown() == {"a": {"n": "2"}, "c": {"n": "2"}}
    # What it goes back to is a deletion, and what was before that.
    lake.bronze.undo.undo(back, "test", "not meant")
    merge = lake.merge()
    assert merge is not None
    assert merge.how is How.KEYS
    lake.check()
    assert lake.shown() == {"c": {"n": "1"}}


def test_values_that_are_in_no_envelope_are_refused(tmp_path: Path) -> None:
    """Before anything is made."""
    latest = DeltaLatest(str(tmp_path / "latest"), Envelope.DEBEZIUM)
    with pytest.raises(ColumnsDiffer, match="the fields `after` and `op`"):
        latest.prepare("events", {Part.KEY: "string", Part.VALUE: Struct((("after", "long"),))})
    assert not (tmp_path / "latest").exists()
