"""Errors of the demo."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.core.errors import TerminalError


@dataclass(kw_only=True, eq=False)
class DemoFailed(TerminalError):
    """Checks of the demo failed."""

    failures: tuple[str, ...]

    problem = "{count:check} of the demo failed: {failures}."
    fix = "Read the output above; logs are in the demo's folder."

    @property
    def count(self) -> int:
        """Number of failed checks."""
        return len(self.failures)
