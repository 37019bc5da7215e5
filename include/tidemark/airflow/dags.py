"""The DAGs of Tidemark.

A file in the DAG folder calls one of these functions:

    from tidemark.airflow.dags import pipeline_dags

    pipeline_dags()

A function builds its DAGs inside `with DAG(...)`, so Airflow registers them for the file that calls
the function. The repository's folder dags/ has one such file for each function.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG

from tidemark.airflow.alarms import deadline, raise_alarms, record_status_of_all
from tidemark.airflow.chain import add_chain, dag_settings, form_field, timetable
from tidemark.airflow.maintenance import maintain_shared, maintain_table, prune_data_docs
from tidemark.airflow.texts import MAINTENANCE_PAGE, STATUS_PAGE, pipelines_page
from tidemark.app import option_texts
from tidemark.app.app import App
from tidemark.ops.maintenance.rules import (
    DEFAULT_DOCS_RETENTION,
    DEFAULT_KEEP_HOURS,
    MOST_KEEP_DAYS,
    MOST_KEEP_HOURS,
)
from tidemark.spec.model import PipelineSpec


def check_specs() -> None:
    """Fail if a spec is invalid, so that Airflow shows its problems as an import error.

    The DAGs of the other specs are in separate files, which still load.
    """
    App.from_environment().spec_folder.check()


def pipeline_dags() -> list[DAG]:
    """Return a DAG for each group, and one for each pipeline without a group.

    An invalid spec has no DAG; `check_specs` shows its problems.
    """
    app = App.from_environment()
    members: dict[str, list[PipelineSpec]] = {}
    for spec in app.specs.values():
        members.setdefault(spec.dag_id, []).append(spec)
    return [_pipeline_dag(app, dag_id, each) for dag_id, each in members.items()]


def _pipeline_dag(app: App, dag_id: str, members: Sequence[PipelineSpec]) -> DAG:
    with DAG(
        dag_id=dag_id,
        description=f"Kafka to Delta Lake: {', '.join(spec.name for spec in members)}",
        doc_md=pipelines_page(members, app.layout),
        schedule=timetable(members[0].schedule),
        **dag_settings(max(spec.retries for spec in members)),
        deadline=[each for spec in members if (each := deadline(spec))],
        tags=["tidemark", *sorted({tag for spec in members for tag in spec.tags})],
    ) as dag:
        add_chain(dag_id, members)
    return dag


def maintenance_dag() -> DAG:
    """Return the DAG that compacts tables and removes unreferenced files."""
    with DAG(
        dag_id="tidemark_maintenance",
        description=option_texts.MAINTAIN,
        doc_md=MAINTENANCE_PAGE,
        schedule=timetable("@daily"),
        **dag_settings(retries=3),
        is_paused_upon_creation=True,
        tags=["tidemark", "maintenance"],
        params={
            "keep_hours": form_field(
                "Retention of files",
                option_texts.KEEP_HOURS,
                default=DEFAULT_KEEP_HOURS,
                type="integer",
                minimum=0,
                maximum=MOST_KEEP_HOURS,
            ),
            "keep_docs_days": form_field(
                "Retention of Data Docs",
                option_texts.KEEP_DOCS_DAYS,
                default=DEFAULT_DOCS_RETENTION.days,
                type="integer",
                minimum=1,
                maximum=MOST_KEEP_DAYS,
            ),
            "dry_run": form_field(
                "Dry run",
                f"{option_texts.DRY_RUN} The logs of the tasks contain the result.",
                default=False,
                type="boolean",
            ),
        },
    ) as dag:
        # No task waits for another one. A failed task fails the run and stops no other task.
        PythonOperator.partial(
            task_id="tables",
            python_callable=maintain_table,
            # Compaction needs a core and memory, as runs of pipelines do.
            max_active_tis_per_dagrun=1,
            map_index_template="{{ task.op_kwargs['pipeline'] }}",
            execution_timeout=timedelta(hours=6),
            doc_md="Compacts a data table and removes unreferenced files. Starts no Spark.",
        ).expand(op_kwargs=[{"pipeline": name} for name in App.from_environment().data_tables()])
        PythonOperator(
            task_id="control",
            python_callable=maintain_shared,
            execution_timeout=timedelta(hours=2),
            doc_md="Maintains the tables that pipelines share, and removes old statuses.",
        )
        PythonOperator(
            task_id="data_docs",
            python_callable=prune_data_docs,
            execution_timeout=timedelta(minutes=30),
            doc_md="Removes old Data Docs. The results of the checks stay in the results table.",
        )
    return dag


def status_dag() -> DAG:
    """Return the DAG that writes the status table and raises alarms."""
    with DAG(
        dag_id="tidemark_status",
        description="Lag, retention runway and alarms of every pipeline",
        doc_md=STATUS_PAGE,
        schedule="*/15 * * * *",
        **dag_settings(retries=1),
        is_paused_upon_creation=True,
        tags=["tidemark", "status"],
    ) as dag:
        recorded = PythonOperator(
            task_id="look",
            python_callable=record_status_of_all,
            execution_timeout=timedelta(minutes=15),
            doc_md="Writes the state of every pipeline to the status table. Starts no Spark.",
        )
        PythonOperator.partial(
            task_id="alarm",
            python_callable=raise_alarms,
            # The next run of this DAG reads the state again.
            retries=0,
            map_index_template="{{ task.op_kwargs['pipeline'] }}",
            execution_timeout=timedelta(minutes=1),
            doc_md="Fails for each pipeline with an alarm. The message contains the fix.",
        ).expand(op_kwargs=recorded.output)
    return dag
