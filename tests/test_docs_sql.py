"""SQL of the pages about running it, unchanged, in DuckDB (the control table's page: its tests)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
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
from tests.support.typed_lake import TypedLake
from tidemark.backfill.selection import select
from tidemark.core.offsets import Span
from tidemark.lake.status_table import write_status
from tidemark.quality.check_results import CheckResult, QualityReport, Severity
from tidemark.quality.check_results_table import DeltaCheckResults
from tidemark.quality.publication import PublicationDecision, PublicationStatus
from tidemark.quality.publication_table import DeltaPublicationTable
from tidemark.report.status import status_row
from tidemark.spec.decode import DecodeSpec, RegisteredSchema
from tidemark.spec.layout import Layout
from tidemark.spec.loading import load_specs
from tidemark.spec.model import StartPolicy
from tidemark.spec.ref import PipelineRef
from tidemark.spec.upsert import Envelope
from tidemark.typed.columns import typed_schema
from tidemark.typed.schema_table import DeltaSchemaStore
from tidemark.upsert.table import upsert_schema


def answer(page: str, beginning: str, tables: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """What the one query of a page that begins so answers."""
    text = (PROJECT / "docs" / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^ *```sql\n(.*?)^ *```", text, flags=re.MULTILINE | re.DOTALL)
    (query,) = (block for block in blocks if block.strip().startswith(beginning))
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for name, rows in tables.items():
            connection.register(name, rows)
        # Each engine's way to name a table by its path, and Spark's to quote a column.
        named = re.sub(r"delta\.`.*/(\w+)`|delta_scan\('.*/(\w+)'\)", r"\1\2", query)
        return connection.execute(named.replace("`", '"')).fetchall()


def decoder(page: str, folder: Path) -> DecodeSpec:
    """The decoder of the spec that a page begins with."""
    text = (PROJECT / "docs" / page).read_text(encoding="utf-8")
    spec_text = text.partition("```yaml\n")[2].partition("```")[0]
    name = spec_text.splitlines()[0].removeprefix("name: ")
    (folder / f"{name}.yaml").write_text(spec_text, encoding="utf-8")
    (spec,) = load_specs(folder, Layout(project=folder, home=folder)).specs.values()
    assert spec.decode is not None
    return spec.decode


@pytest.fixture
def lake(tmp_path: Path) -> FileLake:
    """Pipeline `prices`, begun at the end of five and three records."""
    spec = make_spec(ref=PipelineRef("prices"), start=StartPolicy.LATEST)
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
    told = answer("backfills.md", "SELECT requested", {"offset_ranges": offset_ranges(lake)})
    assert told == [("ops", chunks, 1)]


def test_alarms(lake: FileLake, tmp_path: Path) -> None:
    """The pipeline that has one, and what it is."""
    alarming = replace(lake.spec, alarms=replace(lake.spec.alarms, lag_records=1))
    lake.kafka.produce("events", 0, 2)
    for name, spec in {"calm": lake.spec, "alarming": alarming}.items():
        lake.spec = spec
        row = {**status_row("prices", lake.status(), NOW), "pipeline": name}
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


def test_failed_checks_and_the_share_of_the_most_frequent_key(
    lake: FileLake, tmp_path: Path
) -> None:
    """Of each plan in its newest attempt, and of no other pipeline."""
    skew = CheckResult(
        check="top_key_percent",
        column=None,
        severity=Severity.WARNING,
        passed=True,
        observed="20 (key foo)",
        expectation="at most 50",
        value=20.0,
    )
    price = replace(skew, check="rule", column="price", observed="1 of 2", value=50.0)
    attempts = [
        ("prices", 1, 0, (replace(skew, value=90.0, passed=False), price)),
        ("prices", 1, 5, (skew, price)),
        ("prices", 2, 0, (replace(skew, value=30.0), replace(price, passed=False))),
        ("orders", 3, 0, (replace(skew, value=99.0, passed=False),)),
    ]
    for pipeline, plan, minutes, results in attempts:
        report = QualityReport(
            pipeline=pipeline,
            plan_sequence=plan,
            table_version=plan,
            run_at=NOW + timedelta(minutes=minutes),
            results=results,
            data_docs="none",
        )
        DeltaCheckResults(str(tmp_path / "results")).append(report)
    tables = {"results": _rows(tmp_path / "results")}
    assert answer("quality.md", "-- DuckDB: failed checks", tables) == [
        (2, "warning", "rule", "price", "1 of 2", "at most 50")
    ]
    assert answer("quality.md", "-- Spark SQL: the share of the most frequent key", tables) == [
        (1, 20.0),
        (2, 30.0),
    ]


def test_plans_that_were_ever_blocked_or_rejected(lake: FileLake, tmp_path: Path) -> None:
    """Lists all decisions about such a plan, by place and time."""
    lake.table.prepare("prices")
    table = DeltaPublicationTable(str(tmp_path / "publication"), str(lake.uri))
    for statuses in (
        [PublicationStatus.PUBLISHED],
        [PublicationStatus.BLOCKED, PublicationStatus.RELEASED],
    ):
        lake.kafka.produce("events", 0, 2)
        plan = lake.planner.plan(f"run {len(lake.ledger.plans)}").plan
        assert plan is not None
        landing = lake.ingest.execute(plan.sequence).landing
        for minutes, status in enumerate(statuses):
            at = NOW + timedelta(minutes=minutes)
            decision = PublicationDecision(plan=plan.sequence, status=status, decided_at=at)
            if status is PublicationStatus.RELEASED:
                decision = replace(decision, decided_by="ann", reason="it is right")
            table.append(plan, landing, decision)
    told = answer(
        "quality.md", "-- DuckDB: offsets", {"publication": _rows(tmp_path / "publication")}
    )
    assert told == [
        (2, 0, 7, 9, "blocked", NOW, None, None),
        (2, 0, 7, 9, "released", NOW + timedelta(minutes=1), "ann", "it is right"),
    ]


def test_decoded_prices(tmp_path: Path) -> None:
    """The query fits the spec of its page; a tombstone has no price."""
    schema = pa.schema(typed_schema(decoder("typed.md", tmp_path)).to_arrow())
    quotes = [("A", 1), ("A", 3), ("B", 2)]
    values = [*({"ticker": ticker, "price": Decimal(price)} for ticker, price in quotes), None]
    prices = pa.Table.from_pylist([{"value": value} for value in values], schema)
    told = answer("typed.md", "SELECT value.ticker", {"prices": prices})
    assert set(told) == {("A", Decimal(3)), ("B", Decimal(2)), (None, None)}


def test_the_schema_behind_an_id(tmp_path: Path) -> None:
    """As the registry said it."""
    schemas = DeltaSchemaStore(str(tmp_path / "schemas"), "registry", lambda: NOW)
    schemas.keep([RegisteredSchema(id=n, kind="AVRO", text=f'"{n}"') for n in (6, 7)])
    told = answer("typed.md", "SELECT schema", {"schemas": _rows(tmp_path / "schemas")})
    assert told == [('"7"',)]


def test_what_is_in_quarantine_by_reason(tmp_path: Path) -> None:
    """Records that were decoded since are not counted."""
    lake = TypedLake(root=tmp_path, broken=(1, 2, 4))
    lake.bronze.run(6)
    lake.run()
    lake.broken = (1, 2)
    lake.replay(Span(4, 5))
    rows = _rows(tmp_path / lake.decode.quarantine_target)
    assert len(rows) == 3
    told = answer("typed.md", "SELECT reason", {"prices_quarantine": rows})
    assert told == [("malformed", None, 2)]


def test_latest_balances(tmp_path: Path) -> None:
    """The query fits the spec of its page; what is marked as deleted is left out."""
    decode = decoder("upsert.md", tmp_path)
    columns = {part: spec.column for part, spec in decode.parts.items() if spec.column}
    schema = pa.schema(upsert_schema(columns, Envelope.NONE).to_arrow())
    accounts = [("a", False), ("b", True)]
    rows = [{"key": key, "value": {"balance": 1}, "deleted": gone} for key, gone in accounts]
    latest = {"accounts_latest": pa.Table.from_pylist(rows, schema)}
    assert answer("upsert.md", "SELECT key", latest) == [("a", Decimal(1))]
