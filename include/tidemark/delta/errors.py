"""Errors of Delta tables and their storage."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from tidemark.core.errors import (
    CaseTexts,
    PipelineError,
    TerminalError,
    TidemarkError,
    TransientError,
)
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

    @classmethod
    def without_newest_commit(cls, location: str, version: int) -> Self:
        """Only a checkpoint has the newest version, so no commit can follow it."""
        reason = f"the log has no commit of the newest version {version}"
        return cls(location=location, reason=reason)


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
    fix = "Move the lakehouse to storage with conditional writes (docs/how-to/storage.md)."


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
class ControlConflict(PipelineError, CommitConflict):
    """Another process updated the pipeline's control events before a commit or during a read."""

    event_number: int

    problem = (
        "Another process updated the control table of {pipeline!r} meanwhile (event {event_number} "
        "exists)."
    )
    fix = "Run the command again, or load the page again. Both start from the new state."


@dataclass(kw_only=True, eq=False)
class TransactionConflict(PipelineError, CommitConflict):
    """Another process committed a plan's transaction concurrently."""

    sequence: int

    problem = "Plan {sequence} of pipeline {pipeline!r} was committed concurrently."
    fix = "Run the command again; it reads the table before it writes."


@dataclass(kw_only=True, eq=False)
class TableConflict(CommitConflict):
    """Other processes committed first: rows did not land, or rows or files were not removed.

    Attributes:
        finding: What did not happen and why, in one sentence.
        progress: What the repeated command does, or that nothing was changed, as a main clause.
    """

    finding: str
    progress: str

    problem = "{finding}"
    fix = "Run the command again; {progress}."

    @classmethod
    def of_landing(cls, pipeline: str, sequence: int, reason: str) -> Self:
        """A conflicting commit preceded the commit of a landing; the landing wrote nothing.

        Args:
            pipeline: Pipeline name.
            sequence: The plan that did not land.
            reason: The conflict, as the failed commit reports it.
        """
        return cls(
            finding=(
                f"Plan {sequence} of pipeline {pipeline!r} did not land: another process, such as "
                f"a replacement or an undo, committed to the table first ({reason})."
            ),
            progress="it reads the offsets of the plan again and lands each record once",
        )

    @classmethod
    def of_rows(cls, pipeline: str, sequence: int) -> Self:
        """Rows of a plan were not removed."""
        return cls(
            finding=(
                f"The rows of plan {sequence} of pipeline {pipeline!r} were not removed: other "
                "processes changed the data table in every attempt."
            ),
            progress="it continues",
        )

    @classmethod
    def of_lost_file(cls, table: str, file: str) -> Self:
        """A file disappeared between its creation and its commit; nothing was changed."""
        return cls(
            finding=f"The new file {file} is no longer in the folder of the table {table}.",
            progress="it writes the files again",
        )

    @classmethod
    def of_version(cls, table: str, version: int) -> Self:
        """Another commit came after the version from which a commit was made."""
        return cls(
            finding=f"Another process changed {table} after version {version} was read.",
            progress="it begins again with the newest versions of all tables",
        )

    @classmethod
    def of_files(cls, table: str, reason: str) -> Self:
        """Other commits removed the files that a rewrite was about to replace."""
        return cls(
            finding=f"Files of {table} were not replaced because of a concurrent commit: {reason}.",
            progress="nothing was changed",
        )


@dataclass(kw_only=True, eq=False)
class RemovalFenced(PipelineError, CommitConflict):
    """A repair of the control table began after the decision to remove rows of a plan."""

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


class TableAltered(CaseTexts, TerminalError):
    """Another program changed the columns, rules or properties of the pipeline's table.

    A difference is in the form "it has the constraint 'c'".
    """

    @classmethod
    def of_rule(cls, target: str, difference: str) -> Self:
        """The table has a rule that a landing does not check."""
        return cls(
            finding=f"Tidemark cannot add rows to table {target}: {difference}.",
            advice=(
                "Revert the change with ALTER TABLE; the rows can stay. To end column mapping, use "
                "SET TBLPROPERTIES ('delta.columnMapping.mode' = 'none'). To end partitioning, "
                "RESTORE the version before it."
            ),
        )

    @classmethod
    def of_columns(cls, target: str, difference: str) -> Self:
        """The table lacks columns of the rows to add, or has other types."""
        return cls(
            finding=f"Tidemark cannot add rows to table {target}: {difference}.",
            advice=(
                "Revert the change of the table with ALTER TABLE. For a typed table, revert the "
                "change of the schema in the spec, or decode all records again: `tidemark decode "
                "PIPELINE --from-scratch --reason TEXT` (docs/how-to/typed.md, Correct a wrong "
                "schema)."
            ),
        )

    @classmethod
    def of_features(
        cls, target: str, features: tuple[str, ...], *, is_data_table: bool = True
    ) -> Self:
        """The table has table features that the writers do not support.

        Args:
            target: The table.
            features: The names of the features in the protocol of the table.
            is_data_table: Whether plans land in the table. The rows of most other tables can be
                written again.
        """
        permanent = [name for name in features if name in _PERMANENT_FEATURES]
        if permanent and is_data_table:
            advice = (
                f"Delta cannot drop {comma_list(permanent)}. Commands that only read still accept "
                "the table. To land further records, create a spec with a new name and target. "
                "With `start: earliest`, its runs land all records that Kafka still has."
            )
        elif permanent:
            advice = (
                f"Delta cannot drop {comma_list(permanent)}. Move the table's folder away, and "
                "follow the step of the runbook for this table."
            )
        else:
            drop = comma_list(f"DROP FEATURE {name}" for name in features)
            advice = f"Run ALTER TABLE delta.`{target}` with {drop}. The rows stay."
        named = ", ".join(features)
        return cls(
            finding=f"Tidemark cannot add rows to table {target}: it has the feature {named}.",
            advice=advice,
        )

    @classmethod
    def of_protocol(cls, target: str, difference: str, features: tuple[str, ...] = ()) -> Self:
        """The engine cannot read the table, or cannot write it, because of its protocol.

        Args:
            target: The table.
            difference: The requirement of the protocol.
            features: The names of the table features that the engine does not support.
        """
        step = "follow the step of the runbook for this table."
        advice = f"Delta cannot lower the version of a protocol: {step}"
        if features:
            drop = comma_list(f"DROP FEATURE {name}" for name in features)
            advice = (
                f"Run ALTER TABLE delta.`{target}` with {drop}. The rows stay. If Delta cannot "
                f"drop a feature, {step}"
            )
        return cls(finding=f"Tidemark cannot use table {target}: {difference}.", advice=advice)

    @classmethod
    def append_only(cls, target: str, pipeline: str, difference: str) -> Self:
        """A property of the table forbids the removal of rows.

        Args:
            target: The table.
            pipeline: The pipeline whose table it is, as in `tidemark status`; empty for a table
                that pipelines share.
            difference: The property.
        """
        advice = (
            f"Run ALTER TABLE delta.`{target}` UNSET TBLPROPERTIES ('delta.appendOnly'), then the "
            "command again."
        )
        if pipeline and PipelineRef.parse(pipeline).kind is PipelineKind.LIVE:
            advice += (
                " To keep the rows of a plan and hide them, run `tidemark publication reject "
                f"{pipeline} --plan N --reason TEXT`. If an undo has begun, `tidemark rewind "
                f"{pipeline} --reason TEXT` ends it; the rows stay."
            )
        return cls(
            finding=f"Rows of table {target} cannot be removed: {difference}.", advice=advice
        )


@dataclass(kw_only=True, eq=False)
class UnreadableFile(TerminalError):
    """A file of a table is missing, damaged, or contains text that is not UTF-8.

    Attributes:
        table: The table, as a noun phrase.
        file: Path in the table.
        reason: The cause, in one line.
        repair: The repair of this table, as sentences.
    """

    table: str
    file: str
    reason: str
    repair: str

    problem = "File {file!r} of {table} cannot be read: {reason}."
    fix = "{repair}"

    @classmethod
    def of_plans(
        cls,
        *,
        table: str,
        file: str,
        reason: str,
        pipeline: str,
        first_plan: int | None,
        last_plan: int | None,
    ) -> Self:
        """Plans of a pipeline land in the table.

        Args:
            table: The table.
            file: Path in the table.
            reason: The cause, in one line.
            pipeline: The pipeline.
            first_plan: Lowest plan number of the file's rows; None if unknown.
            last_plan: Highest plan number of the file's rows; None if unknown.
        """
        if first_plan is not None and first_plan == last_plan:
            repair = (
                f"The file contains rows of plan {first_plan} only. `tidemark undo {pipeline} "
                f"--plan {first_plan} --reason TEXT` removes the file without reading it. The next "
                "run lands the plan's offsets again if Kafka has them."
            )
        else:
            repair = (
                "The file contains rows of several plans. RESTORE the table to the version before "
                f"the compaction that wrote the file, then run `tidemark rewind {pipeline} "
                "--reason TEXT`."
            )
        return cls(table=f"table {table}", file=file, reason=reason, repair=repair)

    @classmethod
    def of_decoded_table(cls, *, table: str, file: str, reason: str, pipeline: str) -> Self:
        """The table is the typed table or the quarantine of a pipeline."""
        repair = (
            "RESTORE the table to the version before the commit that wrote the file, then run "
            f"`tidemark decode {pipeline}`. It compares the table with the bronze table, and "
            "decodes missing records. Without such a version, run `tidemark decode "
            f"{pipeline} --from-scratch --reason TEXT` for a typed table. Delete the folder of a "
            "quarantine: the next decode writes all of its entries again."
        )
        return cls(table=f"table {table}", file=file, reason=reason, repair=repair)

    @classmethod
    def of_other_table(cls, *, table: str, file: str, reason: str) -> Self:
        """An undo does not change the table, although its rows may have plan numbers."""
        repair = (
            "Restore the file from a backup or the storage's object versions. Without a copy, "
            "follow the runbook's step for this table."
        )
        return cls(table=f"table {table}", file=file, reason=reason, repair=repair)

    @classmethod
    def of_statuses(cls, *, table: str, file: str, reason: str) -> Self:
        """The table is the status table, so the rows of some pipelines are unknown."""
        repair = (
            "Run `tidemark status --record` without names: it writes the rows of all pipelines."
        )
        return cls(table=f"the status table {table}", file=file, reason=reason, repair=repair)


_PERMANENT_FEATURES = frozenset(
    {
        *("allowColumnDefaults", "clustering", "identityColumns"),
        *("icebergCompatV1", "icebergCompatV2", "timestampNtz"),
        *("variantType", "variantType-preview", "variantShredding", "variantShredding-preview"),
    }
)
"""Table features for which Delta 4.4 refuses ALTER TABLE ... DROP FEATURE."""


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
    """The table was replaced, or lost new files: a commit for a plan was not made.

    Attributes:
        finding: What happened to the table or its files, in one sentence.
        cause: What the repeated command does, and possible causes, as sentences.
    """

    finding: str
    cause: str

    problem = "{finding}"
    fix = "Run the same command again. {cause}"

    @classmethod
    def by_copy(cls, pipeline: str, sequence: int, table: str) -> Self:
        """An older copy replaced the data table before the commit."""
        return cls(
            finding=(
                f"An older copy replaced the table {table} before a commit for plan {sequence} of "
                f"pipeline {pipeline!r}; the commit was refused."
            ),
            cause=(
                "It compares the copy with the control table, and names the fix if they differ."
            ),
        )

    @classmethod
    def without_files(cls, pipeline: str, sequence: int, table: str, file: str) -> Self:
        """Files that a run wrote for a plan disappeared before their commit."""
        return cls(
            finding=(
                f"Plan {sequence} of pipeline {pipeline!r} did not land: its new file {file} is no "
                f"longer in the folder of the table {table}."
            ),
            cause=(
                "It writes the files again. A copy may have replaced the folder, or a VACUUM of "
                "another program may have removed the files before their commit."
            ),
        )


@dataclass(kw_only=True, eq=False)
class DuplicatesDiffer(PipelineError, TerminalError):
    """Rows of a data table have the same topic id, partition, offset and plan, and differ.

    Attributes:
        topic_id: Incarnation of the topic.
        partition: Partition number.
        offset: The offset of both rows.
        sequence: The plan of both rows.
        columns: Columns in which the rows differ.
    """

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
