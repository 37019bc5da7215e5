"""The root of the errors, its three branches, and the exit codes they end a process with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, ClassVar


class ExitCode(IntEnum):
    """What a job or a command returns to the shell; DAGs decide on retries by it."""

    OK = 0
    """Done, or found to be done already."""
    CRASH = 1
    """An error nobody foresaw. Retrying is safe: a plan executed twice has the effect of once."""
    USAGE = 2
    """The command line was wrong."""
    REFUSED = 65
    """A `TerminalError`: retrying will not help. Not 3, with which a JVM out of memory ends."""
    QUALITY_FAILED = 66
    """The data landed and a critical expectation failed on it."""
    TRANSIENT = 75
    """A `TransientError` (EX_TEMPFAIL of sysexits.h)."""
    UNKNOWN_OUTCOME = 76
    """An `UnknownOutcomeError`. Retrying is safe: it looks before it acts."""

    @property
    def retryable(self) -> bool:
        """Whether running the same thing again can end differently."""
        return self in _RETRYABLE

    @classmethod
    def worst(cls, codes: Iterable[int]) -> int:
        """The code of a whole whose parts ended with these; codes that are not ours are crashes.

        What a retry may cure comes before what it will not: once a retry has cured it, the
        refusals of other parts are what is left to tell.
        """
        return max(codes, key=_severity, default=cls.OK)


_RETRYABLE = {ExitCode.CRASH, ExitCode.TRANSIENT, ExitCode.UNKNOWN_OUTCOME}
_BY_SEVERITY = (
    ExitCode.OK,
    ExitCode.QUALITY_FAILED,
    ExitCode.REFUSED,
    ExitCode.USAGE,
    ExitCode.TRANSIENT,
    ExitCode.UNKNOWN_OUTCOME,
    ExitCode.CRASH,
)


def _severity(code: int) -> int:
    return _BY_SEVERITY.index(code) if code in _BY_SEVERITY else len(_BY_SEVERITY)


@dataclass(kw_only=True, eq=False)
class TidemarkError(Exception):
    """The root: subclasses are keyword-only dataclasses with derived messages."""

    exit_code: ClassVar[ExitCode] = ExitCode.CRASH

    def what(self) -> str:
        """One clause: what went wrong, where."""
        raise NotImplementedError

    def expected(self) -> str:
        """What should have been there."""
        raise NotImplementedError

    def found(self) -> str:
        """What was there."""
        raise NotImplementedError

    def remedy(self) -> str:
        """What the reader does next."""
        raise NotImplementedError

    def __str__(self) -> str:
        return text_of(self.as_record())

    def as_record(self) -> dict[str, Any]:
        """The error as plain values, for `--json`."""
        return {
            "error": type(self).__name__,
            "retryable": self.exit_code.retryable,
            "what": self.what(),
            "expected": self.expected(),
            "found": self.found(),
            "next": self.remedy(),
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), {f.name: getattr(self, f.name) for f in fields(self)})


def text_of(record: Mapping[str, Any]) -> str:
    """A named error in one line, from its plain values."""
    return (
        f"{record['what']}. Expected: {record['expected']}. "
        f"Found: {record['found']}. Next: {record['next']}."
    )


def _rebuild(cls: type[TidemarkError], state: dict[str, Any]) -> TidemarkError:
    return cls(**state)


class TransientError(TidemarkError):
    """Nothing happened; the same call may succeed later."""

    exit_code = ExitCode.TRANSIENT


class UnknownOutcomeError(TidemarkError):
    """A commit was sent and its answer was lost; look before acting."""

    exit_code = ExitCode.UNKNOWN_OUTCOME


class TerminalError(TidemarkError):
    """The same call fails again until somebody changes something."""

    exit_code = ExitCode.REFUSED


PERHAPS_DONE = (
    "if an earlier try lost its answer, its decision stands: "
    "docs/control-table.md, What did people decide?"
)
"""Where a command that records a decision finds nothing to decide."""


def listed(values: Iterable[object]) -> str:
    """Numbers, or names, for a message."""
    return ", ".join(map(str, values))
