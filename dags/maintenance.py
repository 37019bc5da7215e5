"""The DAG that keeps tables small and removes what nobody needs any more."""

from __future__ import annotations

from datetime import timedelta

from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, Param

from tidemark.airflow.chain import START_DATE, default_args, timetable
from tidemark.airflow.maintenance import maintain_shared, maintain_table, prune_pages
from tidemark.airflow.texts import MAINTENANCE_PAGE
from tidemark.app import App
from tidemark.maintenance.rules import DEFAULT_PAGES_RETENTION, DEFAULT_RETENTION

KEEP_HOURS = DEFAULT_RETENTION // timedelta(hours=1)

with DAG(
    dag_id="tidemark_maintenance",
    description="Compact tables, and remove files and pages that nobody needs",
    doc_md=MAINTENANCE_PAGE,
    schedule=timetable("@daily"),
    start_date=START_DATE,
    catchup=False,
    max_active_runs=1,
    default_args=default_args(retries=3),
    tags=["tidemark", "maintenance"],
    params={
        "keep_hours": Param(
            KEEP_HOURS,
            type="integer",
            minimum=0,
            title="Retention of files",
            description=(
                "Files of table versions younger than so many hours stay. Less than "
                f"{KEEP_HOURS} is refused for tables that do not say so themselves."
            ),
        ),
        "keep_docs_days": Param(
            DEFAULT_PAGES_RETENTION.days,
            type="integer",
            minimum=1,
            title="Retention of quality pages",
            description="Pages of checks younger than so many days stay, and each newest one.",
        ),
        "dry_run": Param(
            False,
            type="boolean",
            title="Dry run",
            description="Only tell in the logs what would be removed.",
        ),
    },
):
    # No task waits for another one: each that fails fails the run, and stops nothing else.
    PythonOperator.partial(
        task_id="tables",
        python_callable=maintain_table,
        # Compacting takes a core and memory, which runs of pipelines need as well.
        max_active_tis_per_dagrun=1,
        map_index_template="{{ task.op_kwargs['pipeline'] }}",
        execution_timeout=timedelta(hours=6),
        doc_md="Compacts a pipeline's data table and removes files that nobody needs. No Spark.",
    ).expand(op_kwargs=[{"pipeline": name} for name in App.from_environment().data_tables()])
    PythonOperator(
        task_id="control",
        python_callable=maintain_shared,
        execution_timeout=timedelta(hours=2),
        doc_md="The same for the tables that pipelines share: control, quality, status.",
    )
    PythonOperator(
        task_id="quality_docs",
        python_callable=prune_pages,
        execution_timeout=timedelta(minutes=30),
        doc_md="Removes old pages of quality checks. Their results stay in the results table.",
    )
