"""Errors of Delta tables and their storage."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tidemark.core.errors import TerminalError, TidemarkError, TransientError
from tidemark.core.texts import comma_list
from tidemark.spec.ref import PipelineKind, PipelineRef


@dataclass(kw_only=True, eq=False)
class StorageFailure(TidemarkError):
    """Base class: the storage did not perform an operation on a table or a page.

    Attributes:
        location: The table, file or folder.
        operation: The operation, in the form "reading the table".
        reason: The cause, in one line.
    """

    location: str
    operation: str
    reason: str


class StorageRefused(StorageFailure, TerminalError):
    """The storage denies this process an operation on a table or a page."""

    problem = "The storage refused {operation} at {location}: {reason}."
    fix = "Give this process access to the location, then run the command again."


@dataclass(kw_only=True, eq=False)
class StorageUnavailable(StorageFailure, TransientError):
    """The storage of a table or a page is full or does not answer.

    Attributes:
        bytes_needed: Most bytes that the operation writes, if the storage is full; None if unknown.
    """

    bytes_needed: int | None = None

    problem = "The storage failed while {operation} at {location}: {reason}."
    fix = "{space} or make the storage reachable, then run the command again."

    @property
    def space(self) -> str:
        """The space to free, as the beginning of a sentence."""
        if self.bytes_needed is None:
            return "Free space"
        return f"Free {self.bytes_needed:,} bytes at this location,"


@dataclass(kw_only=True, eq=False)
class DeltaLogDamaged(TerminalError):
    """A folder has data files without a Delta log, or a Delta log is incomplete or damaged."""

    location: str
    reason: str

    problem = "The Delta log of {location} is missing, incomplete or damaged: {reason}."
    fix = (
        "Restore the whole folder _delta_log. Without a copy of it, move the table's folder away, "
        "and follow the runbook's step for this table. If the folder never was a Delta table, use "
        "another location for the table."
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
        "Move the lakehouse to storage with conditional writes (docs/how-to/clusters.md, Storage)."
    )


_REFUSED = {
    *(errno.EPERM, errno.EACCES, errno.EROFS, errno.EFBIG, errno.ENAMETOOLONG),
    *(errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP),
}


_UNAVAILABLE = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EMFILE),
    *(errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTUNREACH, errno.ENETUNREACH),
}


def storage_error(number: int | None) -> type[StorageFailure] | None:
    """Return the error class for an error number of the operating system; None for others."""
    if number in _REFUSED:
        return StorageRefused
    return StorageUnavailable if number in _UNAVAILABLE else None


@dataclass(kw_only=True, eq=False)
class CommitConflict(TransientError):
    """Base class: another process committed first. A repetition starts from the new state."""


@dataclass(kw_only=True, eq=False)
class ControlConflict(CommitConflict):
    """Another process updated the pipeline's control events before a commit or during a read."""

    pipeline: str
    event_number: int

    problem = (
        "Another process updated the control table of {pipeline!r} meanwhile (event {event_number} "
        "exists)."
    )
    fix = "Run the command again, or load the page again. Both start from the new state."


@dataclass(kw_only=True, eq=False)
class ForeignCommit(TerminalError):
    """The data table contains a commit with this plan's number and another plan's fingerprint."""

    pipeline: str
    sequence: int
    fingerprint: str
    other_fingerprint: str

    problem = "The data table of {pipeline!r} contains another plan with number {sequence}."
    expected = "fingerprint {fingerprint}"
    actual = "fingerprint {other_fingerprint}"
    fix = (
        "Restore both tables together, or give the pipeline a new name and target. If the control "
        "table is the wrong one, `tidemark control rebuild {pipeline} --dry-run` shows the events "
        "that the data table implies."
    )


@dataclass(kw_only=True, eq=False)
class TransactionConflict(CommitConflict):
    """Another process committed a plan's transaction concurrently."""

    pipeline: str
    sequence: int

    problem = "Plan {sequence} of pipeline {pipeline!r} was committed concurrently."
    fix = "Run the command again; it reads the table before it writes."


@dataclass(kw_only=True, eq=False)
class RemovalConflict(CommitConflict):
    """Other processes changed the table in each attempt to remove rows of a plan."""

    pipeline: str
    sequence: int

    problem = (
        "The rows of plan {sequence} of pipeline {pipeline!r} were not removed: other processes "
        "changed the data table in every attempt."
    )
    fix = "Run the command again; it continues."


@dataclass(kw_only=True, eq=False)
class RemovalFenced(CommitConflict):
    """A repair of the control table began after the decision to remove rows of a plan."""

    pipeline: str
    sequence: int

    problem = (
        "The data table of pipeline {pipeline!r} may still have rows of plan {sequence}, or have "
        "them again: `tidemark rewind` or `tidemark control rebuild` ran at the same time."
    )
    fix = "When the repair has ended, run the command again; it reads the control table first."


@dataclass(kw_only=True, eq=False)
class ForeignTable(TerminalError):
    """The target exists and is not this pipeline's table.

    Attributes:
        target: The table.
        difference: What is wrong with it, in the form "it has no column offset".
    """

    target: str
    difference: str

    problem = "The target {target} is not this pipeline's table: {difference}."
    fix = (
        "Give a new pipeline another target. If the spec's target was changed, change it back. If "
        "the target was this pipeline's table, restore its missing files."
    )


@dataclass(kw_only=True, eq=False)
class TableAltered(TerminalError):
    """Another program gave the pipeline's table a rule that a landing does not check.

    Attributes:
        target: The table.
        difference: What is wrong with it, in the form "it has the constraint 'c'".
    """

    target: str
    difference: str

    problem = "Plans cannot land in table {target}: {difference}."
    fix = (
        "Revert the change with ALTER TABLE; the rows can stay. To end column mapping, use "
        "SET TBLPROPERTIES ('delta.columnMapping.mode' = 'none'). To end partitioning, RESTORE the "
        "version before it."
    )


_PERMANENT_FEATURES = frozenset(
    {
        *("allowColumnDefaults", "clustering", "generatedColumns", "identityColumns"),
        *("icebergCompatV1", "icebergCompatV2", "timestampNtz"),
        *("variantType", "variantType-preview", "variantShredding", "variantShredding-preview"),
    }
)
"""Table features for which Delta 4.4 refuses ALTER TABLE ... DROP FEATURE."""


@dataclass(kw_only=True, eq=False)
class UnsupportedFeature(TableAltered):
    """Another program gave the pipeline's table a table feature that a landing does not follow.

    Attributes:
        features: The names of the features in the protocol of the table.
    """

    features: tuple[str, ...]

    fix = "{remedy}"

    @property
    def remedy(self) -> str:
        """The statements that drop the features; another table if Delta has no such statement."""
        if permanent := [name for name in self.features if name in _PERMANENT_FEATURES]:
            return (
                f"Delta cannot drop {comma_list(permanent)}. Commands that only read still accept "
                "the table. To land further records, create a spec with a new name and target. "
                "With `start: earliest`, its runs land all records that Kafka still has."
            )
        drop = comma_list(f"DROP FEATURE {name}" for name in self.features)
        return f"Run ALTER TABLE delta.`{self.target}` with {drop}. The rows stay."


@dataclass(kw_only=True, eq=False)
class TableAppendOnly(TableAltered):
    """Another program set a property of the table that forbids the removal of rows.

    Attributes:
        pipeline: The pipeline whose table it is, as in `tidemark status`.
    """

    pipeline: str

    problem = "Rows of table {target} cannot be removed: {difference}."
    fix = (
        "Run ALTER TABLE delta.`{target}` UNSET TBLPROPERTIES ('delta.appendOnly'), then the "
        "command again.{alternatives}"
    )

    @property
    def alternatives(self) -> str:
        """Commands that keep the rows of a plan instead; an upsert table has no plans."""
        table = PipelineRef.parse(self.pipeline)
        if table.kind is PipelineKind.UPSERT:
            return ""
        hide = (
            f" To keep the rows of a plan and hide them, run `tidemark publication reject "
            f"{self.pipeline} --plan N --reason TEXT`."
        )
        return (hide if table.kind is not PipelineKind.TYPED else "") + (
            f" If an undo has begun, `tidemark rewind {self.pipeline} --reason TEXT` ends it; the "
            "rows stay."
        )


@dataclass(kw_only=True, eq=False)
class ColumnsDiffer(TableAltered):
    """The pipeline's table lacks columns of the rows that land in it, or has other types."""

    fix = (
        "Revert the change of the table with ALTER TABLE. For a typed table, revert the change of "
        "the schema in the spec, or decode all records again: `tidemark decode PIPELINE "
        "--from-scratch --reason TEXT` (docs/how-to/typed.md, Correct a wrong schema)."
    )


@dataclass(kw_only=True, eq=False)
class UnreadableFile(TerminalError):
    """A file of a data table is missing, damaged, or contains text that is not UTF-8.

    Attributes:
        table: The table.
        file: Path in the table.
        pipeline: The pipeline whose plans land in the table; empty for another table.
        first_plan: Lowest plan number of its rows; None if unknown.
        last_plan: Highest plan number of its rows; None if unknown.
        reason: The cause, in one line.
    """

    table: str
    file: str
    pipeline: str
    first_plan: int | None
    last_plan: int | None
    reason: str

    problem = "File {file!r} of table {table} cannot be read: {reason}."
    fix = "{repair}"

    @property
    def repair(self) -> str:
        """The undo of the file's only plan, or a RESTORE if the file has rows of several plans.

        Other tables may have plan numbers, too, but an undo does not change them.
        """
        if not self.pipeline:
            return (
                "Restore the file from a backup or the storage's object versions. Without a copy, "
                "follow the runbook's step for this table."
            )
        if self.first_plan is not None and self.first_plan == self.last_plan:
            return (
                f"The file contains rows of plan {self.first_plan} only. "
                f"`tidemark undo {self.pipeline} --plan {self.first_plan} --reason TEXT` removes "
                "the file without reading it. The next run lands the plan's offsets again if Kafka "
                "has them."
            )
        return (
            "The file contains rows of several plans. RESTORE the table to the version before the "
            f"compaction that wrote the file, then run `tidemark rewind {self.pipeline} --reason "
            "TEXT`."
        )


@dataclass(kw_only=True, eq=False)
class EngineFailed(TransientError):
    """Spark or delta-rs failed, for a reason other than the data.

    Attributes:
        operation: The operation, in the form "landing plan 3".
        reason: The cause, in one line.
        log: The file with the Java stack trace; empty without one.
    """

    operation: str
    reason: str
    log: str = ""

    problem = "The engine failed while {operation}: {reason}."
    fix = "Run the same plan or command again, which is safe{log_hint}.{memory_hint}"

    @property
    def memory_hint(self) -> str:
        """The setting of Spark's memory, if it did not suffice."""
        if "OutOfMemoryError" not in self.reason:
            return ""
        return " If it fails again, raise spark.driver.memory (on a cluster spark.executor.memory)."

    @property
    def log_hint(self) -> str:
        """A pointer to the file with the stack trace; empty without one."""
        return f"; the stack trace is in {self.log}" if self.log else ""

    def as_record(self) -> dict[str, Any]:
        """The record of every error, with the file that contains the stack trace."""
        return {**super().as_record(), "log": self.log or None}


@dataclass(kw_only=True, eq=False)
class TableReplaced(TransientError):
    """An older copy replaced the data table before a commit for a plan; the commit was refused."""

    pipeline: str
    sequence: int
    table: str

    problem = (
        "An older copy replaced the table {table} before a commit for plan {sequence} of pipeline "
        "{pipeline!r}; the commit was refused."
    )
    fix = (
        "Run the same command again. It compares the copy with the control table, and names the "
        "fix if they differ."
    )


@dataclass(kw_only=True, eq=False)
class PlanFilesMissing(TransientError):
    """Files that a run wrote for a plan disappeared before their commit; the plan did not land."""

    pipeline: str
    sequence: int
    table: str
    file: str

    problem = (
        "Plan {sequence} of pipeline {pipeline!r} did not land: its new file {file} is no longer "
        "in the folder of the table {table}."
    )
    fix = (
        "Run the same command again; it writes the files again. A copy may have replaced the "
        "folder, or a VACUUM of another program may have removed the files before their commit."
    )


@dataclass(kw_only=True, eq=False)
class LandingOvertaken(TransientError):
    """A conflicting commit preceded the commit of a landing; the landing wrote nothing.

    Attributes:
        pipeline: Pipeline name.
        sequence: The plan that did not land.
        reason: The conflict, as delta-rs or `RowRemoval` reports it.
    """

    pipeline: str
    sequence: int
    reason: str

    problem = (
        "Plan {sequence} of pipeline {pipeline!r} did not land: another process, such as a "
        "replacement or an undo, committed to the table first ({reason})."
    )
    fix = "Run the same plan again; it reads its offsets again and lands each record once."


@dataclass(kw_only=True, eq=False)
class ControlFileMissing(TerminalError):
    """Files that the control table's log refers to are not in the storage."""

    table: str
    files: tuple[str, ...]

    problem = "The control table {table} lacks {count:file}: {first_files}."
    fix = (
        "Restore the files from a backup or the storage's object versions. Otherwise remove them "
        "from the log with `tidemark control repair --apply`, and rebuild each pipeline that "
        "`tidemark status` then names."
    )

    @property
    def count(self) -> int:
        """Number of missing files."""
        return len(self.files)

    @property
    def first_files(self) -> str:
        """At most three of the files."""
        more = len(self.files) - 3
        return comma_list(self.files[:3]) + (f" and {more:,} more" if more > 0 else "")


@dataclass(kw_only=True, eq=False)
class ControlFileDamaged(TerminalError):
    """A file of the control table exists and cannot be read."""

    table: str
    file: str
    reason: str

    problem = "File {file!r} of the control table {table} is damaged: {reason}."
    fix = (
        "Restore the file from a backup or the storage's object versions. Otherwise move it away, "
        "run `tidemark control repair --apply`, and rebuild each pipeline that `tidemark status` "
        "then names."
    )


@dataclass(kw_only=True, eq=False)
class StatusFileDamaged(TerminalError):
    """A file of the status table is missing or damaged, so rows of some pipelines are unknown.

    Attributes:
        table: The table.
        file: Path in the table.
        reason: The cause, in one line.
    """

    table: str
    file: str
    reason: str

    problem = "File {file!r} of the status table {table} cannot be read: {reason}."
    fix = "Run `tidemark status --record` without names: it writes the rows of all pipelines."


@dataclass(kw_only=True, eq=False)
class DuplicatesDiffer(TerminalError):
    """Rows of a data table have the same topic id, partition, offset and plan, and differ.

    Attributes:
        pipeline: Pipeline name.
        topic_id: Incarnation of the topic.
        partition: Partition number.
        offset: The offset of both rows.
        sequence: The plan of both rows.
        columns: Columns in which the rows differ.
    """

    pipeline: str
    topic_id: str
    partition: int
    offset: int
    sequence: int
    columns: tuple[str, ...]

    problem = (
        "Rows of {pipeline!r} have the same topic id {topic_id}, partition {partition}, offset "
        "{offset} and plan {sequence}, but differ in {columns}. Nothing was changed."
    )
    fix = (
        "`tidemark undo {pipeline} --plan {sequence} --reason TEXT` removes the rows of the plan, "
        "and the next run reads them again if Kafka has them."
    )


@dataclass(kw_only=True, eq=False)
class RowsWouldBeLost(TerminalError):
    """A plan would replace rows whose records Kafka no longer shows.

    Attributes:
        pipeline: Pipeline name.
        sequence: The plan.
        lost: Partition, start and end of each range of rows without a record.
    """

    pipeline: str
    sequence: int
    lost: tuple[tuple[int, int, int], ...]

    problem = (
        "Plan {sequence} of pipeline {pipeline!r} would delete {count:row} whose records "
        "Kafka no longer shows, at {ranges}. Nothing was changed."
    )
    fix = (
        "Abandon the plan with `tidemark abandon {pipeline} --plan {sequence} --reason TEXT`, then "
        "request a backfill of the other offsets; --resume would fail again."
    )

    @property
    def count(self) -> int:
        """Number of rows that would be lost."""
        return sum(end - start for _, start, end in self.lost)

    @property
    def ranges(self) -> str:
        """Ranges of these rows, in the form `partition:start-end`."""
        return comma_list(f"{partition}:{start}-{end}" for partition, start, end in self.lost)


@dataclass(kw_only=True, eq=False)
class ClockDiffers(TerminalError):
    """This machine's clock differs from the storage's, so the age of files is unknown.

    Attributes:
        subject: The table or folder.
        local: The time by this machine's clock.
        storage: The time by the storage's clock, taken from a file that was just written.
    """

    subject: str
    local: datetime
    storage: datetime

    problem = (
        "This machine's clock is {seconds:,.0f} seconds {side} the clock of the storage. No file "
        "of {subject} was removed."
    )
    expected = "about {storage:%Y-%m-%d %H:%M:%S}Z, the time of a file just written"
    actual = "{local:%Y-%m-%d %H:%M:%S}Z on this machine"
    fix = "Set this machine's clock (or the storage's), then run the maintenance again."

    @property
    def seconds(self) -> float:
        """Absolute difference of the two clocks, seconds."""
        return abs((self.local - self.storage).total_seconds())

    @property
    def side(self) -> str:
        """The direction of the difference."""
        return "ahead of" if self.local > self.storage else "behind"


@dataclass(kw_only=True, eq=False)
class CompactionConflict(CommitConflict):
    """Other commits removed the files that a rewrite was about to replace."""

    table: str
    reason: str

    problem = "Files of {table} were not replaced because of a concurrent commit: {reason}."
    fix = "Run the command again; nothing was changed."
