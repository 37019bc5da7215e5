"""Errors of the local Airflow."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.core.errors import TransientError


@dataclass(kw_only=True, eq=False)
class AirflowUnavailable(TransientError):
    """Airflow did not answer, or did not finish in time.

    Attributes:
        operation: The operation, as a verb phrase such as "start" or "schedule tidemark_prices".
        reason: What the client observed.
    """

    operation: str
    reason: str

    problem = "Airflow did not {operation}: {reason}."
    fix = "Read the log of `airflow standalone` in Airflow's home, then try again."
