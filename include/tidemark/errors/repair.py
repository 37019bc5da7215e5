"""The control table and the data tables not of one history, and putting that right."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.errors.base import PERHAPS_DONE, TerminalError, TransientError


@dataclass(kw_only=True, eq=False)
class ControlTruncated(TerminalError):
    """The control table's log has seen events that its rows do not have."""

    pipeline: str
    event_number: int
    missing: int

    def what(self) -> str:
        return f"the control table has lost events of pipeline {self.pipeline!r}"

    def expected(self) -> str:
        return f"every event up to {self.event_number}, which its log has seen"

    def found(self) -> str:
        return f"{self.missing} of them missing"

    def remedy(self) -> str:
        return (
            "restore the control table to its newest version, or rebuild the pipeline's events "
            f"from its data table: `tidemark control rebuild {self.pipeline} --dry-run`"
        )


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
class ControlDoubled(TerminalError):
    """The control table contains rows of an event more than once, after a wrong compaction."""

    pipeline: str
    events: tuple[int, ...]

    def what(self) -> str:
        return f"the control table contains events of pipeline {self.pipeline!r} more than once"

    def expected(self) -> str:
        return "each row of an event once"

    def found(self) -> str:
        first, last = self.events[0], self.events[-1]
        return f"{len(self.events)} doubled event(s), from number {first} to {last}"

    def remedy(self) -> str:
        return "`tidemark control repair --apply` writes each event once; no row is lost"


@dataclass(kw_only=True, eq=False)
class RowsDoubled(TerminalError):
    """A data table has more rows than its plans can have landed."""

    pipeline: str
    rows: int
    landed: int

    def what(self) -> str:
        return f"the data table of {self.pipeline!r} has more rows than have landed in it"

    def expected(self) -> str:
        return f"at most {self.landed:,} rows, by the control table"

    def found(self) -> str:
        return f"{self.rows:,} rows, by the files of its newest version"

    def remedy(self) -> str:
        return (
            f"`tidemark deduplicate {self.pipeline} --dry-run` counts the copies of rows, "
            "--apply removes them; see docs/runbook.md, RowsDoubled"
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
class TableTampered(TerminalError):
    """Rows of a plan that are neither all there nor all gone, or that another plan landed too."""

    pipeline: str
    sequence: int
    needed: str
    seen: str

    def what(self) -> str:
        return (
            f"the data table of {self.pipeline!r} holds rows of plan {self.sequence} that no "
            "plan explains"
        )

    def expected(self) -> str:
        return self.needed

    def found(self) -> str:
        return self.seen

    def remedy(self) -> str:
        return (
            "nothing was changed: find out with DESCRIBE HISTORY who changed the table, and "
            "RESTORE it to a version before that"
        )


@dataclass(kw_only=True, eq=False)
class NothingToRepair(TerminalError):
    """The control table and the data table tell one story already."""

    pipeline: str

    def what(self) -> str:
        return f"the control table and the data table of {self.pipeline!r} agree"

    def expected(self) -> str:
        return "a plan that one of them has and the other has not"

    def found(self) -> str:
        return "none"

    def remedy(self) -> str:
        return PERHAPS_DONE


@dataclass(kw_only=True, eq=False)
class NotARewind(TerminalError):
    """The data table has plans that the control table does not know: more than a RESTORE."""

    pipeline: str
    unknown: tuple[int, ...]

    def what(self) -> str:
        return f"pipeline {self.pipeline!r} cannot be rewound: its control table is behind as well"

    def expected(self) -> str:
        return "a control table that knows every plan of the data table"

    def found(self) -> str:
        return f"rows of unknown plan(s) {', '.join(map(str, self.unknown))}"

    def remedy(self) -> str:
        return f"`tidemark control rebuild {self.pipeline} --dry-run`"


@dataclass(kw_only=True, eq=False)
class TableDiffers(TerminalError):
    """What Kafka shows is not what the data table holds."""

    pipeline: str
    differences: int
    first: tuple[str, ...]

    def what(self) -> str:
        return f"the data table of {self.pipeline!r} differs from Kafka"

    def expected(self) -> str:
        return "each visible record of every landed range once, with equal content"

    def found(self) -> str:
        return f"{self.differences} difference(s), first: {'; '.join(self.first)}"

    def remedy(self) -> str:
        return (
            "see docs/runbook.md, TableDiffers; keep the topic's retention long until it is mended"
        )


@dataclass(kw_only=True, eq=False)
class NothingToVerify(TerminalError):
    """A verification of offsets of which nothing has landed."""

    pipeline: str
    topic: str

    def what(self) -> str:
        return f"nothing of that has landed for pipeline {self.pipeline!r}"

    def expected(self) -> str:
        return f"landed offsets of {self.topic} in the range asked for"

    def found(self) -> str:
        return "none"

    def remedy(self) -> str:
        return "`tidemark status PIPELINE` shows how far each partition has landed"


@dataclass(kw_only=True, eq=False)
class UndoUnfinished(TransientError):
    """A plan is being undone, or whoever undid it was stopped."""

    pipeline: str
    sequence: int

    def what(self) -> str:
        return f"plan {self.sequence} of pipeline {self.pipeline!r} is half undone"

    def expected(self) -> str:
        return "its rows out of the data table, and that recorded"

    def found(self) -> str:
        return "that it was begun; nobody reads its offsets meanwhile"

    def remedy(self) -> str:
        return (
            f"if nobody is at it, `tidemark undo {self.pipeline} --plan {self.sequence} "
            "--reason TEXT` goes on"
        )


@dataclass(kw_only=True, eq=False)
class RepairUnfinished(TransientError):
    """The data table is fenced for a new epoch that is not recorded: a repair is under way."""

    pipeline: str
    epoch: int

    def what(self) -> str:
        return f"pipeline {self.pipeline!r} is being repaired"

    def expected(self) -> str:
        return "a data table in which plans of the newest recorded epoch can land"

    def found(self) -> str:
        return f"epoch {self.epoch} fenced off, and no later one recorded"

    def remedy(self) -> str:
        return (
            "try again in a moment; if it stays, the repair was interrupted: run the same "
            f"`tidemark rewind {self.pipeline} --reason TEXT` or "
            f"`tidemark control rebuild {self.pipeline} --apply` again"
        )
