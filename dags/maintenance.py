"""The Airflow DAG that compacts tables and removes unreferenced files."""

from tidemark.airflow.dags import maintenance_dag

maintenance_dag()
