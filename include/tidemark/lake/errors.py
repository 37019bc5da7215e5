"""Errors of Delta tables and their storage."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tidemark.core.errors import TerminalError, TransientError, comma_list


@dataclass(kw_only=True, eq=False)
class StorageRefused(TerminalError):
    """The storage does not let this process read or write a table or a page."""

    location: str
    operation: str
    reason: str

    problem = "{operation} failed at {location}: {reason}."
    expected = "storage that this process may read and write"
    actual = "{reason}"
    fix = "Give this process access to the location, then run the command again."


@dataclass(kw_only=True, eq=False)
class StorageUnavailable(TransientError):
    """The storage of a table or a page is full, or does not answer."""

    location: str
    operation: str
    reason: str

    problem = "{operation} failed at {location}: {reason}."
    expected = "storage that answers and has free space"
    actual = "{reason}"
    fix = "Free space or make the storage reachable, then run the command again."


@dataclass(kw_only=True, eq=False)
class DeltaLogDamaged(TerminalError):
    """A folder has data files without a Delta log, or a Delta log is incomplete."""

    location: str
    reason: str

    problem = "{location} has no complete Delta log: {reason}."
    expected = "a folder with a complete _delta_log, or without data files"
    actual = "{reason}"
    fix = (
        "Restore the whole folder _delta_log; without a copy of it, move the table's folder away "
        "and run the command again; if the folder never was a Delta table, use another location "
        "for the table (docs/runbook.md, DeltaLogDamaged)."
    )


@dataclass(kw_only=True, eq=False)
class UnsafeStorage(TerminalError):
    """The storage accepts the creation of a file that already exists."""

    location: str
    reason: str

    problem = (
        "The storage of {location} is unsafe: two processes can commit the same version of a table "
        "there, which loses one of the two commits."
    )
    expected = "storage that refuses a second creation of a file (on S3: PUT with If-None-Match: *)"
    actual = "{reason}"
    fix = (
        "Move the lakehouse to storage with conditional writes (docs/clusters.md, Storage; "
        "docs/runbook.md, UnsafeStorage)."
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

    problem = "Another writer recorded an event of pipeline {pipeline!r} first."
    expected = "to write event {event_number}"
    actual = "that event taken"
    fix = "Run the same command again: it starts from what the other writer recorded."


@dataclass(kw_only=True, eq=False)
class ForeignCommit(TerminalError):
    """A commit in the data table that carries our transaction and not our plan."""

    pipeline: str
    sequence: int
    fingerprint: str
    other_fingerprint: str

    problem = "The data table of {pipeline!r} has another plan {sequence}."
    expected = "fingerprint {fingerprint}"
    actual = "fingerprint {other_fingerprint}"
    fix = (
        "The control table and the data table are not of one pipeline history: see "
        "docs/runbook.md, ForeignCommit."
    )


@dataclass(kw_only=True, eq=False)
class TransactionConflict(TransientError):
    """Somebody else committed under a plan's transaction at the same moment."""

    pipeline: str
    sequence: int

    problem = "Plan {sequence} of pipeline {pipeline!r} moved while this wrote."
    expected = "no other commit of its transaction"
    actual = "one"
    fix = "Run the same command again: it looks first."


@dataclass(kw_only=True, eq=False)
class ForeignTable(TerminalError):
    """A target that exists and is not a table Tidemark made."""

    target: str
    difference: str

    problem = "The target {target} is not a Tidemark table."
    expected = "no table yet, or one with the bronze columns"
    actual = "{difference}"
    fix = (
        "Give the pipeline another target; if it was this pipeline's table, bring back what is "
        "missing of it."
    )


@dataclass(kw_only=True, eq=False)
class TableAltered(TerminalError):
    """A pipeline's own table has a schema or rules that a landing cannot keep."""

    target: str
    difference: str

    problem = "The pipeline's table {target} was altered so that nothing can land in it."
    expected = "the columns of its kind, without constraints and other rules for their values"
    actual = "{difference}"
    fix = "Take that back, with ALTER TABLE; the rows can stay as they are."


@dataclass(kw_only=True, eq=False)
class ColumnsDiffer(TableAltered):
    """A pipeline's own table has not the columns that are to land in it."""

    expected = "the columns of its kind, with their types"
    fix = (
        "Take the change of the table back, with ALTER TABLE; or, of a typed table, that of the "
        "schema in the spec, or begin another table (docs/typed.md, Another schema)."
    )


@dataclass(kw_only=True, eq=False)
class UnreadableFile(TerminalError):
    """A file of a data table is missing, damaged, or contains text that is not UTF-8."""

    table: str
    file: str
    first_plan: int | None
    last_plan: int | None
    reason: str

    problem = "File {file!r} of table {table} cannot be read."
    expected = "a Parquet file whose text is UTF-8"
    actual = "{reason}"
    fix = "{_fix}"

    @property
    def _fix(self) -> str:
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

    problem = "{operation} failed: {reason}."
    expected = "it to finish"
    actual = "{reason}"
    fix = "{_fix}"

    @property
    def _fix(self) -> str:
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

    problem = (
        "Plan {sequence} of pipeline {pipeline!r} did not land: another process committed to the "
        "table first, such as a replacement or an undo."
    )
    expected = "no conflicting commit between reading the table and committing the plan"
    actual = "{reason}"
    fix = "Run the same plan again, which reads its offsets again and lands each record once."


@dataclass(kw_only=True, eq=False)
class ControlFileMissing(TerminalError):
    """Files that the control table's log refers to are not in the storage."""

    table: str
    files: tuple[str, ...]

    problem = "{_problem}"
    expected = "every file that its newest version refers to"
    actual = "{_actual}"
    fix = (
        "Restore the files from a backup or the storage's object versions; or drop them with "
        "`tidemark control repair --apply`, and rebuild each pipeline that `tidemark status` then "
        "names; see docs/runbook.md, ControlFileMissing."
    )

    @property
    def _problem(self) -> str:
        return f"the control table {self.table} has lost {len(self.files)} of its files"

    @property
    def _actual(self) -> str:
        return f"no file {', '.join(self.files[:3])}{', ...' if len(self.files) > 3 else ''}"


@dataclass(kw_only=True, eq=False)
class ControlFileDamaged(TerminalError):
    """A file of the control table exists and cannot be read."""

    table: str
    file: str
    reason: str

    problem = "File {file!r} of the control table {table} is damaged."
    expected = "a Parquet file whose text is UTF-8"
    actual = "{reason}"
    fix = (
        "Restore the file from a backup or the storage's object versions; or move it away, run "
        "`tidemark control repair --apply`, and rebuild each pipeline that `tidemark status` then "
        "names; see docs/runbook.md, ControlFileDamaged."
    )


@dataclass(kw_only=True, eq=False)
class DuplicatesDiffer(TerminalError):
    """Rows of a data table have the same topic id, partition, offset and plan, and differ."""

    pipeline: str
    topic_id: str
    partition: int
    offset: int
    sequence: int
    columns: tuple[str, ...]

    problem = (
        "Rows of {pipeline!r} share topic id {topic_id}, partition {partition}, offset {offset} "
        "and plan {sequence}, and differ."
    )
    expected = "rows that are equal in all columns"
    actual = "{_actual}"
    fix = (
        "Nothing was changed; `tidemark undo {pipeline} --plan {sequence} --reason TEXT` removes "
        "the rows of the plan, and the next run reads them again; see docs/runbook.md, "
        "DuplicatesDiffer."
    )

    @property
    def _actual(self) -> str:
        return f"differences in {', '.join(self.columns)}"


@dataclass(kw_only=True, eq=False)
class RowsWouldBeLost(TerminalError):
    """A plan was to replace rows, some of which Kafka cannot give any more."""

    pipeline: str
    sequence: int
    lost: tuple[tuple[int, int, int], ...]

    problem = (
        "Plan {sequence} of pipeline {pipeline!r} would replace rows by nothing; the table is as "
        "it was."
    )
    expected = "a record in Kafka for every row that is replaced"
    actual = "{_actual}"
    fix = (
        "Give the plan up with `tidemark abandon {pipeline} --plan {sequence} --reason TEXT`, and "
        "ask anew for the other offsets; with --resume the chunk would end here again."
    )

    @property
    def _actual(self) -> str:
        return (
            f"none for {sum(end - start for _, start, end in self.lost):,} row(s), at "
            f"{comma_list(f'{p}:{start}-{end}' for p, start, end in self.lost)}: compacted or "
            "deleted since, aborted, or from elsewhere"
        )


@dataclass(kw_only=True, eq=False)
class ClockDiffers(TerminalError):
    """This machine's clock differs from the storage's, so the age of files is unknown."""

    subject: str
    local: datetime
    storage: datetime

    problem = "{_problem}"
    expected = "about {storage:%Y-%m-%d %H:%M:%S}Z, the time of a file just written"
    actual = "{local:%Y-%m-%d %H:%M:%S}Z on this machine"
    fix = (
        "Set this machine's clock (or the storage's), then run the maintenance again; see "
        "docs/runbook.md, ClockDiffers."
    )

    @property
    def _problem(self) -> str:
        seconds = abs((self.local - self.storage).total_seconds())
        side = "ahead of" if self.local > self.storage else "behind"
        return (
            f"this machine's clock is {seconds:,.0f} seconds {side} the clock of the storage; "
            f"no file of {self.subject} was removed"
        )


@dataclass(kw_only=True, eq=False)
class CompactionConflict(TransientError):
    """Other commits removed the files that a rewrite was about to replace."""

    table: str
    reason: str

    problem = "Files of {table} were not replaced, because another commit was first."
    expected = "no other commit that removes these files during the rewrite"
    actual = "{reason}"
    fix = "Nothing was changed; run the command again."
