"""Counts of fields that the schema does not name, over real tables without Spark."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.support.typed_lake import TypedLake
from tidemark.core.table_state import TableSize
from tidemark.silver.typed import unnamed
from tidemark.silver.typed.unnamed import (
    MAX_NAMES,
    UnnamedFields,
    newest_plans,
    read_unnamed_fields,
)
from tidemark.spec.decode import DecodeSpec, Format, PayloadSpec
from tidemark.spec.fields import Struct

DECODE = DecodeSpec(
    key=PayloadSpec(),
    value=PayloadSpec(format=Format.JSON, schema=Struct((("n", "long"),)), keeps_rest=True),
    target="silver/events",
)


@pytest.fixture(params=[True, False], ids=["flattened", "one column"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> TypedLake:
    """A typed table without rows in both layouts."""
    return TypedLake(tmp_path, decode=replace(DECODE, flattens=request.param))


def land(lake: TypedLake, *values: dict[str, Any] | None) -> int:
    """Land and decode some values; return the number of the plan."""
    lake.land_values([None if each is None else json.dumps(each).encode() for each in values])
    (plan,) = lake.run()
    return plan


def test_records_and_names_of_a_plan_are_counted(lake: TypedLake) -> None:
    """A name in another case is another field. A long name is shortened."""
    plan = land(lake, {"n": 1}, {"n": 2, "venue": 1, "N": 2}, None, {"venue": None, "x" * 200: 1})
    assert read_unnamed_fields(str(lake.typed_uri), plan, plan) == UnnamedFields(
        first_plan=1, decoded=4, records=2, names={"venue": 2, "N": 1, "x" * 100: 1}
    )
    assert read_unnamed_fields(str(lake.typed_uri), 2, 2) == UnnamedFields(
        first_plan=2, decoded=0, records=0
    )


def test_a_long_list_of_names_ends_with_the_most_frequent(lake: TypedLake) -> None:
    names = [f"f{number:02}" for number in range(MAX_NAMES + 1)]
    plan = land(lake, dict.fromkeys(names, 1), {names[-1]: 1})
    found = read_unnamed_fields(str(lake.typed_uri), plan, plan)
    assert found is not None
    assert list(found.names.items()) == [(names[-1], 2), *((name, 1) for name in names[:-2])]
    assert found.has_more


@pytest.mark.slow
def test_a_report_reads_the_newest_plans_up_to_a_number_of_records_or_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest plan with rows is read regardless of its size."""
    lake = TypedLake(tmp_path, decode=DECODE)
    nothing = TableSize(records=0, bytes=0)
    assert newest_plans(lake.control.ledger("events"), nothing) is None
    for number in range(1, 5):
        land(lake, {f"f{number}": 1}, {f"f{number}": 2})
    lake.bronze.undo.undo(4, "test", "undone")
    lake.run()
    ledger = lake.control.ledger("events")
    assert newest_plans(ledger, nothing) == (1, 3)
    assert newest_plans(ledger, TableSize(records=1, bytes=2**30)) == (3, 3)
    monkeypatch.setattr(unnamed, "_REPORTED_RECORDS", 5)
    assert newest_plans(ledger, nothing) == (2, 3)
    found = read_unnamed_fields(str(lake.typed_uri), 2, 3)
    assert found == UnnamedFields(first_plan=2, decoded=4, records=4, names={"f2": 2, "f3": 2})


def test_a_table_without_unnamed_fields_has_no_counts(tmp_path: Path) -> None:
    """The next plan adds the column to a table of an earlier spec."""
    value = replace(DECODE.value, keeps_rest=False)
    lake = TypedLake(tmp_path, decode=replace(DECODE, value=value))
    assert read_unnamed_fields(str(lake.typed_uri), 1, 1) is None
    land(lake, {"n": 1})
    assert read_unnamed_fields(str(lake.typed_uri), 1, 1) is None


def test_a_text_that_the_counter_cannot_read_counts_as_a_record(tmp_path: Path) -> None:
    rows = {"plan_sequence": pa.array([1, 1]), "_rest": ['{"x": 1}', "{not JSON"]}
    write_deltalake(tmp_path, pa.table(rows))
    found = read_unnamed_fields(str(tmp_path), 1, 1)
    assert found == UnnamedFields(first_plan=1, decoded=2, records=2, names={"x": 1})
