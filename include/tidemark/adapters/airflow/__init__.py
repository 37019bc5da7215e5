"""`airflow standalone` as processes of this machine, and its REST API."""
