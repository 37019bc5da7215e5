"""Tests that `tidemark sql` runs the SQL of documentation pages unchanged.

tests/delta/test_control_table.py also runs the SQL of the control table's page in Spark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable, Schema, write_deltalake

from tests.conftest import PROJECT
from tests.support.file_lake import FileLake
from tests.support.plans import make_spec
from tests.support.publication import record_decision
from tests.support.services import NOW
from tests.support.typed_lake import TypedLake
from tidemark.app.app import App
from tidemark.bronze.backfill.selection import select
from tidemark.core.offsets import Span
from tidemark.core.publication import PublicationStatus
from tidemark.delta import control_table, status_history, status_table
from tidemark.delta.columns import BRONZE_SCHEMA, nullable_column
from tidemark.delta.status_history import append_statuses
from tidemark.delta.status_table import write_status
from tidemark.ops.report.status import status_row
from tidemark.quality import check_results_table
from tidemark.quality.check_results import CheckResult, QualityReport, Severity
from tidemark.quality.check_results_table import DeltaCheckResults
from tidemark.silver.typed import schema_table
from tidemark.silver.typed.columns import INDEX_SCHEMA, typed_schema
from tidemark.silver.typed.schema_table import DeltaSchemaStore
from tidemark.silver.upsert.table import upsert_schema
from tidemark.spec.decode import DecodeSpec, Part, RegisteredSchema
from tidemark.spec.fields import FieldType, Struct
from tidemark.spec.model import StartPolicy
from tidemark.spec.ref import PipelineRef
from tidemark.spec.upsert import UpsertSpec
from tidemark.sql.session import sql_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_ONLY = "-- Spark"
"""First line of the SQL that only Spark runs."""


class Home:
    """A home with pipelines `prices`, `accounts` and `old_prices`; pages query its tables."""

    def __init__(self, folder: Path) -> None:
        specs = folder / "specs"
        specs.mkdir()
        for page in ("typed", "upsert"):
            text = spec_text(f"how-to/{page}.md")
            name = text.splitlines()[0].removeprefix("name: ")
            (specs / f"{name}.yaml").write_text(text, encoding="utf-8")
        (specs / "old_prices.yaml").write_text(
            'name: old_prices\ntopic: old\nschedule: "@daily"\nstart: earliest\n', encoding="utf-8"
        )
        self.lakehouse = folder / "lakehouse"
        self._app = App(
            environ={
                "TIDEMARK_HOME": str(folder),
                "TIDEMARK_PIPELINES": str(specs),
                "TIDEMARK_LAKEHOUSE": str(self.lakehouse),
            }
        )

    def decoder(self, pipeline: str) -> DecodeSpec:
        """Return the section `decode` of a pipeline."""
        decode = self._app.specs[pipeline].decode
        assert decode is not None
        return decode

    def write(self, tables: Mapping[str, pa.Table]) -> None:
        """Write tables, by folder and name."""
        for name, rows in tables.items():
            write_deltalake(self.lakehouse / name, rows)

    def rows(self, page: str, beginning: str) -> list[tuple[Any, ...]]:
        """Return the rows of the one query of a page with this beginning."""
        (query,) = (
            block
            for block in sql_blocks(PROJECT / "docs" / page)
            if block.strip().startswith(beginning)
        )
        (rows,) = self.run([query])
        return rows

    def run(self, texts: Iterable[str]) -> list[list[tuple[Any, ...]]]:
        """Run texts in one session of `tidemark sql`, and return the rows of each."""
        with sql_session(self._app.sql_tables()) as session:
            results = map(session.run, texts)
            return [list(result.rows) if result else [] for result in results]


def spec_text(page: str) -> str:
    """Return the first spec of a page."""
    text = (PROJECT / "docs" / page).read_text(encoding="utf-8")
    return text.partition("```yaml\n")[2].partition("```")[0]


def sql_blocks(page: Path) -> Sequence[str]:
    """Return the SQL of a page, in its order."""
    found = re.findall(r"^ *```sql\n(.*?)^ *```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return [str(block) for block in found]


PAGES_WITH_SQL = [
    pytest.param(page, id=page.stem)
    for page in sorted((PROJECT / "docs").rglob("*.md"))
    if sql_blocks(page)
]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Return a home without tables."""
    folder = tmp_path / "home"
    folder.mkdir()
    return Home(folder)


@pytest.fixture
def lake(tmp_path: Path) -> FileLake:
    """Return pipeline `prices`, started after five and three records."""
    spec = make_spec(ref=PipelineRef("prices"), start=StartPolicy.LATEST)
    lake = FileLake(root=tmp_path, spec=spec)
    lake.kafka.produce("events", 0, 5)
    lake.kafka.produce("events", 1, 3)
    lake.planner.plan("begin")
    return lake


def accounts_schema(home: Home) -> Schema:
    """Return the columns of the upsert table of `accounts`."""
    parts = home.decoder("accounts").parts
    columns = {part: spec.column for part, spec in parts.items() if spec.column}
    return upsert_schema(columns, UpsertSpec(target=""))


@pytest.fixture
def full_home(home: Home) -> Home:
    """Return a home with all tables that pages query, without rows."""
    old_prices = [
        ("partition", "integer"),
        ("offset", "long"),
        ("ticker", "string"),
        ("price", "double"),
    ]
    schemas = {
        "control/offset_ranges": control_table.COLUMNS,
        "control/status": status_table.COLUMNS,
        "control/status_history": status_history.COLUMNS,
        "control/schemas": schema_table.COLUMNS,
        "quality/results": check_results_table.SCHEMA,
        "bronze/prices": BRONZE_SCHEMA,
        "bronze/old_prices": Schema([nullable_column(*each) for each in old_prices]),
        "silver/prices": typed_schema(home.decoder("prices")),
        "silver/prices_quarantine": INDEX_SCHEMA,
        "silver/accounts_latest": accounts_schema(home),
    }
    for name, schema in schemas.items():
        DeltaTable.create(home.lakehouse / name, schema)
    return home


@pytest.mark.parametrize("page", PAGES_WITH_SQL)
def test_all_sql_of_a_page_fits_the_tables(page: Path, full_home: Home) -> None:
    """The tests below and those of the control table's page check the answers."""
    full_home.run(block for block in sql_blocks(page) if SPARK_ONLY not in block)


@pytest.mark.spark
def test_spark_shows_an_old_and_a_new_table_as_one(full_home: Home, spark: SparkSession) -> None:
    """The test runs the SQL of the page in its own lakehouse."""
    quote = '{"ticker": "B", "price": 2.5}'
    (block,) = (
        block
        for block in sql_blocks(PROJECT / "docs" / "how-to" / "migrating.md")
        if SPARK_ONLY in block
    )
    old = full_home.lakehouse / "bronze" / "old_prices"
    spark.sql(f"CREATE TABLE old_prices USING delta LOCATION '{old}'")
    spark.sql("INSERT INTO old_prices (ticker, price) VALUES ('A', 1.0)")
    new = f"delta.`{full_home.lakehouse / 'bronze' / 'prices'}`"
    spark.sql(f"INSERT INTO {new} (value) VALUES (CAST('{quote}' AS BINARY))")
    try:
        spark.sql(block.strip().removesuffix(";").replace("/lakehouse", str(full_home.lakehouse)))
        rows = spark.sql("SELECT * FROM prices_all ORDER BY ticker").collect()
        assert [tuple(row) for row in rows] == [("A", 1.0), ("B", 2.5)]
    finally:
        spark.sql("DROP VIEW IF EXISTS prices_all")
        spark.sql("DROP TABLE old_prices")


def test_the_progress_of_a_backfill_excludes_undone_chunks(lake: FileLake, home: Home) -> None:
    lake.table.prepare("prices")
    wanted = select(offsets=["0:0-5"])
    preview = lake.backfills.preview(wanted, 2, readable_only=False)
    chunks = lake.backfills.request(preview, "ops", approved=False)
    for number in (1, 2):
        plan = lake.backfills.plan_chunk("ops", number).plan
        assert plan is not None
        lake.ingest.execute(plan.sequence)
    lake.undo.undo(1, "ops", "wrong")
    home.write({"control/offset_ranges": rows_in(lake.control_uri)})
    assert home.rows("how-to/backfills.md", "SELECT requested") == [("ops", chunks, 1)]


def test_the_query_for_alarms_lists_alarming_pipelines_only(lake: FileLake, home: Home) -> None:
    alarming = replace(lake.spec, alarms=replace(lake.spec.alarms, lag_records=1))
    lake.kafka.produce("events", 0, 2)
    for name, spec in {"calm": lake.spec, "alarming": alarming}.items():
        lake.spec = spec
        row = {**status_row("prices", lake.status(), NOW), "pipeline": name}
        write_status(str(home.lakehouse / "control" / "status"), [row])
    rows = home.rows("how-to/alarms.md", "SELECT pipeline")
    assert rows == [("alarming", NOW, 2, None, "LagTooLarge")]


def test_the_query_for_the_status_history_lists_the_highest_lag_of_each_day(home: Home) -> None:
    uri = home.lakehouse / "control" / "status_history"
    row = {"pipeline": "prices", "checked_at": NOW, "lag": 3, "lag_seconds": 60.0}
    next_day = NOW + timedelta(hours=13)
    append_statuses(str(uri), [row, {**row, "lag": 9}, {**row, "pipeline": "orders", "lag": 99}])
    append_statuses(str(uri), [{**row, "checked_at": next_day, "lag_seconds": None}])
    rows = home.rows("how-to/alarms.md", "SELECT day")
    assert rows == [(NOW.date(), 9, 1.0), (next_day.date(), 3, None)]


def rows_in(uri: str | Path) -> pa.Table:
    return pa.table(DeltaTable(uri).scan())


def test_the_query_for_start_offsets_lists_offset_and_time(lake: FileLake, home: Home) -> None:
    home.write({"control/offset_ranges": rows_in(lake.control_uri)})
    rows = home.rows("how-to/migrating.md", "SELECT partition, committed")
    assert rows == [(0, 5, NOW), (1, 3, NOW)]


def test_the_query_for_a_migration_lists_partitions_with_a_gap_only(
    lake: FileLake, home: Home
) -> None:
    old = pa.table({"partition": [0, 0, 1], "offset": [3, 4, 1]})
    home.write({"control/offset_ranges": rows_in(lake.control_uri), "bronze/old_prices": old})
    assert home.rows("how-to/migrating.md", "SELECT coalesce") == [(1, 2, 3)]


def test_the_queries_for_checks_use_the_newest_attempt(home: Home) -> None:
    skew = CheckResult(
        check="largest_partition_percent",
        column=None,
        severity=Severity.WARNING,
        passed=True,
        observed="20 (partition 0)",
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
            data_docs=None,
        )
        DeltaCheckResults(str(home.lakehouse / "quality" / "results")).append(report)
    assert home.rows("reference/quality.md", "-- Failed checks") == [
        (2, "warning", "rule", "price", "1 of 2", "at most 50")
    ]
    assert home.rows("reference/quality.md", "-- The share of the largest partition") == [
        (1, 20.0),
        (2, 30.0),
    ]


def test_the_query_for_blocked_plans_lists_decisions(lake: FileLake, home: Home) -> None:
    lake.table.prepare("prices")
    for statuses in (
        [PublicationStatus.PUBLISHED],
        [PublicationStatus.BLOCKED, PublicationStatus.RELEASED],
    ):
        lake.kafka.produce("events", 0, 2)
        plan = lake.planner.plan(f"run {len(lake.ledger.plans)}").plan
        assert plan is not None
        lake.ingest.execute(plan.sequence)
        for status in statuses:
            by = {"decided_by": "ann", "reason": "it is right"}
            values = by if status is PublicationStatus.RELEASED else {}
            record_decision(lake.control, "prices", plan.sequence, status, **values)
    home.write({"control/offset_ranges": rows_in(lake.control_uri)})
    rows = home.rows("reference/quality.md", "-- Offsets")
    assert rows == [
        (2, 0, 7, 9, "blocked", NOW, None, None),
        (2, 0, 7, 9, "released", NOW, "ann", "it is right"),
    ]


def test_the_query_for_prices_fits_the_spec_of_its_page(home: Home) -> None:
    schema = pa.schema(typed_schema(home.decoder("prices")).to_arrow())
    quotes = [("A", 1), ("A", 3), ("B", 2)]
    values = [*({"ticker": ticker, "price": Decimal(price)} for ticker, price in quotes), None]
    prices = pa.Table.from_pylist([{"value": value} for value in values], schema)
    home.write({"silver/prices": prices})
    rows = home.rows("how-to/typed.md", "SELECT value.ticker")
    assert set(rows) == {("A", Decimal(3)), ("B", Decimal(2)), (None, None)}


def test_the_query_for_a_schema_returns_the_registered_text(home: Home) -> None:
    schemas = DeltaSchemaStore(str(home.lakehouse / "control" / "schemas"), "registry", lambda: NOW)
    schemas.store([RegisteredSchema(id=n, kind="AVRO", text=f'"{n}"') for n in (6, 7)])
    assert home.rows("how-to/typed.md", "SELECT schema") == [('"7"',)]


@pytest.mark.slow
def test_the_query_for_quarantine_excludes_decoded_records(tmp_path: Path, home: Home) -> None:
    lake = TypedLake(root=tmp_path, broken=(1, 2, 4))
    lake.bronze.run(6)
    lake.run()
    lake.broken = (1, 2)
    lake.replay(Span(4, 5))
    home.write({"silver/prices_quarantine": rows_in(lake.quarantine_uri)})
    assert home.rows("how-to/typed.md", "SELECT reason") == [("malformed", None, 2)]


def test_the_query_for_balances_excludes_deleted_rows(home: Home) -> None:
    schema = pa.schema(accounts_schema(home).to_arrow())
    accounts = [("a", False), ("b", True)]
    rows = [
        {"key": key, "value": {"balance": 1}, "deleted": is_deleted} for key, is_deleted in accounts
    ]
    home.write({"silver/accounts_latest": pa.Table.from_pylist(rows, schema)})
    assert home.rows("how-to/upsert.md", "SELECT key") == [("a", Decimal(1))]


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
