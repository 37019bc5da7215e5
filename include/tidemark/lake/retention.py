"""Which files of a table nobody needs any more, and what maintenance came to."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, TypeAlias

from tidemark.core.datafile import plan_of_folder
from tidemark.core.ledger import Ledger
from tidemark.lake.errors import ClockDiffers, RetentionTooShort

USUAL_RETENTION = timedelta(days=7)
"""What readers of older versions, RESTORE and the longest landing have, as in Delta Lake."""
USUAL_PAGES_RETENTION = timedelta(days=90)
"""How long pages of quality checks stay; their results stay for ever."""

KEEP_LOG: Mapping[str, str] = {"delta.enableExpiredLogCleanup": "false"}
"""A property of every table: only maintenance removes old commits, after it has checked the clock.

Otherwise each writer removes them by the clock of its machine. A clock that is a month ahead would
remove the whole log before the newest checkpoint.
"""
CLOCK_TOLERANCE = timedelta(minutes=10)
"""Largest difference of this machine's and the storage's clock for a removal of files by age."""

PlanIsOver: TypeAlias = Callable[[int], bool]
"""Whether no driver can land the plan of this number any more, as far as is known."""

CLOCK_PROBE = ".tidemark-clock-"
"""Prefix of the name of the file that maintenance writes to read the storage's clock."""
TRIAL = ".tidemark-trial-"
"""Prefix of the name of the folder in which a process tests conditional writes."""
PROBE_LIFETIME = timedelta(hours=1)
"""No process uses such a file or folder at this age."""

_OUTSIDE_PLANS = re.compile(r"([^/=]+=[^/]*/)*part-[^/]+\.parquet")
"""What delta-rs and Spark write into a table's folder themselves, by partition if there are any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file below a table's folder, whether a version refers to it or not.

    Attributes:
        path: Relative to the table.
        size: Bytes.
        modified_ms: When it was written, milliseconds since 1970.
    """

    path: str
    size: int
    modified_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFiles:
    """The files of a table's newest version.

    Attributes:
        files: Number of them.
        bytes: Their size.
        retention: How long the table wants removed files kept; None if it says nothing.
    """

    files: int
    bytes: int
    retention: timedelta | None


class UpkeepOutcome(StrEnum):
    """What became of a table."""

    DONE = "maintained"
    """Small files are few, and files that nobody needs are gone."""
    PUT_OFF = "not compacted: others changed it"
    """Files that nobody needs are gone; the next maintenance compacts."""
    DRY_RUN = "draft"
    """Nothing was written or removed."""
    NO_TABLE = "no table yet"
    """There is nothing to maintain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkept:
    """What the maintenance of one table came to.

    Attributes:
        table: Its name for people.
        outcome: What became of it.
        before: Files before.
        after: Files after; as before in a dry run.
        replaced: Small files that were written anew as few.
        removed: Files that nobody needed, which are gone, or would be.
        keep: How long files were kept after a version without them was there.
    """

    table: str
    outcome: UpkeepOutcome
    before: TableFiles | None = None
    after: TableFiles | None = None
    replaced: int = 0
    removed: tuple[StoredFile, ...] = ()
    keep: timedelta = timedelta(0)

    @property
    def bytes_freed(self) -> int:
        """Size of the files that nobody needed."""
        return sum(file.size for file in self.removed)

    def as_record(self) -> dict[str, Any]:
        """The outcome as plain values, for `--json`."""
        return {
            "table": self.table,
            "outcome": self.outcome.value,
            "files_before": self.before.files if self.before else None,
            "files_after": self.after.files if self.after else None,
            "bytes_before": self.before.bytes if self.before else None,
            "bytes_after": self.after.bytes if self.after else None,
            "files_replaced": self.replaced,
            "files_removed": len(self.removed),
            "bytes_freed": self.bytes_freed,
            "kept_hours": self.keep / timedelta(hours=1),
        }


def kept_for(table: str, asked: timedelta, own: timedelta | None) -> timedelta:
    """How long a table's removed files are kept: as asked, or longer if the table says so.

    Args:
        table: Its name for people.
        asked: What maintenance was told.
        own: The table's own word on it; None if it has none.

    Raises:
        RetentionTooShort: Less than a week was asked for, and the table does not say so.
    """
    shortest = USUAL_RETENTION if own is None else min(own, USUAL_RETENTION)
    if asked < shortest:
        hour = timedelta(hours=1)
        raise RetentionTooShort(
            table=table, asked_hours=asked // hour, shortest_hours=-(-shortest // hour)
        )
    return asked if own is None else max(asked, own)


def checked_time(subject: str, local: datetime, storage: datetime) -> datetime:
    """Return the time of the storage, which measures the age of its files.

    Args:
        subject: Name of the table or folder, for the error.
        local: The time by this machine's clock.
        storage: The time by the storage's clock, taken from a file that was just written.

    Raises:
        ClockDiffers: The two are more than `CLOCK_TOLERANCE` apart.
    """
    if abs(local - storage) > CLOCK_TOLERANCE:  # fence: wrong-clock-removes-nothing
        raise ClockDiffers(subject=subject, local=local, storage=storage)
    return storage


def over_in(ledger: Ledger) -> PlanIsOver:
    """Plans that the ledger knows to have landed or to be given up, and that nobody is undoing.

    What it does not know may be a plan that was made since it was read.
    """
    held = {r.plan.sequence for r in ledger.plans.values() if r.is_open or r.undoing}
    return lambda sequence: (
        sequence <= ledger.last_sequence  # fence: files-of-newer-plans-stay
        and sequence not in held  # fence: files-of-open-plans-stay
    )


def name_of(path: str) -> str:
    """What a file is known by: its name, with the folder of its attempt if it is in one.

    Names have UUIDs. The path says no more, and is written in several ways: relative or not, with
    the characters of partition values encoded once or twice. Checksums that Hadoop keeps beside a
    file go by its name.
    """
    *folders, name = path.split("/")
    if name.startswith(".") and name.endswith(".crc"):
        name = name[1:-4]
    if folders and plan_of_folder(folders[-1]) is not None:
        return f"{folders[-1]}/{name}"
    return name


def reclaimable(
    stored: Iterable[StoredFile], needed: Collection[str], before_ms: int, is_over: PlanIsOver
) -> list[StoredFile]:
    """Files that can go: written long ago, needed by no version, and nobody will commit them.

    What no writer of ours makes stays, whatever it is.

    Args:
        stored: What is below the table's folder.
        needed: Files, by `name_of`, of the versions that somebody may read.
        before_ms: Files that were written later stay, milliseconds since 1970.
        is_over: Read *before* `needed`: a plan that lands in between is an open one here.
    """
    return [
        file
        for file in stored
        if file.modified_ms < before_ms  # fence: recent-files-stay
        and name_of(file.path) not in needed
        and _is_nobodys(file.path, is_over)
    ]


def left_probes(stored: Iterable[StoredFile], now: datetime) -> list[StoredFile]:
    """Files that processes wrote to test the storage or to read its clock, and did not remove.

    Args:
        stored: Files below the table's folder.
        now: The time by the storage's clock.
    """
    before_ms = int((now - PROBE_LIFETIME).timestamp() * 1000)
    return [
        file
        for file in stored
        if file.modified_ms < before_ms and file.path.startswith((CLOCK_PROBE, TRIAL))
    ]


def _is_nobodys(path: str, is_over: PlanIsOver) -> bool:
    top, below, _ = path.partition("/")
    sequence = plan_of_folder(top) if below else None
    if sequence is not None:
        return is_over(sequence)
    return _OUTSIDE_PLANS.fullmatch(path) is not None
