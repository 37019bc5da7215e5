"""Airflow as processes of this machine."""
