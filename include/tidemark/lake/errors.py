"""Errors of Delta tables and their storage."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tidemark.core.errors import TerminalError, TransientError, listed


@dataclass(kw_only=True, eq=False)
class StorageRefused(TerminalError):
    """The storage does not let this process read or write a table or a page."""

    location: str
    operation: str
    reason: str

    def what(self) -> str:
        return f"{self.operation} failed at {self.location}: {self.reason}"

    def expected(self) -> str:
        return "storage that this process may read and write"

    def found(self) -> str:
        return self.reason

    def remedy(self) -> str:
        return "give this process access to the location, then run the command again"


@dataclass(kw_only=True, eq=False)
class StorageUnavailable(TransientError):
    """The storage of a table or a page is full, or does not answer."""

    location: str
    operation: str
    reason: str

    def what(self) -> str:
        return f"{self.operation} failed at {self.location}: {self.reason}"

    def expected(self) -> str:
        return "storage that answers and has free space"

    def found(self) -> str:
        return self.reason

    def remedy(self) -> str:
        return "free space or make the storage reachable, then run the command again"


@dataclass(kw_only=True, eq=False)
class DeltaLogDamaged(TerminalError):
    """A folder has data files without a Delta log, or a Delta log is incomplete."""

    location: str
    reason: str

    def what(self) -> str:
        return f"{self.location} has no complete Delta log: {self.reason}"

    def expected(self) -> str:
        return "a folder with a complete _delta_log, or without data files"

    def found(self) -> str:
        return self.reason

    def remedy(self) -> str:
        return (
            "restore the whole folder _delta_log; without a copy of it, move the table's folder "
            "away and run the command again; if the folder never was a Delta table, use another "
            "location for the table (docs/runbook.md, DeltaLogDamaged)"
        )


@dataclass(kw_only=True, eq=False)
class UnsafeStorage(TerminalError):
    """The storage accepts the creation of a file that already exists."""

    location: str
    reason: str

    def what(self) -> str:
        return (
            f"the storage of {self.location} is unsafe: two processes can commit the same version "
            f"of a table there, which loses one of the two commits"
        )

    def expected(self) -> str:
        return "storage that refuses a second creation of a file (on S3: PUT with If-None-Match: *)"

    def found(self) -> str:
        return self.reason

    def remedy(self) -> str:
        return (
            "move the lakehouse to storage with conditional writes (docs/clusters.md, Storage; "
            "docs/runbook.md, UnsafeStorage)"
        )


_REFUSED = {
    *(errno.EPERM, errno.EACCES, errno.EROFS, errno.EFBIG, errno.ENAMETOOLONG),
    *(errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP),
}


_UNAVAILABLE = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EMFILE),
    *(errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTUNREACH, errno.ENETUNREACH),
}


def storage_error(number: int | None) -> type[StorageRefused] | type[StorageUnavailable] | None:
    """The error class for an error number of the operating system; None for other numbers."""
    if number in _REFUSED:
        return StorageRefused
    return StorageUnavailable if number in _UNAVAILABLE else None


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
class EngineFailed(TransientError):
    """Spark or delta-rs failed, for a reason that is not a property of the data.

    Attributes:
        operation: What was done, in the form "landing plan 3".
        reason: The cause, in one line.
        log: The file with the Java stack; empty if there is none.
    """

    operation: str
    reason: str
    log: str = ""

    def what(self) -> str:
        return f"{self.operation} failed: {self.reason}"

    def expected(self) -> str:
        return "it to finish"

    def found(self) -> str:
        return self.reason

    def remedy(self) -> str:
        stack = f"; the stack is in {self.log}" if self.log else ""
        return f"run the same plan or command again, which is safe{stack}"

    def as_record(self) -> dict[str, Any]:
        """The record of every error, with the file that contains the stack."""
        return {**super().as_record(), "log": self.log or None}


@dataclass(kw_only=True, eq=False)
class LandingOvertaken(TransientError):
    """A conflicting commit preceded the commit of a landing; the landing wrote nothing.

    Attributes:
        pipeline: Pipeline name.
        sequence: The plan that did not land.
        reason: The conflict, in the words of delta-rs.
    """

    pipeline: str
    sequence: int
    reason: str

    def what(self) -> str:
        return (
            f"plan {self.sequence} of pipeline {self.pipeline!r} did not land: another process "
            f"committed to the table first, such as a replacement or an undo"
        )

    def expected(self) -> str:
        return "no conflicting commit between reading the table and committing the plan"

    def found(self) -> str:
        return self.reason

    def remedy(self) -> str:
        return "run the same plan again, which reads its offsets again and lands each record once"


@dataclass(kw_only=True, eq=False)
class ControlFileMissing(TerminalError):
    """Files that the control table's log refers to are not in the storage."""

    table: str
    files: tuple[str, ...]

    def what(self) -> str:
        return f"the control table {self.table} has lost {len(self.files)} of its files"

    def expected(self) -> str:
        return "every file that its newest version refers to"

    def found(self) -> str:
        return f"no file {', '.join(self.files[:3])}{', ...' if len(self.files) > 3 else ''}"

    def remedy(self) -> str:
        return (
            "restore the files from a backup or the storage's object versions; or drop them with "
            "`tidemark control repair --apply`, and rebuild each pipeline that `tidemark status` "
            "then names; see docs/runbook.md, ControlFileMissing"
        )


@dataclass(kw_only=True, eq=False)
class ControlFileDamaged(TerminalError):
    """A file of the control table exists and cannot be read."""

    table: str
    file: str
    reason: str

    def what(self) -> str:
        return f"file {self.file!r} of the control table {self.table} is damaged"

    def expected(self) -> str:
        return "a Parquet file whose text is UTF-8"

    def found(self) -> str:
        return self.reason

    def remedy(self) -> str:
        return (
            "restore the file from a backup or the storage's object versions; or move it away, "
            "run `tidemark control repair --apply`, and rebuild each pipeline that "
            "`tidemark status` then names; see docs/runbook.md, ControlFileDamaged"
        )


@dataclass(kw_only=True, eq=False)
class CopiesDiffer(TerminalError):
    """Rows of a data table have the same topic id, partition, offset and plan, and differ."""

    pipeline: str
    topic_id: str
    partition: int
    offset: int
    sequence: int
    columns: tuple[str, ...]

    def what(self) -> str:
        return (
            f"rows of {self.pipeline!r} share topic id {self.topic_id}, partition "
            f"{self.partition}, offset {self.offset} and plan {self.sequence}, and differ"
        )

    def expected(self) -> str:
        return "rows that are equal in all columns"

    def found(self) -> str:
        return f"differences in {', '.join(self.columns)}"

    def remedy(self) -> str:
        return (
            f"nothing was changed; `tidemark undo {self.pipeline} --plan {self.sequence} "
            "--reason TEXT` removes the rows of the plan, and the next run reads them again; see "
            "docs/runbook.md, CopiesDiffer"
        )


@dataclass(kw_only=True, eq=False)
class RowsWouldBeLost(TerminalError):
    """A plan was to replace rows, some of which Kafka cannot give any more."""

    pipeline: str
    sequence: int
    lost: tuple[tuple[int, int, int], ...]

    def what(self) -> str:
        return (
            f"plan {self.sequence} of pipeline {self.pipeline!r} would replace rows by nothing; "
            "the table is as it was"
        )

    def expected(self) -> str:
        return "a record in Kafka for every row that is replaced"

    def found(self) -> str:
        return (
            f"none for {sum(end - start for _, start, end in self.lost):,} row(s), at "
            f"{listed(f'{p}:{start}-{end}' for p, start, end in self.lost)}: compacted or deleted "
            "since, aborted, or from elsewhere"
        )

    def remedy(self) -> str:
        return (
            f"give the plan up with `tidemark abandon {self.pipeline} --plan {self.sequence} "
            "--reason TEXT`, and ask anew for the other offsets; with --resume the chunk would "
            "end here again"
        )


@dataclass(kw_only=True, eq=False)
class RetentionTooShort(TerminalError):
    """Files would be removed that readers, and time travel, may still need."""

    table: str
    asked_hours: int
    shortest_hours: int

    def what(self) -> str:
        return f"removed files of {self.table} may not go so soon"

    def expected(self) -> str:
        return f"at least {self.shortest_hours} hours"

    def found(self) -> str:
        return f"{self.asked_hours} hours"

    def remedy(self) -> str:
        return (
            "say more with --keep-hours, or set the table property "
            "delta.deletedFileRetentionDuration; see docs/runbook.md, RetentionTooShort"
        )


@dataclass(kw_only=True, eq=False)
class ClockDiffers(TerminalError):
    """This machine's clock differs from the storage's, so the age of files is unknown."""

    subject: str
    local: datetime
    storage: datetime

    def what(self) -> str:
        seconds = abs((self.local - self.storage).total_seconds())
        side = "ahead of" if self.local > self.storage else "behind"
        return (
            f"this machine's clock is {seconds:,.0f} seconds {side} the clock of the storage; "
            f"no file of {self.subject} was removed"
        )

    def expected(self) -> str:
        return f"about {self.storage:%Y-%m-%d %H:%M:%S}Z, the time of a file just written"

    def found(self) -> str:
        return f"{self.local:%Y-%m-%d %H:%M:%S}Z on this machine"

    def remedy(self) -> str:
        return (
            "set this machine's clock (or the storage's), then run the maintenance again; "
            "see docs/runbook.md, ClockDiffers"
        )


@dataclass(kw_only=True, eq=False)
class CompactionConflict(TransientError):
    """Other commits removed the files that a rewrite was about to replace."""

    table: str
    reason: str

    def what(self) -> str:
        return f"files of {self.table} were not replaced, because another commit was first"

    def expected(self) -> str:
        return "no other commit that removes these files during the rewrite"

    def found(self) -> str:
        return self.reason

    def remedy(self) -> str:
        return "nothing was changed; run the command again"
