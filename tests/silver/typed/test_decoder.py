"""Typed tables of recreated topics, of replaced targets and of other columns; on real tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, Field

from tests.support.typed_lake import DECODE, TypedLake
from tidemark.delta.errors import TableAltered
from tidemark.silver.typed.columns import typed_table
from tidemark.silver.typed.following import ClearedTable
from tidemark.spec.decode import Format, PayloadSpec
from tidemark.spec.fields import Struct

pytestmark = pytest.mark.slow


@pytest.fixture
def lake(tmp_path: Path) -> TypedLake:
    """Nothing has landed."""
    return TypedLake(root=tmp_path)


def offsets(lake: TypedLake) -> list[tuple[int, int]]:
    """Return partition and offset of each typed row."""
    return [place[:2] for place in lake.decoded()]


def land(lake: TypedLake) -> None:
    """Land the offsets after the committed ones."""
    plan = lake.bronze.planner.plan("again").plan
    assert plan is not None
    lake.bronze.ingest.execute(plan.sequence)


# -- rows that land again ------------------------------------------------------------------------


def test_offsets_that_land_again_after_an_undo_are_decoded_again(lake: TypedLake) -> None:
    """Kafka has compacted one of the records away. No decode runs in between."""
    lake.land_and_run(3)
    lake.bronze.undo.undo(1, "test", "a mistake")
    del lake.bronze.kafka.topics["events"][0].records[1]
    land(lake)
    assert lake.state().backlog.missing == lake.state().backlog.surplus == 3
    assert lake.run() == [2]
    lake.check()
    assert offsets(lake) == [(0, 0), (0, 2)]


def test_bronze_rows_of_two_rewinds_are_decoded_again(lake: TypedLake) -> None:
    """A RESTORE brings rows back that were replaced."""
    lake.land_and_run(3)
    lake.bronze.run(2)
    bronze = DeltaTable(lake.bronze.uri)
    bronze.restore(1)
    lake.bronze.repair.rewind("test", "a mistake")
    assert lake.run() == []
    before = DeltaTable(lake.bronze.uri).version()
    lake.bronze.land_again((0, 0, 3))
    lake.run()
    DeltaTable(lake.bronze.uri).restore(before)
    lake.bronze.repair.rewind("test", "a mistake")
    assert lake.state().backlog.missing == 3
    assert lake.run() == [1]
    lake.check()


# -- recreated topics ----------------------------------------------------------------------------


def recreate(lake: TypedLake, topic_id: str) -> None:
    """Recreate the topic, and accept the recreation."""
    lake.bronze.kafka.create("events", 2, topic_id)
    lake.bronze.decisions.accept_recreation("test", "on purpose")


def test_records_of_all_incarnations_of_a_recreated_topic_are_decoded(lake: TypedLake) -> None:
    """One partition has records only before the topic is recreated."""
    lake.bronze.run(3)
    lake.bronze.run(2, partition=1)
    recreate(lake, "id-2")
    lake.bronze.run(2)
    recreate(lake, "id-3")
    lake.bronze.run(1)
    assert lake.run() == [1, 2, 3, 4]
    assert sorted(offsets(lake)) == sorted(lake.bronze.rows())
    lake.check()
    lake.bronze.run(1)
    assert lake.run() == [5]
    lake.check()


def test_an_undo_in_an_older_incarnation_removes_its_typed_rows(lake: TypedLake) -> None:
    """Rows at the same offsets of the newer incarnation stay."""
    lake.land_and_run(3, 1)
    recreate(lake, "id-2")
    lake.land_and_run(3, 2)
    lake.bronze.undo.undo(1, "test", "a mistake", allow_loss=True)
    assert lake.run() == []
    assert offsets(lake) == [(0, 0), (0, 1)]
    assert [(each.topic_id, each.offset) for each in lake.quarantine.records()] == [("id-2", 2)]
    lake.check()


# -- targets and columns -------------------------------------------------------------------------


def test_a_new_target_gets_all_records(lake: TypedLake) -> None:
    lake.land_and_run(4, 1)
    lake.decode = replace(DECODE, target="silver/other")
    assert lake.run() == [1]
    lake.check()


def test_a_table_with_values_may_have_an_own_column_tombstone(lake: TypedLake) -> None:
    """Without the column `value`, the name marks a table with flattened values."""
    lake.land_and_run(1)
    DeltaTable(lake.typed_uri).alter.add_columns(Field("tombstone", "boolean"))
    lake.land_and_run(2)
    assert len(lake.decoded()) == 3
    without_values = typed_table(str(lake.bronze.root / "other"), replace(DECODE, flattens=True))
    without_values.prepare("events")
    with pytest.raises(TableAltered, match="it has the column tombstone and no column value"):
        typed_table(str(lake.bronze.root / "other"), DECODE).prepare("events")


def test_a_wrong_schema_is_corrected_by_a_decode_from_scratch(lake: TypedLake) -> None:
    """Without it, the columns of the table refuse the new schema."""
    lake.land_values([b'{"n": 1}', b"oops", b'{"n": 3}'])
    lake.run()
    lake.land_values([b'{"n": 4}'])
    lake.run()
    value = PayloadSpec(format=Format.JSON, schema=Struct((("n", "long"),)))
    lake.decode, lake.broken = replace(DECODE, value=value), {1}
    with pytest.raises(TableAltered, match="Tidemark cannot add rows"):
        lake.run()
    assert isinstance(lake.state().error, TableAltered)
    expected = ClearedTable(rows=4, offsets=4)
    assert lake.decodes.from_scratch("ada", "numbers", dry_run=True) == expected
    assert len(lake.decoded()) == 4
    assert lake.decodes.from_scratch("ada", "numbers") == expected
    assert lake.decoded() == []
    assert lake.run() == [1, 2]
    decoded: list[Any] = [value for *_, value in lake.decoded()]
    assert decoded == [{"n": 1}, {"n": 3}, {"n": 4}]
    assert lake.quarantined() == [(0, 1)]
    lake.check()


def test_a_decode_from_scratch_without_a_table_changes_nothing(lake: TypedLake) -> None:
    lake.bronze.run(2)
    assert lake.decodes.from_scratch("ada", "a test") == ClearedTable(rows=0, offsets=2)
    assert not lake.typed_uri.exists()
    assert lake.run() == [1]
