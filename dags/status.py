"""The Airflow DAG that writes the status of every pipeline and raises alarms."""

from tidemark.airflow.dags import status_dag

status_dag()
