"""Plans, the control table and the data tables."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.errors.base import TerminalError, TransientError, UnknownOutcomeError


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
    """A commit was made and the data table's log does not have the plan."""

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
            f"was removed for good, `tidemark rewind {self.pipeline} --dry-run --reason TEXT` "
            "shows what is read again (docs/runbook.md, TableBehindLedger)"
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
            "the control table was removed, restored or is another one: bring the right one back, "
            f"or `tidemark control rebuild {self.pipeline} --dry-run` "
            "(docs/runbook.md, LedgerBehindTable)"
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
        return (
            "restore the table to its newest version; if the RESTORE was meant, "
            f"`tidemark rewind {self.pipeline} --dry-run --reason TEXT` shows what is read again "
            "(docs/runbook.md, TableRestored)"
        )


@dataclass(kw_only=True, eq=False)
class TransactionConflict(TransientError):
    """Somebody else committed under a plan's transaction at the same moment."""

    pipeline: str
    sequence: int

    def what(self) -> str:
        return f"plan {self.sequence} of pipeline {self.pipeline!r} moved while this wrote"

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
        return (
            "give the pipeline another target; if it was this pipeline's table, bring back what "
            "is missing of it"
        )


@dataclass(kw_only=True, eq=False)
class TableAltered(TerminalError):
    """A pipeline's own table has a schema or rules that a landing cannot keep."""

    target: str
    difference: str

    def what(self) -> str:
        return f"the pipeline's table {self.target} was altered so that nothing can land in it"

    def expected(self) -> str:
        return "the columns of its kind, without constraints and other rules for their values"

    def found(self) -> str:
        return self.difference

    def remedy(self) -> str:
        return "take that back, with ALTER TABLE; the rows can stay as they are"


@dataclass(kw_only=True, eq=False)
class ColumnsDiffer(TableAltered):
    """A pipeline's own table has not the columns that are to land in it."""

    def expected(self) -> str:
        return "the columns of its kind, with their types"

    def remedy(self) -> str:
        return (
            "take the change of the table back, with ALTER TABLE; or, of a typed table, that of "
            "the schema in the spec, or begin another table (docs/typed.md, Another schema)"
        )


@dataclass(kw_only=True, eq=False)
class UnreadableFile(TerminalError):
    """A file of a data table is missing, damaged, or contains text that is not UTF-8."""

    table: str
    file: str
    first_plan: int | None
    last_plan: int | None
    reason: str

    def what(self) -> str:
        return f"file {self.file!r} of table {self.table} cannot be read"

    def expected(self) -> str:
        return "a Parquet file whose text is UTF-8"

    def found(self) -> str:
        return self.reason

    def remedy(self) -> str:
        if self.first_plan is not None and self.first_plan == self.last_plan:
            return (
                f"the file contains rows of plan {self.first_plan} alone: "
                f"`tidemark undo PIPELINE --plan {self.first_plan} --reason TEXT` removes the file "
                "without reading it, and the next run lands the plan's offsets again"
            )
        return (
            "the file contains rows of several plans: RESTORE the table to the version before the "
            "compaction that wrote the file, then run `tidemark rewind PIPELINE --reason TEXT`"
        )


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


@dataclass(kw_only=True, eq=False)
class RecordsMissed(TransientError):
    """A plan landed, and Kafka shows records of it that are not in the table."""

    pipeline: str
    sequence: int
    records: int
    first: tuple[int, int]

    def what(self) -> str:
        return (
            f"plan {self.sequence} of pipeline {self.pipeline!r} landed without {self.records} "
            "record(s) that Kafka shows"
        )

    def expected(self) -> str:
        return "a row for each visible record of the plan"

    def found(self) -> str:
        partition, offset = self.first
        return f"none for partition {partition}, offset {offset}"

    def remedy(self) -> str:
        return "what landed is recorded and the rest is unread again: the next run reads it"


@dataclass(kw_only=True, eq=False)
class OpenPlanInTheWay(TerminalError):
    """A decision about a pipeline that must not be made while a plan may still land."""

    pipeline: str
    sequence: int
    decision: str

    def what(self) -> str:
        return f"pipeline {self.pipeline!r} has an open plan, so {self.decision} is not safe"

    def expected(self) -> str:
        return "no plan that may still land"

    def found(self) -> str:
        return f"plan {self.sequence}"

    def remedy(self) -> str:
        return (
            f"give it up with `tidemark abandon {self.pipeline} --plan {self.sequence} --reason "
            f"TEXT`, or, if Kafka still has what it reads, land it with `tidemark ingest "
            f"{self.pipeline} --plan {self.sequence}`; then decide again"
        )


@dataclass(kw_only=True, eq=False)
class RowsInDoubt(TerminalError):
    """A plan landed while its topic was made again: its rows may be of either topic."""

    pipeline: str
    sequence: int
    rows: int

    def what(self) -> str:
        return f"nobody can tell whose records plan {self.sequence} of {self.pipeline!r} landed"

    def expected(self) -> str:
        return "a topic that was the same while it was read"

    def found(self) -> str:
        return f"{self.rows} row(s) in the data table, and another topic of that name"

    def remedy(self) -> str:
        return (
            "look at the rows (plan_sequence has the plan's number) and keep a copy of what you "
            f"need; `tidemark abandon {self.pipeline} --plan {self.sequence} --discard --reason "
            f"TEXT` removes them, then `tidemark new-incarnation {self.pipeline} --reason TEXT`"
        )


@dataclass(kw_only=True, eq=False)
class PlanFenced(TerminalError):
    """A plan that somebody began to give up: it is fenced off, and not recorded as given up."""

    pipeline: str
    sequence: int

    def what(self) -> str:
        return f"plan {self.sequence} of pipeline {self.pipeline!r} cannot land any more"

    def expected(self) -> str:
        return "a data table in which its transaction is free"

    def found(self) -> str:
        return "the transaction taken by a commit without the plan: giving it up was interrupted"

    def remedy(self) -> str:
        return (
            f"finish it: `tidemark abandon {self.pipeline} --plan {self.sequence} --reason TEXT`; "
            "its offsets are planned again"
        )
