"""The tables of the model behave as Delta tables: both get the same calls in random histories.

Each commit, conflict, deletion, compaction, RESTORE, copy and cleaned log of the typed table and
the quarantine also happens in a real table. Its rows, its log and its refusals must be the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from tests.model.actors import Answer, Call
from tests.model.follow_actors import perform
from tests.model.follow_history import FollowHistory, Paused
from tests.model.follow_programs import decode, finish_bronze
from tests.model.follow_world import Change, Place, Refused, Table, TypedRow

pytestmark = pytest.mark.slow

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

    def version(self) -> int:
        return DeltaTable(self._path).version() + 1 if self._log.exists() else 0

    def rows(self) -> list[tuple[int, int, int]]:
        """Return plan, offset and rules of each row, sorted."""
        if not self.version():
            return []
        table = pa.table(DeltaTable(self._path).to_pyarrow_table())
        return sorted(tuple(row.values()) for row in table.to_pylist())

    def changes(self) -> list[Change]:
        """Return the kinds of the commits that the log still has."""
        return [self._change(commit) for commit in sorted(self._log.glob("*.json"))]

    def _change(self, commit: Path) -> Change:
        infos = (json.loads(line).get("commitInfo") for line in commit.read_text().splitlines())
        info = next(info for info in infos if info)
        if "userMetadata" in info:
            return Change(info["userMetadata"])
        return _OPERATIONS[info["operation"]]

    def digest(self, version: int) -> str | None:
        commit = self._log / f"{version - 1:020d}.json"
        return hashlib.sha256(commit.read_bytes()).hexdigest() if commit.exists() else None

    def commit(
        self,
        seen: tuple[int, str | None],
        change: Change,
        remove: Collection[tuple[int, int, int]],
        add: Collection[tuple[int, int, int]],
    ) -> None:
        """Commit right after a version, or after commits that change no row.

        Raises:
            Refused: Another commit came first (`Conflict`).
        """
        version, digest = seen
        since = self.changes()[version - self.version() :] if version < self.version() else []
        is_same = version <= self.version() and (not version or self.digest(version) == digest)
        if not is_same or any(each is not Change.MAINTAIN for each in since):
            raise Refused("Conflict")
        properties = CommitProperties(
            max_commit_retries=0, custom_metadata={"userMetadata": change.value}
        )
        if not self.version():
            write_deltalake(self._path, _data(add), commit_properties=properties)
            return
        table = DeltaTable(self._path)
        plans = {row[0] for row in (*remove, *add)}
        if not plans:
            table.create_write_transaction(
                [], "append", table.schema(), commit_properties=properties
            )
            return
        # One commit removes and adds. All new rows have to match the condition.
        here = f"plan IN ({', '.join(map(str, sorted(plans)))})"
        kept = [row for row in self.rows() if row[0] in plans and row not in remove]
        write_deltalake(
            table,
            _data([*kept, *add]),
            mode="overwrite",
            predicate=here,
            commit_properties=properties,
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
        DeltaTable(self._path).delete(f'plan = {place.plan} AND "offset" = {place.offset}')

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
    columns = [pa.array(column, pa.int64()) for column in zip(*rows, strict=True)]
    return pa.table(
        dict(
            zip(("plan", "offset", "rules"), columns or [pa.array([], pa.int64())] * 3, strict=True)
        )
    )


def _plain(row: TypedRow | Place) -> tuple[int, int, int]:
    if isinstance(row, TypedRow):
        return (*row.place, row.rules)
    return (*row, 0)


class DeltaHistory(FollowHistory):
    """A random history whose typed table and quarantine are also real tables."""

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(seed)
        self.real = {name: RealTable(folder / name) for name in ("typed", "quarantine")}
        self._digests: dict[tuple[str, int], tuple[int, str | None]] = {}

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
                # A decoder keeps the digest of the version that it opened.
                real_digest = real.digest(table.version)
                self._digests[call.port, table.digest] = (table.version, real_digest)
            case "commit":
                seen, change, remove, add, _ = call.args
                error = None
                try:
                    real.commit(
                        self._digests.get((call.port, seen.digest), (seen.version, None)),
                        change,
                        [_plain(row) for row in remove],
                        [_plain(row) for row in add],
                    )
                except (Refused, CommitFailedError) as refused:
                    error = refused
                assert (error is None) == (answer.error is None), (error, answer)
                self._digests[call.port, after.digest] = (
                    after.version,
                    real.digest(after.version),
                )
            case _ if after is not table:
                getattr(real, call.method)(*call.args)
        self._compare(call, real, after)
        return answer

    def _exists_in_delta(self, call: Call, table: Table) -> bool:
        """Return whether the step is possible with the files of a Delta table."""
        if call.method in ("restore", "copy"):
            return table.cleaned < call.args[0] < table.version
        return call.method not in ("maintain", "clean_log", "delete") or table.version > 0

    def _compare(self, call: Call, real: RealTable, table: Table) -> None:
        assert real.version() == table.version, call
        assert real.rows() == sorted(map(_plain, table.rows)), call
        assert real.changes() == [commit.change for commit in table.log], call


def test_the_tables_of_the_model_behave_as_delta_tables(tmp_path: Path) -> None:
    commits = 0
    for seed in range(6):
        history = DeltaHistory(seed, tmp_path / str(seed))
        history.run(60)
        commits += sum(table.version() for table in history.real.values())
    assert commits >= 20


def test_a_late_commit_to_a_delta_table_is_refused(tmp_path: Path) -> None:
    real = RealTable(tmp_path / "typed")
    real.commit((0, None), Change.DECODE, [], [(1, 1, 1)])
    seen = (1, real.digest(1))
    real.commit(seen, Change.DECODE, [], [(2, 2, 1)])
    with pytest.raises(Refused):
        real.commit(seen, Change.DECODE, [(1, 1, 1)], [(1, 3, 1)])
