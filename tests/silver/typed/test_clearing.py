"""A typed table starts again from its bronze table, with other columns; on real tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from tests.support.typed_lake import DECODE, TypedLake
from tidemark.bronze.repair.errors import UnexplainedRows
from tidemark.core.errors import OnlyCopy
from tidemark.core.offsets import Span
from tidemark.delta.errors import TableAltered
from tidemark.silver.typed.clearing import ClearedTable, TypedClearing
from tidemark.silver.typed.columns import typed_schema, typed_table_of_any_columns
from tidemark.spec.decode import Format, PayloadSpec
from tidemark.spec.fields import Struct

pytestmark = pytest.mark.slow

_JSON = PayloadSpec(format=Format.JSON, schema=Struct((("n", "long"),)))


@pytest.fixture
def lake(tmp_path: Path) -> TypedLake:
    """Nothing has landed."""
    return TypedLake(root=tmp_path)


def clearing(lake: TypedLake, replace_columns: Callable[[], bool] | None = None) -> TypedClearing:
    """Return the service of a lake, as `TypedPart.clear` constructs it."""
    typed = typed_table_of_any_columns(str(lake.typed_uri))
    return TypedClearing(
        planner=replace(lake.decoding, table=lake.tables.pair(typed)),
        replace_columns=replace_columns
        or (lambda: typed.replace_columns(lake.spec.name, typed_schema(lake.decode))),
    )


def land_json(lake: TypedLake) -> None:
    """Land two JSON values and one other text, decode them as text, and correct the schema."""
    lake.land_values([b'{"n": 1}', b"oops", b'{"n": 3}'])
    lake.run()
    lake.land_values([b'{"n": 4}'])
    lake.run()
    lake.decode = replace(DECODE, value=_JSON)
    lake.broken = {1}


def values(lake: TypedLake) -> list[Any]:
    return [value for *_, value in lake.decoded()]


def test_a_wrong_schema_is_corrected_from_the_bronze_table(lake: TypedLake) -> None:
    """Without the clearing, the columns of the table refuse the new schema."""
    land_json(lake)
    with pytest.raises(TableAltered, match="Plans cannot land"):
        lake.run()
    draft = clearing(lake).clear("ada", "numbers", dry_run=True)
    assert draft == ClearedTable(plans=2, records=4, offsets=4)
    assert len(lake.decoded()) == 4
    bronze = lake.bronze_rows()
    assert clearing(lake).clear("ada", "numbers") == draft
    assert (lake.decoded(), lake.quarantined()) == ([], [])
    assert lake.run() == [3]
    assert values(lake) == [{"n": 1}, {"n": 3}, {"n": 4}]
    assert lake.quarantined() == [(0, 1)]
    lake.check()
    assert lake.bronze_rows() == bronze
    ledger = lake.control.ledger("events@typed")
    assert {ledger.plans[each].cancelled_by.requested_by for each in (1, 2)} == {"ada"}  # type: ignore[union-attr]


def test_a_clearing_continues_after_an_interrupt(lake: TypedLake) -> None:
    """The process dies after the undos, before it replaces the columns."""
    land_json(lake)

    def killed() -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        clearing(lake, killed).clear("ada", "numbers")
    with pytest.raises(TableAltered, match="Plans cannot land"):
        lake.run()
    clearing(lake).clear("ada", "numbers")
    assert lake.run() == [3]
    lake.check()


def test_open_plans_and_quarantined_records_start_again_too(lake: TypedLake) -> None:
    """A driver of the open plan lands nothing afterwards."""
    lake.land_and_run(4, 2)
    lake.broken = set()
    lake.replay(Span(2, 3))
    lake.bronze.run(1)
    opened = lake.decoding.plan().plan
    assert opened is not None
    clearing(lake).clear("ada", "again")
    record = lake.control.ledger("events@typed").plans[opened.sequence]
    assert not record.is_open
    assert lake.run() == [opened.sequence + 1]
    assert len(lake.decoded()) == 5
    lake.check()


def test_a_landing_during_a_clearing_is_undone_too(lake: TypedLake) -> None:
    """Another process with the old spec decodes new records after the undos."""
    land_json(lake)
    old = TypedLake(root=lake.root)
    old.bronze = lake.bronze
    done: list[bool] = []

    def replaced_after_a_landing() -> bool:
        if not done:
            done.append(True)
            old.run()
        typed = typed_table_of_any_columns(str(lake.typed_uri))
        return typed.replace_columns(lake.spec.name, typed_schema(lake.decode))

    clearing(lake, replaced_after_a_landing).clear("ada", "numbers")
    assert lake.decoded() == []
    lake.run()
    assert values(lake) == [{"n": 1}, {"n": 3}, {"n": 4}]
    lake.check()


def test_foreign_rows_are_not_removed(lake: TypedLake) -> None:
    """Another program wrote them, so they cannot be decoded again."""
    land_json(lake)
    rows = DeltaTable(lake.typed_uri).to_pyarrow_table().slice(0, 1)
    index = rows.schema.get_field_index("plan_sequence")
    foreign = rows.set_column(index, rows.schema.field(index), [[9]])
    replace_columns = clearing(lake).replace_columns

    def replaced_after_a_foreign_write() -> bool:
        write_deltalake(lake.typed_uri, foreign, mode="append")
        return replace_columns()

    with pytest.raises(UnexplainedRows, match="1 rows"):
        clearing(lake, replaced_after_a_foreign_write).clear("ada", "numbers")
    assert len(lake.decoded()) == 1


def test_typed_rows_stay_if_the_bronze_table_lacks_rows(lake: TypedLake) -> None:
    """Another program deleted raw rows, so that the typed table has their only copy."""
    land_json(lake)
    DeltaTable(lake.bronze.uri).delete('"offset" < 2')
    for dry_run in (True, False):
        with pytest.raises(OnlyCopy, match="lacks 2 rows that landed"):
            clearing(lake).clear("ada", "numbers", dry_run=dry_run)
    assert len(lake.decoded()) == 4


def test_an_undo_keeps_typed_rows_if_the_bronze_table_lacks_rows(lake: TypedLake) -> None:
    """With `allow_loss`, an operator removes the rows nevertheless."""
    lake.land_and_run(3, 1)
    lake.land_and_run(1)
    DeltaTable(lake.bronze.uri).delete('"offset" < 2')
    for dry_run in (True, False):
        with pytest.raises(OnlyCopy, match="lacks 2 rows that landed"):
            lake.undo.undo(1, "ada", "numbers", dry_run=dry_run)
    assert len(lake.decoded()) == 3
    undone = lake.undo.undo(1, "ada", "numbers", allow_loss=True)
    assert (undone.rows, len(lake.decoded())) == (3, 1)
    assert lake.undo.undo(1, "ada", "again").rows == 0


def test_a_table_that_does_not_exist_is_clear(lake: TypedLake) -> None:
    lake.bronze.run(2)
    nothing = ClearedTable(plans=0, records=0, offsets=2)
    assert clearing(lake).clear("ada", "a test") == nothing
    assert lake.run() == [1]
