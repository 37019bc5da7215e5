"""Random sequences of runs, replacements, undos, DELETEs, RESTOREs, copies and repairs.

After each sequence, every record is in the table once, except rows that a DELETE has removed.
"""

from __future__ import annotations

import random
import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.support.file_lake import FileLake, put_back, remove_old_commits
from tidemark.bronze.ingest.errors import RowsChanged
from tidemark.bronze.repair.errors import NothingToDo
from tidemark.core.accounting import Landing
from tidemark.core.errors import LedgerBehindTable, PlanCannotLand

pytestmark = [pytest.mark.faults]

WEIGHTS = {
    "run": 4,
    "replace": 4,
    "undo": 4,
    "delete": 1,
    "compact": 3,
    "restore": 4,
    "copy_table_back": 3,
    "copy_control_back": 1,
    "remove_old_commits": 0.5,
}
"""The operations, and how often each one is chosen."""
SMALL = 30_000
"""Bytes of a file of a thousand records; compaction leaves larger files unchanged."""


@dataclass
class RandomSequence:
    """One random sequence on real tables.

    Attributes:
        root: Folder of the lake and of the copies.
        choice: Chooses operations and their arguments.
        deleted: Rows that a DELETE has removed, by partition and offset.
        steps: The operations so far, for the message of a failure.
        copies: Copies of the data table and of the control table after each step.
    """

    root: Path
    choice: random.Random
    deleted: set[tuple[int, int]] = field(default_factory=set)
    steps: list[str] = field(default_factory=list)
    copies: dict[str, list[Path]] = field(default_factory=lambda: {"table": [], "control": []})

    def __post_init__(self) -> None:
        self.lake = FileLake(root=self.root / "lake")
        # The first plan has a large file and shares a small one, so its undo makes two commits.
        self.lake.produce(2_000, partition=1)
        self.lake.run(3)
        self.lake.run(2)
        self.table.optimize.compact(target_size=SMALL)

    @property
    def table(self) -> DeltaTable:
        """The newest version of the data table."""
        return DeltaTable(self.lake.uri)

    def take(self, count: int) -> None:
        """Perform random operations."""
        for name in self.choice.choices(list(WEIGHTS), list(WEIGHTS.values()), k=count):
            self.copies["table"].append(self._copy(Path(self.lake.uri)))
            self.copies["control"].append(self._copy(Path(self.lake.control_uri)))
            self.steps.append(name)
            getattr(self, name)()

    def run(self) -> None:
        """Land new records of one or both partitions. Large files are not compacted."""
        partition = self.choice.randrange(2)
        self.lake.produce(self.choice.choice([0, 0, 1, 3]), 1 - partition)
        self.lake.run(self.choice.choice([1, 2, 3, 2_000]), partition)

    def replace(self) -> None:
        """Land a part of a plan again."""
        ranges = [each for landing in self._landed().values() for each in landing.counts]
        if ranges:
            whole = self.choice.choice(ranges)
            partition, start = whole.partition, self.choice.randrange(whole.start, whole.end)
            end = self.choice.randrange(start + 1, whole.end + 1)
            try:
                self.lake.land_again((partition, start, end), requested_by=self._name)
            except (RowsChanged, PlanCannotLand) as refused:
                self.steps.append(type(refused).__name__)

    def undo(self) -> None:
        """Undo a landed plan."""
        if landed := self._landed():
            self.lake.undo.undo(self.choice.choice(sorted(landed)), "ops", "wrong")

    def delete(self) -> None:
        """Delete some rows, as another program does."""
        if rows := self.lake.rows():
            some = self.choice.sample(rows, min(len(rows), 2))
            same = [f"(partition = {p} and offset = {o})" for p, o in some]
            self.table.delete(" or ".join(same))
            self.deleted |= set(some)

    def compact(self) -> None:
        """Join all files, or the small ones only."""
        self.table.optimize.compact(target_size=self.choice.choice([SMALL, 10_000_000]))

    def restore(self) -> None:
        """Restore an earlier version, and repair."""
        table = self.table
        versions = [commit["version"] for commit in table.history()]
        version = self.choice.choice(versions)
        self.steps.append(f"to {version} of {table.version()}")
        if version < table.version():
            table.restore(version)
            self._rewind()

    def remove_old_commits(self) -> None:
        """Remove old commits of the log, as maintenance does after the retention time."""
        remove_old_commits(self.lake.uri)

    def copy_table_back(self) -> None:
        """Put a copy of the data table in its place, and repair."""
        self._copy_back("table", Path(self.lake.uri))
        self._rewind()

    def copy_control_back(self) -> None:
        """Put a copy of the control table in its place, and repair."""
        self._copy_back("control", Path(self.lake.control_uri))
        self._rebuild()

    @property
    def _name(self) -> str:
        """A unique requester for each command, as in production."""
        return f"ops:{len(self.steps)}"

    def _landed(self) -> dict[int, Landing]:
        plans = self.lake.control.ledger("events").plans
        return {number: each.held_now for number, each in plans.items() if each.held_now}

    def _copy(self, place: Path) -> Path:
        return shutil.copytree(place, self.root / f"{place.name} after step {len(self.steps)}")

    def _copy_back(self, kind: str, place: Path) -> None:
        copy = self.choice.choice(self.copies[kind])
        self.steps.append(copy.name)
        put_back(copy, place)

    def _rewind(self) -> None:
        try:
            with suppress(NothingToDo):
                self.lake.repair.rewind(self._name, "a mistake")
        except LedgerBehindTable:
            self._rebuild()

    def _rebuild(self) -> None:
        with suppress(NothingToDo):
            self.lake.repair.rebuild(self._name, "a mistake")


@pytest.mark.parametrize("seed", range(60))
def test_no_sequence_of_repairs_loses_or_doubles_a_record(tmp_path: Path, seed: int) -> None:
    """I1, I3. The last run succeeds."""
    choice = random.Random(seed)
    sequence = RandomSequence(root=tmp_path, choice=choice)
    try:
        sequence.take(choice.randrange(4, 12))
        sequence.lake.run(1)
    finally:
        print(f"seed {seed}: {', '.join(sequence.steps)}")
    rows = sequence.lake.rows()
    produced = {
        (partition, offset)
        for partition, log in sequence.lake.kafka.topics["events"].items()
        for offset in range(log.end)
    }
    assert len(rows) == len(set(rows)), "a record is doubled"
    assert set(rows) <= produced
    assert not produced - set(rows) - sequence.deleted, "a record is lost"
    for row in sequence.lake.bronze_rows():
        place = b"%d/%d" % (row["partition"], row["offset"])
        assert row["value"] == b"%d" % row["offset"], "a record is altered"
        assert row["headers"] == [{"key": "place", "value": place}], "a record is altered"
