"""Errors of pipeline specs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tidemark.core.errors import PipelineError, TerminalError
from tidemark.core.texts import did_you_mean, some_of


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
    """Pipeline specs, or a quality suite, are invalid. Contains every problem of every file.

    Attributes:
        problems: The problems.
        files: The kind of files, as a noun phrase.
        page: The page of the documentation that describes all keys; empty for those of specs.
    """

    problems: tuple[Problem, ...]
    files: str = "pipeline specs"
    page: str = ""

    problem = "{count:problem} in {files}:\n{lines}\n"
    fix = "Edit these files as described in {pages}."

    @classmethod
    def of_suite(cls, problems: tuple[Problem, ...]) -> Self:
        """Return the error of a quality suite."""
        page = "docs/reference/quality.md"
        return cls(problems=problems, files="a quality suite", page=page)

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
        if self.page:
            return self.page
        pages = {
            "docs/reference/typed.md"
            if problem.key.startswith("decode")
            else "docs/reference/pipelines.md"
            for problem in self.problems
        }
        return " and ".join(sorted(pages))


@dataclass(kw_only=True, eq=False)
class FileExists(TerminalError):
    """The file of a draft exists; an operator may have edited it.

    Attributes:
        kind: The kind of file.
        file: The file.
        other_way: How to continue without a new file, as an imperative clause.
    """

    kind: str
    file: str
    other_way: str

    problem = "The {kind} {file} already exists."
    fix = "{other_way}, choose another --name, or remove the file to draft it again."

    @classmethod
    def of_spec(cls, file: str, pipeline: str) -> Self:
        """A spec of this name exists."""
        draft = f"`tidemark schema init {pipeline}` prints a draft of its section `decode`"
        return cls(kind="spec", file=file, other_way=f"Edit the spec ({draft})")

    @classmethod
    def of_suite(cls, file: str) -> Self:
        """A quality suite of this name exists."""
        return cls(kind="quality suite", file=file, other_way="Print the draft with --dry-run")


@dataclass(kw_only=True, eq=False)
class UnknownPipeline(PipelineError, TerminalError):
    """A pipeline name that no spec has."""

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
