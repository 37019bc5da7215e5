"""Lineage of tasks for Airflow's OpenLineage provider; docs/reference/lineage.md describes it."""
