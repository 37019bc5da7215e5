"""Errors of pipeline specs."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.core.errors import TerminalError


@dataclass(kw_only=True, eq=False)
class Problem:
    """One thing wrong in a file or a form: where, what was expected, what was found."""

    file: str
    key: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.file}: {self.key}: expected {self.expected}, found {self.found}"


@dataclass(kw_only=True, eq=False)
class SpecError(TerminalError):
    """Pipeline specs that cannot be used; carries every problem, not the first."""

    problems: tuple[Problem, ...]

    problem = "{_problem}"
    expected = "{_expected}"
    actual = "the problems above"
    fix = "Mend the files named above."

    @property
    def _problem(self) -> str:
        listed = "\n".join(f"  {problem}" for problem in self.problems)
        return f"{len(self.problems)} problem(s) in pipeline specs:\n{listed}\n"

    @property
    def _expected(self) -> str:
        pages = {
            "docs/typed.md" if problem.key.startswith("decode") else "docs/pipelines.md"
            for problem in self.problems
        }
        return f"specs as in {' and '.join(sorted(pages))}"


@dataclass(kw_only=True, eq=False)
class UnknownPipeline(TerminalError):
    """A pipeline name that no spec has."""

    pipeline: str
    known: tuple[str, ...]

    problem = "No pipeline is named {pipeline!r}."
    expected = "{_expected}"
    actual = "{_actual}"
    fix = "Use a listed name, or add a spec under include/pipelines."

    @property
    def _expected(self) -> str:
        return f"one of {', '.join(self.known) or 'none: there are no specs'}"

    @property
    def _actual(self) -> str:
        return repr(self.pipeline)


@dataclass(kw_only=True, eq=False)
class NotDecoded(TerminalError):
    """A typed table is asked for, and the pipeline's spec has none."""

    pipeline: str

    problem = "Pipeline {pipeline!r} has no typed table."
    expected = "a section `decode` in its spec, which says what its keys and values are"
    actual = "none"
    fix = "Add it, as docs/typed.md describes it."


@dataclass(kw_only=True, eq=False)
class NotUpserted(TerminalError):
    """The pipeline's spec has no upsert table."""

    pipeline: str

    problem = "Pipeline {pipeline!r} has no upsert table."
    expected = "a section `decode.upsert` in its spec"
    actual = "none"
    fix = "Add it, as docs/upsert.md describes it."


@dataclass(kw_only=True, eq=False)
class IsTyped(TerminalError):
    """The pipeline of a typed table was to do what only the one that reads Kafka can."""

    pipeline: str
    origin: str

    problem = "{pipeline!r} reads what {origin!r} has landed, and nothing of Kafka."
    expected = "the pipeline {origin!r}; what lands there is decoded by the next run"
    actual = "the pipeline of its typed table"
    fix = "Ask {origin!r}; to decode, see `tidemark decode --help`."
