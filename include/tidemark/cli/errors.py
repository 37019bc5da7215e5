"""Errors of the demo."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.core.errors import TerminalError


@dataclass(kw_only=True, eq=False)
class DemoFailed(TerminalError):
    """The demo ran to its end and something it checks did not hold."""

    failures: tuple[str, ...]

    def what(self) -> str:
        return f"{len(self.failures)} check(s) of the demo failed"

    def expected(self) -> str:
        return "every check to hold"

    def found(self) -> str:
        return "; ".join(self.failures)

    def remedy(self) -> str:
        return "read the output above; logs are in the demo's folder"
