"""DAG factories, operators and callbacks for Airflow."""
