"""Every error Tidemark raises on purpose.

One root, three branches, because the branch is what a caller acts on:

* `TransientError`: nothing happened, the same call may succeed later. Retry.
* `UnknownOutcomeError`: a commit was sent and the answer was lost. Look, then act.
* `TerminalError`: the same call will fail again until somebody changes something. Never retry.

An error carries fields; its message is derived from them and always says what was expected, what
was found and what to do next. Errors survive pickling, so they cross process boundaries whole.
"""

from tidemark.errors.airflow import AirflowRefused, AirflowUnavailable
from tidemark.errors.backfill import (
    BackfillAhead,
    BackfillTooLarge,
    BackfillUnfinished,
    InvalidSelection,
    NotLive,
    OtherIncarnation,
    TooManyChunks,
    UnknownBackfill,
)
from tidemark.errors.base import (
    ExitCode,
    TerminalError,
    TidemarkError,
    TransientError,
    UnknownOutcomeError,
)
from tidemark.errors.connections import (
    InvalidConnection,
    KafkaRefused,
    KafkaUnavailable,
    TopicMissing,
    UnknownConnection,
)
from tidemark.errors.machine import DemoFailed, SetupError, Unforeseen
from tidemark.errors.maintenance import CompactionConflict, RetentionTooShort
from tidemark.errors.protocol import (
    ControlConflict,
    EngineFailed,
    ForeignCommit,
    ForeignTable,
    LedgerBehindTable,
    NotLanded,
    OpenPlanInTheWay,
    OverfullRange,
    PlanAbandoned,
    PlanFenced,
    PlanLanded,
    PlanNotLanded,
    PlanOpen,
    RecordsMissed,
    RowsInDoubt,
    TableBehindLedger,
    TableRestored,
    TransactionConflict,
    UnknownPlan,
)
from tidemark.errors.quality import QualityFailed, SuiteError
from tidemark.errors.repair import (
    ControlTruncated,
    NotARewind,
    NothingToRepair,
    NothingToVerify,
    RepairUnfinished,
    TableDiffers,
    TableTampered,
    UndoUnfinished,
)
from tidemark.errors.specs import InvalidRange, Problem, SpecError, UnknownPipeline
from tidemark.errors.topic import (
    ClusterChanged,
    EndBehindCommitted,
    LogTruncated,
    LostRange,
    NoStartOffset,
    NothingLost,
    NoTopicId,
    OffsetsDeleted,
    PartitionsShrunk,
    SameIncarnation,
    TopicChanged,
    TopicRecreated,
    UnknownPartition,
)

__all__ = [
    "AirflowRefused",
    "AirflowUnavailable",
    "BackfillAhead",
    "BackfillTooLarge",
    "BackfillUnfinished",
    "ClusterChanged",
    "CompactionConflict",
    "ControlConflict",
    "ControlTruncated",
    "DemoFailed",
    "EndBehindCommitted",
    "EngineFailed",
    "ExitCode",
    "ForeignCommit",
    "ForeignTable",
    "InvalidConnection",
    "InvalidRange",
    "InvalidSelection",
    "KafkaRefused",
    "KafkaUnavailable",
    "LedgerBehindTable",
    "LogTruncated",
    "LostRange",
    "NoStartOffset",
    "NoTopicId",
    "NotARewind",
    "NotLanded",
    "NotLive",
    "NothingLost",
    "NothingToRepair",
    "NothingToVerify",
    "OffsetsDeleted",
    "OpenPlanInTheWay",
    "OtherIncarnation",
    "OverfullRange",
    "PartitionsShrunk",
    "PlanAbandoned",
    "PlanFenced",
    "PlanLanded",
    "PlanNotLanded",
    "PlanOpen",
    "Problem",
    "QualityFailed",
    "RecordsMissed",
    "RepairUnfinished",
    "RetentionTooShort",
    "RowsInDoubt",
    "SameIncarnation",
    "SetupError",
    "SpecError",
    "SuiteError",
    "TableBehindLedger",
    "TableDiffers",
    "TableRestored",
    "TableTampered",
    "TerminalError",
    "TidemarkError",
    "TooManyChunks",
    "TopicChanged",
    "TopicMissing",
    "TopicRecreated",
    "TransactionConflict",
    "TransientError",
    "UndoUnfinished",
    "Unforeseen",
    "UnknownBackfill",
    "UnknownConnection",
    "UnknownOutcomeError",
    "UnknownPartition",
    "UnknownPipeline",
    "UnknownPlan",
]
