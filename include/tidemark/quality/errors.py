"""Errors of quality checks and publication."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidemark.core.errors import ExitCode, TerminalError, TidemarkError
from tidemark.spec.errors import SpecError


@dataclass(kw_only=True, eq=False)
class SuiteError(SpecError):
    """Quality suites that cannot be used; carries every problem, not the first."""

    def what(self) -> str:
        listed = "\n".join(f"  {problem}" for problem in self.problems)
        return f"{len(self.problems)} problem(s) in quality suites:\n{listed}\n"

    def expected(self) -> str:
        return "suites as docs/quality.md describes them"


@dataclass(kw_only=True, eq=False)
class QualityFailed(TidemarkError):
    """A critical expectation failed on a landed slice. The data stays landed."""

    exit_code: ClassVar[ExitCode] = ExitCode.QUALITY_FAILED

    pipeline: str
    sequence: int
    failed: tuple[str, ...]
    data_docs: str

    def what(self) -> str:
        return f"plan {self.sequence} of pipeline {self.pipeline!r} failed its quality suite"

    def expected(self) -> str:
        return "every critical expectation to hold"

    def found(self) -> str:
        return f"failed: {', '.join(self.failed)}"

    def remedy(self) -> str:
        return (
            f"the data stays landed and is not published; open the report at {self.data_docs}, "
            f"mend or replace it, or publish it as it is: `tidemark verdict release "
            f"{self.pipeline} --plan {self.sequence} --reason WHY`"
        )


@dataclass(kw_only=True, eq=False)
class NotBlocked(TerminalError):
    """A plan is to be released that nothing keeps from being seen."""

    pipeline: str
    sequence: int
    standing: str

    def what(self) -> str:
        return f"plan {self.sequence} of pipeline {self.pipeline!r} cannot be released"

    def expected(self) -> str:
        return "a plan that a check has blocked, that somebody rejected, or that nobody has checked"

    def found(self) -> str:
        return f"it is {self.standing}"

    def remedy(self) -> str:
        return "nothing: its rows are published"


@dataclass(kw_only=True, eq=False)
class SuiteExists(TerminalError):
    """A draft would be written over a quality suite, which somebody may have edited."""

    file: str

    def what(self) -> str:
        return "there is a quality suite of that name"

    def expected(self) -> str:
        return "a name that no suite has"

    def found(self) -> str:
        return self.file

    def remedy(self) -> str:
        return "look at the draft with --dry-run, say another --name, or remove the file"
