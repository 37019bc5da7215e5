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

    def what(self) -> str:
        listed = "\n".join(f"  {problem}" for problem in self.problems)
        return f"{len(self.problems)} problem(s) in pipeline specs:\n{listed}\n"

    def expected(self) -> str:
        pages = {
            "docs/typed.md" if problem.key.startswith("decode") else "docs/pipelines.md"
            for problem in self.problems
        }
        return f"specs as in {' and '.join(sorted(pages))}"

    def found(self) -> str:
        return "the problems above"

    def remedy(self) -> str:
        return "mend the files named above"


@dataclass(kw_only=True, eq=False)
class UnknownPipeline(TerminalError):
    """A pipeline name that no spec has."""

    pipeline: str
    known: tuple[str, ...]

    def what(self) -> str:
        return f"no pipeline is named {self.pipeline!r}"

    def expected(self) -> str:
        return f"one of {', '.join(self.known) or 'none: there are no specs'}"

    def found(self) -> str:
        return repr(self.pipeline)

    def remedy(self) -> str:
        return "use a listed name, or add a spec under include/pipelines"


@dataclass(kw_only=True, eq=False)
class NotDecoded(TerminalError):
    """A typed table is asked for, and the pipeline's spec has none."""

    pipeline: str

    def what(self) -> str:
        return f"pipeline {self.pipeline!r} has no typed table"

    def expected(self) -> str:
        return "a section `decode` in its spec, which says what its keys and values are"

    def found(self) -> str:
        return "none"

    def remedy(self) -> str:
        return "add it, as docs/typed.md describes it"


@dataclass(kw_only=True, eq=False)
class NotUpserted(TerminalError):
    """A table of latest rows is asked for, and the pipeline's spec has none."""

    pipeline: str

    def what(self) -> str:
        return f"pipeline {self.pipeline!r} has no table of latest rows"

    def expected(self) -> str:
        return "a section `decode.upsert` in its spec"

    def found(self) -> str:
        return "none"

    def remedy(self) -> str:
        return "add it, as docs/upsert.md describes it"


@dataclass(kw_only=True, eq=False)
class IsTyped(TerminalError):
    """The pipeline of a typed table was to do what only the one that reads Kafka can."""

    pipeline: str
    origin: str

    def what(self) -> str:
        return f"{self.pipeline!r} reads what {self.origin!r} has landed, and nothing of Kafka"

    def expected(self) -> str:
        return f"the pipeline {self.origin!r}; what lands there is decoded by the next run"

    def found(self) -> str:
        return "the pipeline of its typed table"

    def remedy(self) -> str:
        return f"ask {self.origin!r}; to decode, see `tidemark decode --help`"
