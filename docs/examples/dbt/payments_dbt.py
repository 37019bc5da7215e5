"""Builds the dbt models in include/dbt after each change of the upsert table of `payments`."""

from __future__ import annotations

from pathlib import Path

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, Asset

from tidemark.app.app import App

MODELS = Path(__file__).resolve().parent.parent / "include" / "dbt"
LAYOUT = App.from_environment().layout
DBT = LAYOUT.home / "dbt"

with DAG(
    "payments_dbt",
    description=__doc__,
    # Airflow starts the DAG only for an asset with both this name and this URI.
    schedule=[Asset("tidemark_payments_upsert", "x-tidemark://upsert/payments")],
    # DuckDB allows one writer of a database file.
    max_active_runs=1,
):
    BashOperator(
        task_id="build",
        bash_command='"$DBT/bin/dbt" build',
        cwd=str(MODELS),
        env={
            "DBT": str(DBT),
            "DBT_PROFILES_DIR": str(MODELS),
            "DBT_TARGET_PATH": str(DBT / "target"),
            "DBT_LOG_PATH": str(DBT / "logs"),
            "LAKEHOUSE": LAYOUT.lakehouse,
        },
        append_env=True,
    )
