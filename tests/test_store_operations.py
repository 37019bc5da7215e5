"""Operations on a pipeline whose tables are in an object store, by the commands of an operator."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.support.request_steps import counted_home
from tests.support.store_home import PIPELINE, StoreHome

RECORDS = 30


def places(home: StoreHome, table: str) -> list[tuple[int, int]]:
    """Return partition and offset of every row of a table, as delta-rs reads it."""
    rows = pa.table(DeltaTable(f"{home.lakehouse}/{table}").scan()).to_pylist()
    return sorted((row["partition"], row["offset"]) for row in rows)


@pytest.mark.store
@pytest.mark.slow
def test_repairs_and_maintenance_change_tables_in_an_object_store(tmp_path: Path) -> None:
    with counted_home(tmp_path) as (home, _):
        home.prepare("operations")
        home.place("operations")
        everything = places(home, f"bronze/{PIPELINE}")
        assert len(everything) == 2 * RECORDS

        home.command("undo", PIPELINE, "--plan", "2", "--reason", "a trial")
        assert len(places(home, f"bronze/{PIPELINE}")) == RECORDS
        # This run also lands the undone offsets again.
        home.command("run", PIPELINE)
        for table in (f"bronze/{PIPELINE}", f"silver/{PIPELINE}"):
            assert places(home, table) == everything

        home.command("backfill", PIPELINE, "--plan", "1", "--replace", "--reason", "a trial")
        home.command("run", PIPELINE)
        (maintained, *_) = home.command("maintain", PIPELINE)["tables"]
        assert maintained["files_after"] < maintained["files_before"]

        for table in (f"bronze/{PIPELINE}", f"silver/{PIPELINE}"):
            assert places(home, table) == everything
        partitions = home.command("verify", PIPELINE)["partitions"]
        assert [each["rows"] for each in partitions] == [2 * RECORDS // 3] * 3
