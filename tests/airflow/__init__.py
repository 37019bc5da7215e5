"""Tests of `tidemark.airflow`."""
