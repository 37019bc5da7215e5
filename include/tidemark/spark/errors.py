"""Errors of Spark."""

from __future__ import annotations

from dataclasses import dataclass
from signal import Signals

from tidemark.core.errors import TerminalError, TransientError


@dataclass(kw_only=True, eq=False)
class EngineStopped(TransientError):
    """The Spark process ended before it reported a result, with an exit code of no job.

    Attributes:
        status: Its exit code: negative for a signal, or 128 and more if a shell or a JVM passed
            the signal on.
    """

    status: int

    problem = "{_problem}"
    expected = "a process that reports the result of each plan"
    actual = "no result and exit code {status}"
    fix = (
        "Run the same plan again, which is safe; if memory ran out, give the machine more or raise "
        "spark.driver.memory."
    )

    @property
    def _problem(self) -> str:
        number = -self.status if self.status < 0 else self.status - 128
        if number not in {each.value for each in Signals}:
            return f"the Spark process ended with exit code {self.status}"
        perhaps = " (out of memory?)" if number == Signals.SIGKILL else ""
        return f"the Spark process was killed by signal {number}, {Signals(number).name}{perhaps}"


@dataclass(kw_only=True, eq=False)
class EngineUnavailable(TransientError):
    """A Spark Connect server does not answer, or ended during a run.

    Attributes:
        engine: The server, in the form "Spark Connect at localhost:15002".
        reason: What the client observed, in one clause.
    """

    engine: str
    reason: str

    problem = "{engine} does not answer."
    expected = "a Spark Connect server that runs"
    actual = "{reason}"
    fix = (
        "Start it with `tidemark spark start` and run the same plan again, which is safe; to run "
        "without a server, use --master 'local[*]', or in Airflow a connection of type spark."
    )


@dataclass(kw_only=True, eq=False)
class EngineUnsuitable(TerminalError):
    """A Spark Connect server would land different data than spark-submit, or none.

    Attributes:
        engine: The server.
        mismatch: The mismatch, in one clause.
        needed: The required state of the server.
        advice: The remedy.
    """

    engine: str
    mismatch: str
    needed: str
    advice: str

    problem = "{engine} cannot be used: {mismatch}."
    expected = "{needed}"
    fix = "{advice}"
