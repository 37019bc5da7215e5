"""Errors of the local Airflow."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.core.errors import TerminalError, TransientError


@dataclass(kw_only=True, eq=False)
class AirflowUnavailable(TransientError):
    """Airflow gave no answer, or was not done in time."""

    operation: str
    reason: str

    problem = "Airflow did not manage {operation}."
    expected = "an answer in time"
    actual = "{reason}"
    fix = "Look at the log of `airflow standalone` in Airflow's home, then try again."


@dataclass(kw_only=True, eq=False)
class AirflowRefused(TerminalError):
    """Airflow's API answered no."""

    operation: str
    reason: str

    problem = "Airflow refused {operation}."
    expected = "a request that its API accepts"
    actual = "{reason}"
    fix = "Correct the request; a DAG that is not there may have an import error."
