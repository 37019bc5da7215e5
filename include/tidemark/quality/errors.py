"""Errors of quality checks and publication."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidemark.core.errors import ExitCode, PipelineError


@dataclass(kw_only=True, eq=False)
class QualityFailed(PipelineError):
    """A critical check failed on a landed batch. The data stays landed and is not published."""

    exit_code: ClassVar[ExitCode] = ExitCode.QUALITY_FAILED

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
