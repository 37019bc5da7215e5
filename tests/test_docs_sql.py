"""Tests that the SQL of documentation pages runs unchanged in DuckDB.

tests/lake/test_control_table.py runs the SQL of the control table's page.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable, Schema

from tests.conftest import PROJECT
from tests.support.file_lake import FileLake
from tests.support.plans import make_spec
from tests.support.services import NOW
from tests.support.typed_lake import TypedLake
from tidemark.backfill.selection import select
from tidemark.core.offsets import Span
from tidemark.lake import control_table, status_history, status_table
from tidemark.lake.columns import BRONZE_SCHEMA, nullable_column
from tidemark.lake.status_history import append_statuses
from tidemark.lake.status_table import write_status
from tidemark.quality import check_results_table, publication_table
from tidemark.quality.check_results import CheckResult, QualityReport, Severity
from tidemark.quality.check_results_table import DeltaCheckResults
from tidemark.quality.publication import PublicationDecision, PublicationStatus
from tidemark.quality.publication_table import DeltaPublicationTable
from tidemark.report.status import status_row
from tidemark.spec.decode import DecodeSpec, Part, RegisteredSchema
from tidemark.spec.fields import FieldType, Struct
from tidemark.spec.layout import Layout
from tidemark.spec.loading import load_specs
from tidemark.spec.model import StartPolicy
from tidemark.spec.ref import PipelineRef
from tidemark.spec.upsert import UpsertSpec
from tidemark.typed import schema_table
from tidemark.typed.columns import QUARANTINE_SCHEMA, typed_schema
from tidemark.typed.schema_table import DeltaSchemaStore
from tidemark.upsert.table import upsert_schema


def rows_of_query(page: str, beginning: str, tables: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Return the rows of the one query of a page with this beginning."""
    text = (PROJECT / "docs" / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^ *```sql\n(.*?)^ *```", text, flags=re.MULTILINE | re.DOTALL)
    (query,) = (block for block in blocks if block.strip().startswith(beginning))
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for name, rows in tables.items():
            connection.register(name, rows)
        # The engines name a table by its path in different ways, and Spark quotes columns.
        query_by_name = re.sub(r"delta\.`.*/(\w+)`|delta_scan\('.*/(\w+)'\)", r"\1\2", query)
        return connection.execute(query_by_name.replace("`", '"')).fetchall()


def sql_blocks(page: Path) -> Sequence[str]:
    """Return the SQL of a page, in its order."""
    found = re.findall(r"^ *```sql\n(.*?)^ *```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return [str(block) for block in found]


PAGES_WITH_SQL = [
    pytest.param(page, id=page.stem)
    for page in sorted((PROJECT / "docs").rglob("*.md"))
    if sql_blocks(page)
]


def decoder(page: str, folder: Path) -> DecodeSpec:
    text = (PROJECT / "docs" / page).read_text(encoding="utf-8")
    spec_text = text.partition("```yaml\n")[2].partition("```")[0]
    name = spec_text.splitlines()[0].removeprefix("name: ")
    (folder / f"{name}.yaml").write_text(spec_text, encoding="utf-8")
    decode = load_specs(folder, Layout(project=folder, home=folder)).specs[name].decode
    assert decode is not None
    return decode


@pytest.fixture
def lake(tmp_path: Path) -> FileLake:
    """Return pipeline `prices`, started after five and three records."""
    spec = make_spec(ref=PipelineRef("prices"), start=StartPolicy.LATEST)
    lake = FileLake(root=tmp_path, spec=spec)
    lake.kafka.produce("events", 0, 5)
    lake.kafka.produce("events", 1, 3)
    lake.planner.plan("begin")
    return lake


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, pa.Table]:
    """The tables that pages query, without rows, by name or by folder and name."""
    prices, accounts = (decoder(f"how-to/{page}.md", tmp_path) for page in ("typed", "upsert"))
    columns = {part: spec.column for part, spec in accounts.parts.items() if spec.column}
    old_prices = [
        ("partition", "integer"),
        ("offset", "long"),
        ("ticker", "string"),
        ("price", "double"),
    ]
    schemas = {
        "offset_ranges": control_table.COLUMNS,
        "control/offset_ranges": control_table.COLUMNS,
        "control/status": status_table.COLUMNS,
        "control/status_history": status_history.COLUMNS,
        "control/schemas": schema_table.COLUMNS,
        "quality/publication": publication_table.COLUMNS,
        "quality/results": check_results_table.SCHEMA,
        "results": check_results_table.SCHEMA,
        "bronze/prices": BRONZE_SCHEMA.to_arrow(),
        "prices": BRONZE_SCHEMA.to_arrow(),
        "silver/prices": typed_schema(prices).to_arrow(),
        "silver/prices_quarantine": QUARANTINE_SCHEMA.to_arrow(),
        "silver/accounts_latest": upsert_schema(columns, UpsertSpec(target="")).to_arrow(),
        "old_prices": Schema([nullable_column(*each) for each in old_prices]).to_arrow(),
    }
    return {name: pa.schema(each).empty_table() for name, each in schemas.items()}


@pytest.mark.parametrize("page", PAGES_WITH_SQL)
def test_all_sql_of_a_page_fits_the_tables(page: Path, tables: Mapping[str, pa.Table]) -> None:
    """The tests below and those of the control table's page check the answers."""
    with duckdb.connect() as connection:
        # Spark has this function.
        connection.execute("CREATE MACRO get_json_object(j, p) AS json_extract_string(j, p)")
        for name, rows in tables.items():
            connection.register(name, rows)
        for block in sql_blocks(page):
            named = re.sub(
                r"delta\.`[^`]*?(\w+/\w+)`|delta_scan\('[^']*?(\w+/\w+)'\)", r'"\1\2"', block
            )
            connection.execute(named.replace("`", '"'))


def offset_ranges(lake: FileLake) -> pa.Table:
    return pa.table(DeltaTable(lake.control_uri).scan())


def test_the_progress_of_a_backfill_excludes_undone_chunks(lake: FileLake) -> None:
    lake.table.prepare("prices")
    wanted = select(offsets=["0:0-5"])
    preview = lake.backfills.preview(wanted, 2, readable_only=False)
    chunks = lake.backfills.request(preview, "ops", approved=False)
    for number in (1, 2):
        plan = lake.backfills.plan_chunk("ops", number).plan
        assert plan is not None
        lake.ingest.execute(plan.sequence)
    lake.undo.undo(1, "ops", "wrong")
    rows = rows_of_query(
        "how-to/backfills.md", "SELECT requested", {"offset_ranges": offset_ranges(lake)}
    )
    assert rows == [("ops", chunks, 1)]


def test_the_query_for_alarms_lists_alarming_pipelines_only(lake: FileLake, tmp_path: Path) -> None:
    alarming = replace(lake.spec, alarms=replace(lake.spec.alarms, lag_records=1))
    lake.kafka.produce("events", 0, 2)
    for name, spec in {"calm": lake.spec, "alarming": alarming}.items():
        lake.spec = spec
        row = {**status_row("prices", lake.status(), NOW), "pipeline": name}
        write_status(str(tmp_path / "status"), [row])
    tables = {"status": _rows(tmp_path / "status")}
    rows = rows_of_query("how-to/operations.md", "SELECT pipeline", tables)
    assert rows == [("alarming", NOW, 2, None, "LagTooLarge")]


def test_the_query_for_the_status_history_lists_the_highest_lag_of_each_day(tmp_path: Path) -> None:
    uri = tmp_path / "status_history"
    row = {"pipeline": "prices", "checked_at": NOW, "lag": 3, "lag_seconds": 60.0}
    next_day = NOW + timedelta(hours=13)
    append_statuses(str(uri), [row, {**row, "lag": 9}, {**row, "pipeline": "orders", "lag": 99}])
    append_statuses(str(uri), [{**row, "checked_at": next_day, "lag_seconds": None}])
    rows = rows_of_query("how-to/operations.md", "SELECT day", {"status_history": _rows(uri)})
    assert rows == [(NOW.date(), 9, 1.0), (next_day.date(), 3, None)]


def _rows(uri: Path) -> pa.Table:
    return pa.table(DeltaTable(uri).scan())


def test_the_query_for_start_offsets_lists_offset_and_time(lake: FileLake) -> None:
    rows = rows_of_query(
        "how-to/migrating.md", "SELECT partition, committed", {"offset_ranges": offset_ranges(lake)}
    )
    assert rows == [(0, 5, NOW), (1, 3, NOW)]


def test_the_query_for_a_migration_lists_partitions_with_a_gap_only(lake: FileLake) -> None:
    old = pa.table({"partition": [0, 0, 1], "offset": [3, 4, 1]})
    tables = {"offset_ranges": offset_ranges(lake), "old_prices": old}
    assert rows_of_query("how-to/migrating.md", "SELECT coalesce", tables) == [(1, 2, 3)]


def test_the_queries_for_checks_use_the_newest_attempt(lake: FileLake, tmp_path: Path) -> None:
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
    assert rows_of_query("reference/quality.md", "-- DuckDB: failed checks", tables) == [
        (2, "warning", "rule", "price", "1 of 2", "at most 50")
    ]
    assert rows_of_query(
        "reference/quality.md", "-- Spark SQL: the share of the most frequent key", tables
    ) == [
        (1, 20.0),
        (2, 30.0),
    ]


def test_the_query_for_blocked_plans_lists_decisions(lake: FileLake, tmp_path: Path) -> None:
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
            table.append(plan, landing, decision, table_id=table.table_id())
    rows = rows_of_query(
        "reference/quality.md",
        "-- DuckDB: offsets",
        {"publication": _rows(tmp_path / "publication")},
    )
    assert rows == [
        (2, 0, 7, 9, "blocked", NOW, None, None),
        (2, 0, 7, 9, "released", NOW + timedelta(minutes=1), "ann", "it is right"),
    ]


def test_the_query_for_prices_fits_the_spec_of_its_page(tmp_path: Path) -> None:
    schema = pa.schema(typed_schema(decoder("how-to/typed.md", tmp_path)).to_arrow())
    quotes = [("A", 1), ("A", 3), ("B", 2)]
    values = [*({"ticker": ticker, "price": Decimal(price)} for ticker, price in quotes), None]
    prices = pa.Table.from_pylist([{"value": value} for value in values], schema)
    rows = rows_of_query("how-to/typed.md", "SELECT value.ticker", {"prices": prices})
    assert set(rows) == {("A", Decimal(3)), ("B", Decimal(2)), (None, None)}


def test_the_query_for_a_schema_returns_the_registered_text(tmp_path: Path) -> None:
    schemas = DeltaSchemaStore(str(tmp_path / "schemas"), "registry", lambda: NOW)
    schemas.store([RegisteredSchema(id=n, kind="AVRO", text=f'"{n}"') for n in (6, 7)])
    rows = rows_of_query(
        "how-to/typed.md", "SELECT schema", {"schemas": _rows(tmp_path / "schemas")}
    )
    assert rows == [('"7"',)]


def test_the_query_for_quarantine_excludes_decoded_records(tmp_path: Path) -> None:
    lake = TypedLake(root=tmp_path, broken=(1, 2, 4))
    lake.bronze.run(6)
    lake.run()
    lake.broken = (1, 2)
    lake.replay(Span(4, 5))
    rows = _rows(tmp_path / lake.decode.quarantine_target)
    assert len(rows) == 3
    counts = rows_of_query("how-to/typed.md", "SELECT reason", {"prices_quarantine": rows})
    assert counts == [("malformed", None, 2)]


def test_the_query_for_balances_excludes_deleted_rows(tmp_path: Path) -> None:
    decode = decoder("how-to/upsert.md", tmp_path)
    columns = {part: spec.column for part, spec in decode.parts.items() if spec.column}
    schema = pa.schema(upsert_schema(columns, UpsertSpec(target="")).to_arrow())
    accounts = [("a", False), ("b", True)]
    rows = [
        {"key": key, "value": {"balance": 1}, "deleted": is_deleted} for key, is_deleted in accounts
    ]
    latest = {"accounts_latest": pa.Table.from_pylist(rows, schema)}
    assert rows_of_query("how-to/upsert.md", "SELECT key", latest) == [("a", Decimal(1))]


def test_the_model_of_the_dbt_example_has_a_row_for_each_account() -> None:
    """The source is the upsert table of the tutorial's pipeline, at its default target."""
    example = PROJECT / "docs" / "examples" / "dbt" / "models"
    (source,) = yaml.safe_load((example / "payments.yml").read_text())["sources"]
    (table,) = source["tables"]
    path = table["config"]["delta_table_path"]
    assert path == "{{ env_var('LAKEHOUSE') }}/" + f"{source['name']}/{table['name']}"
    columns: dict[Part, FieldType] = {
        Part.KEY: "string",
        Part.VALUE: Struct((("amount", "double"), ("paid_at", "timestamp"))),
    }
    spec = UpsertSpec(target=f"{source['name']}/{table['name']}")
    rows = [
        {"key": "A00", "value": {"amount": 5.5, "paid_at": NOW}, "deleted": False},
        {"key": "A01", "value": {"amount": 1.5, "paid_at": NOW}, "deleted": True},
    ]
    latest = pa.Table.from_pylist(rows, pa.schema(upsert_schema(columns, spec).to_arrow()))
    model = (example / "newest_payments.sql").read_text()
    reference = f"{{{{ source('{source['name']}', '{table['name']}') }}}}"
    assert reference in model
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("latest", latest)
        found = connection.execute(model.replace(reference, "latest"))
        assert [column[0] for column in found.description] == ["account", "amount", "paid_at"]
        assert found.fetchall() == [("A00", 5.5, NOW)]
