"""This machine and this program: what is missing, what a demo found, what nobody foresaw."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.errors.base import TerminalError, TidemarkError


@dataclass(kw_only=True, eq=False)
class SetupError(TerminalError):
    """Something this machine must have is missing or in the way."""

    subject: str
    needed: str
    seen: str
    advice: str

    def what(self) -> str:
        return self.subject

    def expected(self) -> str:
        return self.needed

    def found(self) -> str:
        return self.seen

    def remedy(self) -> str:
        return self.advice


@dataclass(kw_only=True, eq=False)
class Unforeseen(TidemarkError):
    """An error without a name of ours, while other pipelines went on."""

    kind: str
    text: str

    def what(self) -> str:
        return "an error that nobody foresaw"

    def expected(self) -> str:
        return "a result or a named error"

    def found(self) -> str:
        return f"{self.kind}: {self.text}" if self.text else self.kind

    def remedy(self) -> str:
        return "try again, which is safe; the log has the traceback"


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
