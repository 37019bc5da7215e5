"""What the DAG files share: operators, task callables, texts. Airflow is imported here alone."""
