"""An Airflow DAG for each pipeline spec in include/pipelines, or for each group of them."""

from tidemark.airflow.dags import pipeline_dags

pipeline_dags()
