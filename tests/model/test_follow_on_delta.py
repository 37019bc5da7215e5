"""The tables of the model behave as Delta tables: both get the same calls in random histories.

Each commit, conflict, deletion, compaction, RESTORE, copy and cleaned log of the typed table and
the quarantine also happens in a real table. Decoders commit with `NotedVersion`.
The rows, the log, the newest note and the refusals of both must be the same.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from tests.model.actors import Answer, Call
from tests.model.follow_actors import perform
from tests.model.follow_history import FollowHistory, Paused
from tests.model.follow_programs import ALL, decode, finish_bronze, last_decode
from tests.model.follow_world import Change, Place, Table, TypedRow
from tidemark.core.following import Batch, BatchOffsets
from tidemark.core.offsets import SpanSet
from tidemark.delta.errors import TableConflict
from tidemark.delta.noted_commits import NotedTable, NotedVersion, RowChange

pytestmark = pytest.mark.slow

_NOTE = "change"
_SCHEMA = pa.schema(
    [
        ("plan_sequence", pa.int64()),
        ("topic_id", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("rules", pa.int64()),
    ]
)
_OPERATIONS = {
    "OPTIMIZE": Change.MAINTAIN,
    "SET TBLPROPERTIES": Change.MAINTAIN,
    "DELETE": Change.DELETE,
    "RESTORE": Change.RESTORE,
}


class RealTable:
    """A Delta table that gets the calls of a table of the model.

    Version n of the model is version n - 1 of the Delta table.

    Args:
        path: Its folder.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log = path / "_delta_log"
        self._properties = 0

    def open(self) -> NotedVersion | None:
        """Return the newest version; None without a table."""
        return NotedTable(str(self._path), _NOTE).open() if self._log.exists() else None

    def version(self) -> int:
        return DeltaTable(self._path).version() + 1 if self._log.exists() else 0

    def rows(self) -> list[tuple[int, int, int]]:
        """Return plan, offset and rules of each row, sorted."""
        if not self.version():
            return []
        rows = pa.table(DeltaTable(self._path).to_pyarrow_table()).to_pylist()
        return sorted((row["plan_sequence"], row["offset"], row["rules"]) for row in rows)

    def changes(self) -> list[Change]:
        """Return the kinds of the commits that the log still has."""
        return [self._change(commit) for commit in sorted(self._log.glob("*.json"))]

    def _change(self, commit: Path) -> Change:
        infos = (json.loads(line).get("commitInfo") for line in commit.read_text().splitlines())
        info = next(info for info in infos if info)
        if "userMetadata" in info:
            return Change(json.loads(info["userMetadata"])[_NOTE])
        return _OPERATIONS[info["operation"]]

    def newest_note(self, *, over_deletions: bool) -> object:
        """Return the kind of the newest commit of a decoder, if it is known."""
        version = self.open()
        return None if version is None else version.newest_note(over_deletions=over_deletions)

    def commit(
        self,
        seen: NotedVersion | None,
        change: Change,
        remove: Collection[tuple[int, int, int]],
        add: Collection[tuple[int, int, int]],
    ) -> None:
        """Commit right after a version, or after commits that change no row.

        Raises:
            TableConflict: Another commit came first.
        """
        if seen is None:
            if self.version():
                raise TableConflict.of_version(str(self._path), 0)
            metadata = {"userMetadata": json.dumps({_NOTE: change.value})}
            properties = CommitProperties(max_commit_retries=0, custom_metadata=metadata)
            write_deltalake(self._path, _data(add), commit_properties=properties)
            return
        rows = _data(add).to_batches() if add else None
        seen.commit(
            change.value, RowChange(removed=_offsets(remove), added=_offsets(add), rows=rows)
        )

    def maintain(self) -> None:
        before = self.version()
        if before:
            DeltaTable(self._path).optimize.compact()
        if before and self.version() == before:
            self._properties += 1
            properties = {"model.commit": str(self._properties)}
            DeltaTable(self._path).alter.set_table_properties(properties, raise_if_not_exists=False)

    def delete(self, place: Place) -> None:
        condition = f'plan_sequence = {place.plan} AND "offset" = {place.offset}'
        DeltaTable(self._path).delete(condition)

    def restore(self, version: int) -> None:
        DeltaTable(self._path).restore(version - 1)

    def copy(self, version: int) -> None:
        """Remove all later commits."""
        for commit in self._log.glob("*.json"):
            if int(commit.stem) >= version:
                commit.unlink()

    def clean_log(self) -> None:
        newest = self.version() - 1
        if newest >= 0:
            DeltaTable(self._path).create_checkpoint()
        for commit in self._log.glob("*.json"):
            if int(commit.stem) < newest:
                commit.unlink()


def _data(rows: Collection[tuple[int, int, int]]) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {"plan_sequence": plan, "topic_id": "id", "partition": 0, "offset": offset, "rules": n}
            for plan, offset, n in rows
        ],
        _SCHEMA,
    )


def _offsets(rows: Collection[tuple[int, int, int]]) -> BatchOffsets:
    plans = {plan for plan, _, _ in rows}
    return {
        Batch(plan, "id"): {0: SpanSet.of_numbers(offset for of, offset, _ in rows if of == plan)}
        for plan in plans
    }


def _plain(row: TypedRow | Place) -> tuple[int, int, int]:
    if isinstance(row, TypedRow):
        return (*row.place, row.rules)
    return (*row, 0)


class DeltaHistory(FollowHistory):
    """A random history whose typed table and quarantine are also real tables."""

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(seed)
        self.real = {name: RealTable(folder / name) for name in ("typed", "quarantine")}
        self._opened: dict[tuple[str, int], NotedVersion | None] = {}

    def settle(self) -> None:
        """Kill all actors, and decode through the same calls."""
        self._paused.clear()
        while finish_bronze(self.world):
            pass
        self._resume(Paused("decode", decode(self._decoder)), 50)

    def perform(self, call: Call) -> Answer:
        if call.port not in self.real:
            return perform(self.world, call)
        table: Table = getattr(self.world, call.port)
        real = self.real[call.port]
        if not self._exists_in_delta(call, table):
            return Answer()
        answer = perform(self.world, call)
        after: Table = getattr(self.world, call.port)
        match call.method:
            case "open":
                # A decoder keeps the version that it opened.
                self._opened[call.port, table.digest] = real.open()
            case "commit":
                seen, change, remove, add, _ = call.args
                error = None
                try:
                    real.commit(
                        self._opened[call.port, seen.digest],
                        change,
                        [_plain(row) for row in remove],
                        [_plain(row) for row in add],
                    )
                except TableConflict as refused:
                    error = refused
                assert (error is None) == (answer.error is None), (error, answer)
                # A decoder continues from the version after its commit.
                self._opened[call.port, after.digest] = real.open()
            case _ if after is not table:
                getattr(real, call.method)(*call.args)
        self._compare(call, real, after)
        return answer

    def _exists_in_delta(self, call: Call, table: Table) -> bool:
        """Return whether the step is possible with the files of a Delta table.

        In the model, a copy has the log that another program has cleaned since.
        """
        if call.method == "copy" and table.cleaned:
            return False
        if call.method in ("restore", "copy"):
            return table.cleaned < call.args[0] < table.version
        return call.method not in ("maintain", "clean_log", "delete") or table.version > 0

    def _compare(self, call: Call, real: RealTable, table: Table) -> None:
        assert real.version() == table.version, call
        assert real.rows() == sorted(map(_plain, table.rows)), call
        assert real.changes() == [commit.change for commit in table.log], call
        if call.port == "typed":
            last = last_decode(table, ALL)
            assert real.newest_note(over_deletions=True) == (last and last.change), call


def test_the_tables_of_the_model_behave_as_delta_tables(tmp_path: Path) -> None:
    commits = 0
    for seed in range(6):
        history = DeltaHistory(seed, tmp_path / str(seed))
        history.run(60)
        commits += sum(table.version() for table in history.real.values())
    assert commits >= 20
