"""Errors of Spark."""

from __future__ import annotations

from dataclasses import dataclass
from signal import Signals

from tidemark.core.errors import TransientError

_HEAP_CODES = (3, 52)
"""Exit codes after an OutOfMemoryError: of a JVM with ExitOnOutOfMemoryError, and of Spark."""


@dataclass(kw_only=True, eq=False)
class EngineStopped(TransientError):
    """The Spark process ended without a result, with exit code 0 or a code that no job returns.

    Attributes:
        status: Exit code of the process: negative for a signal, or 128 and more if a shell or a
            JVM passed the signal on.
    """

    status: int

    problem = "The Spark process {end} before it reported a result."
    fix = "{advice}"

    @property
    def advice(self) -> str:
        """The remedy, which depends on how the process ended."""
        if self.status in _HEAP_CODES:
            return (
                "Raise spark.driver.memory (2g by default) in the spec's section spark, then run "
                "the same plan again, which is safe."
            )
        return (
            "Run the same plan again, which is safe. If memory ran out, add memory to the machine "
            "or raise spark.driver.memory."
        )

    @property
    def end(self) -> str:
        """How the process ended, as a predicate."""
        if self.status in _HEAP_CODES:
            return f"ran out of Java heap (exit code {self.status})"
        number = -self.status if self.status < 0 else self.status - 128
        if number not in {each.value for each in Signals}:
            return f"ended with exit code {self.status}"
        perhaps = " (out of memory?)" if number == Signals.SIGKILL else ""
        return f"was killed by signal {number}, {Signals(number).name}{perhaps}"


@dataclass(kw_only=True, eq=False)
class EngineUnavailable(TransientError):
    """A Spark Connect server does not answer, or ended during a run.

    Attributes:
        engine: The server, in the form "Spark Connect at localhost:15002".
        reason: What the client observed, in one clause.
    """

    engine: str
    reason: str

    problem = "{engine} does not answer: {reason}."
    fix = (
        "Start the server with `tidemark spark start`, then run the same plan again, which is "
        "safe. To run without a server, use --master 'local[*]', or in Airflow a connection of "
        "type spark."
    )
