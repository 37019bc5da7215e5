"""Errors of quality checks and publication."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidemark.core.errors import ExitCode, TerminalError, TidemarkError
from tidemark.spec.errors import SpecError


@dataclass(kw_only=True, eq=False)
class SuiteError(SpecError):
    """Quality suites that cannot be used; carries every problem, not the first."""

    problem = "{_problem}"
    expected = "suites as docs/quality.md describes them"

    @property
    def _problem(self) -> str:
        listed = "\n".join(f"  {problem}" for problem in self.problems)
        return f"{len(self.problems)} problem(s) in quality suites:\n{listed}\n"


@dataclass(kw_only=True, eq=False)
class QualityFailed(TidemarkError):
    """A critical expectation failed on a landed slice. The data stays landed."""

    exit_code: ClassVar[ExitCode] = ExitCode.QUALITY_FAILED

    pipeline: str
    sequence: int
    failed: tuple[str, ...]
    data_docs: str

    problem = "Plan {sequence} of pipeline {pipeline!r} failed its quality suite."
    expected = "every critical expectation to hold"
    actual = "{_actual}"
    fix = (
        "The data stays landed and is not published; open the report at {data_docs}, mend or "
        "replace it, or publish it as it is: `tidemark publication release {pipeline} --plan "
        "{sequence} --reason WHY`."
    )

    @property
    def _actual(self) -> str:
        return f"failed: {', '.join(self.failed)}"


@dataclass(kw_only=True, eq=False)
class NotBlocked(TerminalError):
    """A plan is to be released that nothing keeps from being seen."""

    pipeline: str
    sequence: int
    status: str

    problem = "Plan {sequence} of pipeline {pipeline!r} cannot be released."
    expected = "a plan that a check has blocked, that somebody rejected, or that nobody has checked"
    actual = "it is {status}"
    fix = "Nothing: its rows are published."


@dataclass(kw_only=True, eq=False)
class SuiteExists(TerminalError):
    """A draft would be written over a quality suite, which somebody may have edited."""

    file: str

    problem = "There is a quality suite of that name."
    expected = "a name that no suite has"
    actual = "{file}"
    fix = "Look at the draft with --dry-run, say another --name, or remove the file."
