"""The DAG that looks at every pipeline, keeps what it sees in a table, and raises alarms."""

from __future__ import annotations

from datetime import timedelta

from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG

from tidemark.airflow.alarms import look_at_all, raise_alarms
from tidemark.airflow.chain import START_DATE, default_args
from tidemark.airflow.texts import STATUS_PAGE

with DAG(
    dag_id="tidemark_status",
    description="Lag, retention runway and alarms of every pipeline",
    doc_md=STATUS_PAGE,
    schedule="*/15 * * * *",
    start_date=START_DATE,
    catchup=False,
    max_active_runs=1,
    default_args=default_args(retries=1),
    tags=["tidemark", "status"],
):
    looked = PythonOperator(
        task_id="look",
        python_callable=look_at_all,
        execution_timeout=timedelta(minutes=15),
        doc_md="Looks at every pipeline and writes the status table. No Spark.",
    )
    PythonOperator.partial(
        task_id="alarm",
        python_callable=raise_alarms,
        # A look is not repeated: the next run of this DAG is the next look.
        retries=0,
        map_index_template="{{ task.op_kwargs['pipeline'] }}",
        execution_timeout=timedelta(minutes=1),
        doc_md="Fails for each pipeline that there is an alarm of, and says what to do.",
    ).expand(op_kwargs=looked.output)
