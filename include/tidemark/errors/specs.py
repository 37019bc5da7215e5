"""Pipeline specs, and requests that name pipelines and ranges."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.errors.base import TerminalError


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
class InvalidRange(TerminalError):
    """An offset range that cannot be meant."""

    topic: str
    partition: int
    start: int
    end: int
    rule: str

    def what(self) -> str:
        return f"the range {self.topic}[{self.partition}] [{self.start}, {self.end}) is not usable"

    def expected(self) -> str:
        return self.rule

    def found(self) -> str:
        return f"start {self.start}, end {self.end}"

    def remedy(self) -> str:
        return "ask for a range inside the log; `tidemark status PIPELINE` shows the marks"
