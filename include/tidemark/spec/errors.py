"""Errors of pipeline specs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tidemark.core.errors import TerminalError
from tidemark.core.suggestions import did_you_mean, some_of


@dataclass(kw_only=True, eq=False)
class Problem:
    """One problem of a file or a form: its place, the actual value and the expected value."""

    file: str
    key: str
    expected: str
    found: str

    @classmethod
    def of(cls, path: Path, key: str, expected: str, found: str) -> Self:
        """Return a problem of a file, with texts of limited length."""
        return cls(
            file=path.name,
            key=_shortened(key, 100),
            expected=_shortened(expected, 1_000),
            found=_shortened(found, 300),
        )

    def __str__(self) -> str:
        # The value has a suggestion, which must not follow a list of names.
        return f"{self.file}: {self.key}: found {self.found}, expected {self.expected}"


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


@dataclass(kw_only=True, eq=False)
class SpecError(TerminalError):
    """Pipeline specs are invalid. The error contains every problem of every file."""

    problems: tuple[Problem, ...]

    problem = "{count:problem} in pipeline specs:\n{lines}\n"
    fix = "Edit these files as described in {pages}."

    @property
    def count(self) -> int:
        """Number of problems."""
        return len(self.problems)

    @property
    def lines(self) -> str:
        """One line for each problem."""
        return "\n".join(f"  {problem}" for problem in self.problems)

    @property
    def pages(self) -> str:
        """Pages of the documentation that describe the keys."""
        pages = {
            "docs/reference/typed.md"
            if problem.key.startswith("decode")
            else "docs/reference/pipelines.md"
            for problem in self.problems
        }
        return " and ".join(sorted(pages))


@dataclass(kw_only=True, eq=False)
class UnknownPipeline(TerminalError):
    """A pipeline name that no spec has."""

    pipeline: str
    known: tuple[str, ...]

    problem = "No pipeline is named {pipeline!r}{suggestion}; {pipelines}."
    fix = "Use a name of an existing pipeline, or add a spec to include/pipelines."

    @property
    def pipelines(self) -> str:
        """The names of all pipelines."""
        return f"the specs define {some_of(self.known)}" if self.known else "there are no specs"

    @property
    def suggestion(self) -> str:
        """The pipeline with the most similar name, if any."""
        return did_you_mean(self.pipeline.partition("@")[0], self.known)


@dataclass(kw_only=True, eq=False)
class NotDecoded(TerminalError):
    """The spec of the pipeline has no typed table."""

    pipeline: str

    problem = "Pipeline {pipeline!r} has no typed table."
    fix = "Add a section `decode` to its spec; docs/how-to/typed.md describes it."


@dataclass(kw_only=True, eq=False)
class NotUpserted(TerminalError):
    """The pipeline's spec has no upsert table."""

    pipeline: str

    problem = "Pipeline {pipeline!r} has no upsert table."
    fix = "Add a section `decode.upsert` to its spec; docs/how-to/upsert.md describes it."


@dataclass(kw_only=True, eq=False)
class IsTyped(TerminalError):
    """A command that needs a pipeline that reads Kafka got the pipeline of a typed table."""

    pipeline: str
    origin: str

    problem = "Pipeline {pipeline!r} decodes the table of {origin!r}; it does not read Kafka."
    fix = (
        "Run the command for {origin!r}; its next run decodes the records. See `tidemark decode "
        "--help`."
    )
