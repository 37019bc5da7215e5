"""Errors of quality checks and publication."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidemark.core.errors import ExitCode, TerminalError, TidemarkError
from tidemark.spec.errors import SpecError


@dataclass(kw_only=True, eq=False)
class SuiteError(SpecError):
    """Invalid quality suites, with all of their problems."""

    problem = "Invalid quality suite, {count:problem}:\n{lines}\n"
    fix = "Edit the files named above."


@dataclass(kw_only=True, eq=False)
class QualityFailed(TidemarkError):
    """A critical check failed on a landed batch. The data stays landed and is not published."""

    exit_code: ClassVar[ExitCode] = ExitCode.QUALITY_FAILED

    pipeline: str
    sequence: int
    failed: tuple[str, ...]
    data_docs: str | None

    problem = "Critical checks failed on plan {sequence} of pipeline '{pipeline}': {failed}."
    fix = (
        "`tidemark report {pipeline}` shows the failed rules{pages}. The rows stay in the table "
        "and are not published. Fix the cause and run `tidemark check {pipeline} --plan "
        "{sequence}`, or publish the plan unchanged with `tidemark publication release {pipeline} "
        "--plan {sequence} --reason TEXT`."
    )

    @property
    def pages(self) -> str:
        """The path of the page in Data Docs, in parentheses; empty without a page."""
        return f" (Data Docs: {self.data_docs})" if self.data_docs else ""


@dataclass(kw_only=True, eq=False)
class NotBlocked(TerminalError):
    """The published view already shows the plan that should be released."""

    pipeline: str
    sequence: int
    status: str

    problem = "Plan {sequence} of pipeline '{pipeline}' is already published (status: {status})."
    fix = "No action is needed."


@dataclass(kw_only=True, eq=False)
class PlanReplaced(TerminalError):
    """The data table has no rows of the plan, because later plans have replaced them."""

    pipeline: str
    sequence: int

    problem = "Later plans have replaced all rows of plan {sequence} of pipeline {pipeline!r}."
    fix = "Name a plan that replaced them: column plan_sequence of the rows in the data table."


@dataclass(kw_only=True, eq=False)
class SuiteExists(TerminalError):
    """The file of a drafted suite exists; an operator may have edited it."""

    file: str

    problem = "The quality suite {file} already exists."
    fix = "Print the draft with --dry-run, choose another --name, or remove the file."
