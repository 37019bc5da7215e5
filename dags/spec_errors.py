"""Shows invalid specs as an import error in Airflow. This file has no DAG."""

from tidemark.airflow.dags import check_specs

check_specs()
