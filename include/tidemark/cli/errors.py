"""Errors of the demo."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.core.errors import TerminalError


@dataclass(kw_only=True, eq=False)
class DemoFailed(TerminalError):
    """The demo ran to its end and something it checks did not hold."""

    failures: tuple[str, ...]

    problem = "{_problem}"
    expected = "every check to hold"
    actual = "{_actual}"
    fix = "Read the output above; logs are in the demo's folder."

    @property
    def _problem(self) -> str:
        return f"{len(self.failures)} check(s) of the demo failed"

    @property
    def _actual(self) -> str:
        return "; ".join(self.failures)
