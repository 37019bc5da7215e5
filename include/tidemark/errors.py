"""Every error Tidemark raises on purpose.

One root, three branches, because the branch is what a caller acts on:

* `TransientError`: nothing happened, the same call may succeed later. Retry.
* `UnknownOutcomeError`: a commit was sent and the answer was lost. Look, then act.
* `TerminalError`: the same call will fail again until somebody changes something. Never retry.

An error carries fields; its message is derived from them and always says what was expected, what
was found and what to do next. Errors survive pickling, so they cross process boundaries whole.
"""

from __future__ import annotations

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


_RETRYABLE = {ExitCode.CRASH, ExitCode.TRANSIENT, ExitCode.UNKNOWN_OUTCOME}


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
        return (
            f"{self.what()}. Expected: {self.expected()}. "
            f"Found: {self.found()}. Next: {self.remedy()}."
        )

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


# -- the machine ---------------------------------------------------------------------------------


@dataclass(kw_only=True, eq=False)
class SetupError(TerminalError):
    """Something this machine must have is missing or in the way."""

    subject: str
    needed: str
    seen: str
    advice: str

    def what(self) -> str:
        return self.subject

    def expected(self) -> str:
        return self.needed

    def found(self) -> str:
        return self.seen

    def remedy(self) -> str:
        return self.advice


@dataclass(kw_only=True, eq=False)
class DemoFailed(TerminalError):
    """The demo ran to its end and something it checks did not hold."""

    failures: tuple[str, ...]

    def what(self) -> str:
        return f"{len(self.failures)} check(s) of the demo failed"

    def expected(self) -> str:
        return "every check to hold"

    def found(self) -> str:
        return "; ".join(self.failures)

    def remedy(self) -> str:
        return "read the output above; logs are in the demo's folder"


# -- specs and requests --------------------------------------------------------------------------


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
        return "specs as docs/pipelines.md describes them"

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


# -- connections ---------------------------------------------------------------------------------


@dataclass(kw_only=True, eq=False)
class UnknownConnection(TerminalError):
    """A connection id that resolves to nothing."""

    connection: str

    def what(self) -> str:
        return f"connection {self.connection!r} is not defined"

    def expected(self) -> str:
        return f"the environment variable AIRFLOW_CONN_{self.connection.upper()} in JSON form"

    def found(self) -> str:
        return "no such variable"

    def remedy(self) -> str:
        return (
            "define the connection in Airflow, or export the variable for the command line "
            "(docs/connections.md); for a broker to try things with: `tidemark broker start`"
        )


@dataclass(kw_only=True, eq=False)
class InvalidConnection(TerminalError):
    """A connection that is there and cannot be used. Never carries a value, only keys."""

    connection: str
    rule: str
    problem: str

    def what(self) -> str:
        return f"connection {self.connection!r} cannot be used"

    def expected(self) -> str:
        return self.rule

    def found(self) -> str:
        return self.problem

    def remedy(self) -> str:
        return "correct the connection's extra; docs/connections.md lists the keys"


@dataclass(kw_only=True, eq=False)
class KafkaUnavailable(TransientError):
    """No broker answered, or a broker asked to be called again."""

    operation: str
    reason: str

    def what(self) -> str:
        return f"Kafka did not answer {self.operation}"

    def expected(self) -> str:
        return "an answer in time"

    def found(self) -> str:
        return self.reason

    def remedy(self) -> str:
        return "check that the brokers are up and reachable, then run the same command again"


@dataclass(kw_only=True, eq=False)
class KafkaRefused(TerminalError):
    """A broker answered no: credentials, rights, or a request it does not know."""

    operation: str
    reason: str
    needed: str = "a principal with Describe and Read on the topic"

    def what(self) -> str:
        return f"Kafka refused {self.operation}"

    def expected(self) -> str:
        return self.needed

    def found(self) -> str:
        return self.reason

    def remedy(self) -> str:
        return "correct the connection's credentials or the topic's ACLs"


@dataclass(kw_only=True, eq=False)
class TopicMissing(TerminalError):
    """The pipeline's topic is not on the cluster."""

    topic: str

    def what(self) -> str:
        return f"topic {self.topic!r} does not exist, or this principal may not describe it"

    def expected(self) -> str:
        return "an existing topic"

    def found(self) -> str:
        return "none of that name"

    def remedy(self) -> str:
        return "create the topic, correct the spec's topic, or grant Describe on it"


# -- what the log did ----------------------------------------------------------------------------


@dataclass(kw_only=True, eq=False)
class NoStartOffset(TerminalError):
    """Policy `start: none`, and a partition without a committed offset."""

    pipeline: str
    topic: str
    partitions: tuple[int, ...]

    def what(self) -> str:
        return f"pipeline {self.pipeline!r} may not choose a start for {self.topic}"

    def expected(self) -> str:
        return "a committed offset for every partition, because the spec says start: none"

    def found(self) -> str:
        return f"none for partition(s) {_listed(self.partitions)}"

    def remedy(self) -> str:
        return "set `start` in the spec to earliest, latest or a timestamp for the first run"


@dataclass(kw_only=True, eq=False)
class LostRange(TerminalError):
    """Retention removed offsets before they were read (S7)."""

    pipeline: str
    topic: str
    partition: int
    start: int
    end: int

    def what(self) -> str:
        return (
            f"{self.topic}[{self.partition}] lost offsets [{self.start}, {self.end}) "
            f"before pipeline {self.pipeline!r} read them"
        )

    def expected(self) -> str:
        return f"a low-water mark of at most {self.start}"

    def found(self) -> str:
        return f"a low-water mark of {self.end}"

    def remedy(self) -> str:
        return (
            "nothing was written and no offset is skipped silently: lengthen the topic's "
            "retention, and see docs/runbook.md, LostRange"
        )


@dataclass(kw_only=True, eq=False)
class TopicRecreated(TerminalError):
    """The topic was deleted and made again: the same offsets name other records."""

    pipeline: str
    topic: str
    known_topic_id: str
    current_topic_id: str

    def what(self) -> str:
        return f"topic {self.topic!r} is not the topic that pipeline {self.pipeline!r} knows"

    def expected(self) -> str:
        return f"topic id {self.known_topic_id}"

    def found(self) -> str:
        return f"topic id {self.current_topic_id}"

    def remedy(self) -> str:
        return (
            "nothing was written: offsets of the old topic mean nothing in the new one; "
            "see docs/runbook.md, TopicRecreated"
        )


@dataclass(kw_only=True, eq=False)
class TopicChanged(TerminalError):
    """The spec names another topic than the one the pipeline has read."""

    pipeline: str
    known_topic: str
    topic: str

    def what(self) -> str:
        return f"the spec of pipeline {self.pipeline!r} names another topic than before"

    def expected(self) -> str:
        return f"topic {self.known_topic!r}, which its committed offsets belong to"

    def found(self) -> str:
        return f"topic {self.topic!r}"

    def remedy(self) -> str:
        return "change the spec back, and give the other topic a pipeline of its own"


@dataclass(kw_only=True, eq=False)
class NoTopicId(TerminalError):
    """A broker that tells no topic ids: a remade topic would look like the old one."""

    topic: str

    def what(self) -> str:
        return f"the cluster does not tell the id of topic {self.topic!r}"

    def expected(self) -> str:
        return "a topic id (Kafka 2.8 and later)"

    def found(self) -> str:
        return "none"

    def remedy(self) -> str:
        return (
            "upgrade the brokers: without topic ids a remade topic cannot be told from the old one"
        )


@dataclass(kw_only=True, eq=False)
class ClusterChanged(TerminalError):
    """The connection leads to another Kafka cluster than before."""

    pipeline: str
    known_cluster_id: str
    current_cluster_id: str

    def what(self) -> str:
        return f"the connection of pipeline {self.pipeline!r} leads to another cluster"

    def expected(self) -> str:
        return f"cluster id {self.known_cluster_id}"

    def found(self) -> str:
        return f"cluster id {self.current_cluster_id}"

    def remedy(self) -> str:
        return "point the connection at the old cluster, or give the new one a pipeline of its own"


@dataclass(kw_only=True, eq=False)
class PartitionsShrunk(TerminalError):
    """A topic with fewer partitions than before, which Kafka cannot do (S10)."""

    pipeline: str
    topic: str
    missing: tuple[int, ...]

    def what(self) -> str:
        return f"topic {self.topic!r} has lost partitions of pipeline {self.pipeline!r}"

    def expected(self) -> str:
        return f"partition(s) {_listed(self.missing)}"

    def found(self) -> str:
        return "no such partition(s)"

    def remedy(self) -> str:
        return "Kafka cannot remove partitions: check that the connection leads to the right topic"


@dataclass(kw_only=True, eq=False)
class EndBehindCommitted(TerminalError):
    """The log ends before the committed offset: records that were read are gone from Kafka."""

    pipeline: str
    topic: str
    partition: int
    offset: int
    end: int

    def what(self) -> str:
        return f"{self.topic}[{self.partition}] ends before what pipeline {self.pipeline!r} needs"

    def expected(self) -> str:
        return f"an end of at least {self.offset}"

    def found(self) -> str:
        return f"an end of {self.end}"

    def remedy(self) -> str:
        return (
            "nothing was written: the log was truncated, or its transactions are still open; "
            "see docs/runbook.md, EndBehindCommitted"
        )


# -- the commit protocol -------------------------------------------------------------------------


@dataclass(kw_only=True, eq=False)
class ControlConflict(TransientError):
    """Somebody else wrote this pipeline's control events first; plan again from theirs."""

    pipeline: str
    event_number: int

    def what(self) -> str:
        return f"another writer recorded an event of pipeline {self.pipeline!r} first"

    def expected(self) -> str:
        return f"to write event {self.event_number}"

    def found(self) -> str:
        return "that event taken"

    def remedy(self) -> str:
        return "run the same command again: it starts from what the other writer recorded"


@dataclass(kw_only=True, eq=False)
class UnknownPlan(TerminalError):
    """A plan number that the control table does not have."""

    pipeline: str
    sequence: int
    latest: int | None

    def what(self) -> str:
        return f"pipeline {self.pipeline!r} has no plan {self.sequence}"

    def expected(self) -> str:
        return (
            f"a number from 1 to {self.latest or 0}" if self.latest else "a plan to be made first"
        )

    def found(self) -> str:
        return str(self.sequence)

    def remedy(self) -> str:
        return f"make a plan with `tidemark plan {self.pipeline}`, or name one that there is"


@dataclass(kw_only=True, eq=False)
class PlanOpen(TerminalError):
    """A backfill is open, so another one may not start."""

    pipeline: str
    sequence: int
    requested_by: str

    def what(self) -> str:
        return f"pipeline {self.pipeline!r} has an open backfill"

    def expected(self) -> str:
        return "one backfill of a pipeline at a time"

    def found(self) -> str:
        return f"plan {self.sequence}, asked for by {self.requested_by}, not landed yet"

    def remedy(self) -> str:
        return (
            f"finish it with `tidemark ingest {self.pipeline} --plan {self.sequence}`, or give it "
            f"up with `tidemark abandon {self.pipeline} --plan {self.sequence} --reason TEXT`"
        )


@dataclass(kw_only=True, eq=False)
class NotLanded(UnknownOutcomeError):
    """The engine reported success and the data table's log does not have the plan."""

    pipeline: str
    sequence: int
    seen: str

    def what(self) -> str:
        return f"plan {self.sequence} of pipeline {self.pipeline!r} is not in its data table"

    def expected(self) -> str:
        return f"a commit of transaction version {self.sequence} with this plan's fingerprint"

    def found(self) -> str:
        return self.seen

    def remedy(self) -> str:
        return "run the same plan again: it looks first and lands only what is not there"


@dataclass(kw_only=True, eq=False)
class ForeignCommit(TerminalError):
    """A commit in the data table that carries our transaction and not our plan."""

    pipeline: str
    sequence: int
    fingerprint: str
    other_fingerprint: str

    def what(self) -> str:
        return f"the data table of {self.pipeline!r} has another plan {self.sequence}"

    def expected(self) -> str:
        return f"fingerprint {self.fingerprint}"

    def found(self) -> str:
        return f"fingerprint {self.other_fingerprint}"

    def remedy(self) -> str:
        return (
            "the control table and the data table are not of one pipeline history: "
            "see docs/runbook.md, ForeignCommit"
        )


@dataclass(kw_only=True, eq=False)
class OverfullRange(TerminalError):
    """More rows of a plan than it has offsets: something doubled them."""

    pipeline: str
    sequence: int
    partition: int
    offsets: int
    records: int

    def what(self) -> str:
        return (
            f"the data table of {self.pipeline!r} holds too many rows of plan {self.sequence}, "
            f"partition {self.partition}"
        )

    def expected(self) -> str:
        return f"at most {self.offsets}, one for each offset"

    def found(self) -> str:
        return str(self.records)

    def remedy(self) -> str:
        return "something else wrote to the table: see docs/runbook.md, OverfullRange"


@dataclass(kw_only=True, eq=False)
class TableBehindLedger(TerminalError):
    """The data table has not seen what is recorded as landed in it."""

    pipeline: str
    sequence: int
    newest: int

    def what(self) -> str:
        return f"the data table of {self.pipeline!r} is not the one that its plans landed in"

    def expected(self) -> str:
        return f"a table whose log has plan {self.sequence}"

    def found(self) -> str:
        return f"plan {self.newest} as the newest" if self.newest else "no table, or an empty one"

    def remedy(self) -> str:
        return (
            "if the spec's target was changed, change it back or rename the pipeline; if the table "
            "was removed, see docs/runbook.md, TableBehindLedger"
        )


@dataclass(kw_only=True, eq=False)
class LedgerBehindTable(TerminalError):
    """The data table has seen a plan that the control table does not know."""

    pipeline: str
    sequence: int
    newest: int

    def what(self) -> str:
        return f"the control table is behind the data table of {self.pipeline!r}"

    def expected(self) -> str:
        return f"a control table that knows plan {self.sequence}"

    def found(self) -> str:
        return f"plan {self.newest} as the newest" if self.newest else "no plan of this chain"

    def remedy(self) -> str:
        return (
            "the control table was removed, restored or is another one: "
            "see docs/runbook.md, LedgerBehindTable"
        )


@dataclass(kw_only=True, eq=False)
class TableRestored(TerminalError):
    """A RESTORE took landed plans out of the data table."""

    pipeline: str
    sequence: int
    version: int

    def what(self) -> str:
        return f"the data table of {self.pipeline!r} was restored to version {self.version}"

    def expected(self) -> str:
        return f"a table that holds plan {self.sequence}, which is recorded as landed"

    def found(self) -> str:
        return "a RESTORE to a version before it"

    def remedy(self) -> str:
        return "restore the table to its newest version: see docs/runbook.md, TableRestored"


@dataclass(kw_only=True, eq=False)
class FenceConflict(TransientError):
    """Somebody committed under a plan's transaction while it was being given up."""

    pipeline: str
    sequence: int

    def what(self) -> str:
        return f"plan {self.sequence} of pipeline {self.pipeline!r} moved while it was given up"

    def expected(self) -> str:
        return "no other commit of its transaction"

    def found(self) -> str:
        return "one"

    def remedy(self) -> str:
        return "run the same command again: it looks first"


@dataclass(kw_only=True, eq=False)
class PlanAbandoned(TerminalError):
    """A plan that was given up, and may not land any more."""

    pipeline: str
    sequence: int
    reason: str

    def what(self) -> str:
        return f"plan {self.sequence} of pipeline {self.pipeline!r} was given up"

    def expected(self) -> str:
        return "an open or landed plan"

    def found(self) -> str:
        return f"abandoned: {self.reason}"

    def remedy(self) -> str:
        return f"make a new plan with `tidemark plan {self.pipeline}`; its offsets are unread"


@dataclass(kw_only=True, eq=False)
class PlanLanded(TerminalError):
    """A plan that is to be given up, and is in the data table already."""

    pipeline: str
    sequence: int

    def what(self) -> str:
        return f"plan {self.sequence} of pipeline {self.pipeline!r} cannot be given up"

    def expected(self) -> str:
        return "an open plan"

    def found(self) -> str:
        return "it has landed, and is recorded so"

    def remedy(self) -> str:
        return "nothing is left to do for this plan"


@dataclass(kw_only=True, eq=False)
class ForeignTable(TerminalError):
    """A target that exists and is not a table Tidemark made."""

    target: str
    difference: str

    def what(self) -> str:
        return f"the target {self.target} is not a Tidemark table"

    def expected(self) -> str:
        return "no table yet, or one with the bronze columns"

    def found(self) -> str:
        return self.difference

    def remedy(self) -> str:
        return "give the pipeline another target; nothing was written to this one"


@dataclass(kw_only=True, eq=False)
class EngineFailed(TransientError):
    """Spark could not finish, for a reason that says nothing about the data."""

    operation: str
    reason: str

    def what(self) -> str:
        return f"Spark failed while {self.operation}"

    def expected(self) -> str:
        return "the job to finish"

    def found(self) -> str:
        return self.reason

    def remedy(self) -> str:
        return "read the log above; running the same plan again is safe"


@dataclass(kw_only=True, eq=False)
class PlanNotLanded(TerminalError):
    """A step that needs landed data, asked for on an open plan."""

    pipeline: str
    sequence: int

    def what(self) -> str:
        return f"plan {self.sequence} of pipeline {self.pipeline!r} has not landed"

    def expected(self) -> str:
        return "a plan whose data is in the table"

    def found(self) -> str:
        return "an open plan"

    def remedy(self) -> str:
        return f"land it first: `tidemark ingest {self.pipeline} --plan {self.sequence}`"


# -- Airflow -------------------------------------------------------------------------------------


@dataclass(kw_only=True, eq=False)
class AirflowUnavailable(TransientError):
    """Airflow gave no answer, or was not done in time."""

    operation: str
    reason: str

    def what(self) -> str:
        return f"Airflow did not manage {self.operation}"

    def expected(self) -> str:
        return "an answer in time"

    def found(self) -> str:
        return self.reason

    def remedy(self) -> str:
        return "look at the log of `airflow standalone` in Airflow's home, then try again"


@dataclass(kw_only=True, eq=False)
class AirflowRefused(TerminalError):
    """Airflow's API answered no."""

    operation: str
    reason: str

    def what(self) -> str:
        return f"Airflow refused {self.operation}"

    def expected(self) -> str:
        return "a request that its API accepts"

    def found(self) -> str:
        return self.reason

    def remedy(self) -> str:
        return "correct the request; a DAG that is not there may have an import error"


# -- quality -------------------------------------------------------------------------------------


@dataclass(kw_only=True, eq=False)
class SuiteError(SpecError):
    """Quality suites that cannot be used; carries every problem, not the first."""

    def what(self) -> str:
        listed = "\n".join(f"  {problem}" for problem in self.problems)
        return f"{len(self.problems)} problem(s) in quality suites:\n{listed}\n"

    def expected(self) -> str:
        return "suites as docs/quality.md describes them"


@dataclass(kw_only=True, eq=False)
class QualityFailed(TidemarkError):
    """A critical expectation failed on a landed slice. The data stays landed."""

    exit_code: ClassVar[ExitCode] = ExitCode.QUALITY_FAILED

    pipeline: str
    sequence: int
    failed: tuple[str, ...]
    data_docs: str

    def what(self) -> str:
        return f"plan {self.sequence} of pipeline {self.pipeline!r} failed its quality suite"

    def expected(self) -> str:
        return "every critical expectation to hold"

    def found(self) -> str:
        return f"failed: {', '.join(self.failed)}"

    def remedy(self) -> str:
        return f"the data stays landed; open the report at {self.data_docs}"


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(str(number) for number in numbers)
