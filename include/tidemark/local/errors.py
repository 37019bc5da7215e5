"""Errors of the local Airflow."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.core.errors import TerminalError, TransientError


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


@dataclass(kw_only=True, eq=False)
class AirflowNotStarted(TerminalError):
    """Airflow was never started in this home, so it has no database.

    Attributes:
        home: AIRFLOW_HOME.
    """

    home: str

    problem = "No Airflow was started in {home}."
    fix = "Start it: `tidemark up`."


@dataclass(kw_only=True, eq=False)
class AirflowRefused(TerminalError):
    """Airflow's API refused a request, or a DAG file has an import error.

    Attributes:
        operation: The operation, as a verb phrase such as "answer GET /api/v2/dags".
        reason: The answer of the API.
    """

    operation: str
    reason: str

    problem = "Airflow refused to {operation}: {reason}."
    fix = (
        "Correct a DAG file with an import error. Otherwise run `make down`, then the command "
        "again."
    )
