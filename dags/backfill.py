"""The Airflow DAG that lands offsets of a form."""

from tidemark.airflow.backfill import backfill_dag

backfill_dag()
