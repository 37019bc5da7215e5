"""SQL of the pages about running it, unchanged, in DuckDB (the control table's page: its tests)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.conftest import PROJECT
from tests.support.file_lake import FileLake
from tests.support.plans import make_spec
from tests.support.services import NOW
from tidemark.adapters.delta.status_table import write_status
from tidemark.core.backfill import select
from tidemark.core.spec import StartPolicy
from tidemark.services.status import row_of


def answer(page: str, beginning: str, tables: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """What the one query of a page that begins so answers."""
    text = (PROJECT / "docs" / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^ *```sql\n(.*?)^ *```", text, flags=re.MULTILINE | re.DOTALL)
    (query,) = (block for block in blocks if block.strip().startswith(beginning))
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for name, rows in tables.items():
            connection.register(name, rows)
        # Spark's way to name a table by its path.
        return connection.execute(re.sub(r"delta\.`.*/(\w+)`", r"\1", query)).fetchall()


@pytest.fixture
def lake(tmp_path: Path) -> FileLake:
    """Pipeline `prices`, begun at the end of five and three records."""
    spec = make_spec(name="prices", start=StartPolicy.LATEST)
    lake = FileLake(root=tmp_path, spec=spec)
    lake.kafka.produce("events", 0, 5)
    lake.kafka.produce("events", 1, 3)
    lake.planner.plan("begin")
    return lake


def offset_ranges(lake: FileLake) -> pa.Table:
    """The control table."""
    return pa.table(DeltaTable(lake.root / "control").scan())


def test_progress_of_a_backfill(lake: FileLake) -> None:
    """Chunks that were undone have not landed."""
    lake.table.prepare("prices")
    wanted = select(offsets=["0:0-5"])
    seen = lake.backfills.preview(wanted, 2, readable_only=False)
    chunks = lake.backfills.request(seen, "ops", approved=False)
    for number in (1, 2):
        plan = lake.backfills.plan_chunk("ops", number).plan
        assert plan is not None
        lake.ingest.execute(plan.sequence)
    lake.undo.undo(1, "ops", "wrong")
    told = answer("backfills.md", "SELECT asked", {"offset_ranges": offset_ranges(lake)})
    assert told == [("ops", chunks, 1)]


def test_alarms(lake: FileLake, tmp_path: Path) -> None:
    """The pipeline that has one, and what it is."""
    alarming = replace(lake.spec, alarms=replace(lake.spec.alarms, lag_records=1))
    lake.kafka.produce("events", 0, 2)
    for name, spec in {"calm": lake.spec, "alarming": alarming}.items():
        lake.spec = spec
        row = {**row_of("prices", lake.status(), NOW), "pipeline": name}
        write_status(str(tmp_path / "status"), [row])
    told = answer("operations.md", "SELECT", {"status": _rows(tmp_path / "status")})
    assert told == [("alarming", NOW, 2, None, "LagTooLarge")]


def _rows(uri: Path) -> pa.Table:
    return pa.table(DeltaTable(uri).scan())


def test_where_a_migrated_pipeline_begins(lake: FileLake) -> None:
    """By partition, and when it was said."""
    told = answer(
        "migrating.md", "SELECT partition, committed", {"offset_ranges": offset_ranges(lake)}
    )
    assert told == [(0, 5, NOW), (1, 3, NOW)]


def test_the_seam_of_a_migration(lake: FileLake) -> None:
    """Partitions where the old table does not end where the new one begins, and no others."""
    old = pa.table({"partition": [0, 0, 1], "offset": [3, 4, 1]})
    tables = {"offset_ranges": offset_ranges(lake), "old_prices": old}
    assert answer("migrating.md", "SELECT coalesce", tables) == [(1, 2, 3)]
