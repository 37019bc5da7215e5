"""Tests of the DAG files."""
