"""Errors of the local Airflow."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.core.errors import TerminalError, TransientError


@dataclass(kw_only=True, eq=False)
class AirflowUnavailable(TransientError):
    """Airflow gave no answer, or was not done in time."""

    operation: str
    reason: str

    def what(self) -> str:
        return f"Airflow did not manage {self.operation}"

    def expected(self) -> str:
        return "an answer in time"

    def found(self) -> str:
        return self.reason

    def remedy(self) -> str:
        return "look at the log of `airflow standalone` in Airflow's home, then try again"


@dataclass(kw_only=True, eq=False)
class AirflowRefused(TerminalError):
    """Airflow's API answered no."""

    operation: str
    reason: str

    def what(self) -> str:
        return f"Airflow refused {self.operation}"

    def expected(self) -> str:
        return "a request that its API accepts"

    def found(self) -> str:
        return self.reason

    def remedy(self) -> str:
        return "correct the request; a DAG that is not there may have an import error"
