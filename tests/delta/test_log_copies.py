"""Tests of tables that are opened from a copy of their log.

Most tests open tables in folders as tables in an object store. Tests with the marker `store` use a
server.
"""

from __future__ import annotations

import errno
import gc
import json
import multiprocessing
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from obstore.exceptions import AlreadyExistsError, GenericError
from obstore.store import LocalStore

from tests.fixtures_stores import PlaceIn
from tests.support.request_counts import RequestCounter
from tests.support.stores import Store
from tidemark.delta import copied_tables, kept_files, log_copies, log_folders, store_commits
from tidemark.delta.commit_log import history
from tidemark.delta.copied_tables import OpenedTable, Tags, append_rows, for_writing, queried
from tidemark.delta.delta_errors import translate_delta_errors
from tidemark.delta.errors import StorageUnavailable
from tidemark.delta.kept_files import keep_files_in
from tidemark.delta.live_files import live_files
from tidemark.delta.log_copies import LogCopy, _Replaced, forget_copies, open_copied
from tidemark.delta.log_folders import LogFolder
from tidemark.delta.store_commits import create_commit
from tidemark.delta.table_io import open_if_exists, query_rows

APP = "app"


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Open tables in folders as tables in an object store. A test sets the folder of kept files."""
    monkeypatch.setattr(log_copies, "is_copied", lambda _: True)
    monkeypatch.setattr(kept_files, "_kept_in", None)
    forget_copies()
    yield
    forget_copies()


def append(uri: str, value: int, **options: Any) -> None:
    write_deltalake(uri, pa.table({"value": [value]}), mode="append", **options)


def opened(uri: str) -> OpenedTable:
    table = open_copied(uri)
    assert table is not None
    return table


def landing(sequence: int, **options: Any) -> CommitProperties:
    return CommitProperties(app_transactions=[Transaction(APP, sequence)], **options)


def values(uri: str) -> list[int]:
    return sorted(row["value"] for row in query_rows(DeltaTable(uri), "SELECT value FROM t"))


# -- reading -------------------------------------------------------------------------------------


def described(table: DeltaTable) -> dict[str, object]:
    """Return the values that Tidemark reads from a log."""
    return {
        "version": table.version(),
        "id": table.metadata().id,
        "properties": table.metadata().configuration,
        "columns": table.schema().to_json(),
        "files": sorted(table.file_uris()),
        "transactions": {name: table.transaction_version(name) for name in (APP, "none")},
        "history": history(table),
        "uri": table.table_uri.removeprefix("file://"),
    }


class Log:
    """Random changes of a table by delta-rs, and by programs that copy and remove folders."""

    def __init__(self, folder: Path, choice: random.Random) -> None:
        self.uri, self._aside, self._choice = f"{folder}/table", f"{folder}/aside", choice
        self._sequence = 0
        self.create()

    def create(self) -> None:
        shutil.rmtree(self.uri, ignore_errors=True)
        self.append()

    def append(self) -> None:
        self._sequence += 1
        append(self.uri, self._sequence, commit_properties=landing(self._sequence))

    def delete(self) -> None:
        DeltaTable(self.uri).delete(f"value = {self._choice.randint(1, self._sequence)}")

    def compact(self) -> None:
        DeltaTable(self.uri).optimize.compact()

    def checkpoint(self) -> None:
        DeltaTable(self.uri).create_checkpoint()

    def clean(self) -> None:
        """Remove the commits before the newest checkpoint, as maintenance does."""
        log = Path(self.uri, "_delta_log")
        newest = max((each.name[:20] for each in log.glob("*.checkpoint.parquet")), default="")
        for file in log.glob("[0-9]*"):
            if file.name[:20] < newest:
                file.unlink()

    def restore(self) -> None:
        table = DeltaTable(self.uri)
        oldest = min(each["version"] for each in history(table))
        table.restore(self._choice.randint(oldest, table.version()))

    def set_aside(self) -> None:
        shutil.rmtree(self._aside, ignore_errors=True)
        shutil.copytree(self.uri, self._aside)

    def put_back(self) -> None:
        """Replace the table by a copy, as an operator does after an accident."""
        if Path(self._aside).exists():
            shutil.rmtree(self.uri)
            shutil.copytree(self._aside, self.uri)

    def change(self) -> None:
        rare = (self.create, self.clean, self.restore, self.set_aside, self.put_back)
        often = (self.append, self.append, self.append, self.delete, self.compact, self.checkpoint)
        change = self._choice.choice([*often, *often, *rare])
        try:
            change()
        except (DeltaError, OSError):
            # A RESTORE of a version whose files are gone.
            assert change == self.restore


@pytest.mark.parametrize("is_kept", [False, True], ids=["one process", "a process each"])
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))]
)
def test_a_copy_equals_the_table_after_every_change(
    tmp_path: Path, copied: None, seed: int, is_kept: bool
) -> None:
    log = Log(tmp_path, random.Random(seed))
    if is_kept:
        keep_files_in(tmp_path / "kept")
    for step in range(30):
        log.change()
        if is_kept:
            forget_copies()
        table = open_copied(log.uri)
        assert table is not None, (seed, step)
        assert described(table) == described(DeltaTable(log.uri)), (seed, step)
        assert open_copied(log.uri) is table


def test_a_table_keeps_its_state_while_the_log_changes(tmp_path: Path, copied: None) -> None:
    log = Log(tmp_path, random.Random(0))
    first = opened(log.uri)
    before = described(first)
    log.append()
    second = opened(log.uri)
    log.create()
    assert opened(log.uri).metadata().id != second.metadata().id
    assert described(first).keys() == before.keys()
    assert history(first, 1) == before["history"]
    assert second.version() == 1


def test_another_table_of_the_same_version_is_noticed_before_its_rows_are_read(
    tmp_path: Path, copied: None
) -> None:
    log = Log(tmp_path, random.Random(0))
    table = opened(log.uri)
    log.create()
    with pytest.raises(DeltaError, match="another table replaced version 0"):
        query_rows(table, "SELECT value FROM t")


def with_named_checkpoint(uri: str) -> None:
    Path(uri, "_delta_log", f"{0:020}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json").touch()


def without_a_commit(uri: str) -> None:
    Path(uri, "_delta_log", f"{1:020}.json").unlink()


def without_a_log(uri: str) -> None:
    shutil.rmtree(Path(uri, "_delta_log"))


def without_its_checkpoint(uri: str) -> None:
    DeltaTable(uri).create_checkpoint()
    Path(uri, "_delta_log", f"{2:020}.checkpoint.parquet").unlink()


@pytest.mark.parametrize(
    "damage",
    [with_named_checkpoint, without_a_commit, without_a_log, without_its_checkpoint],
)
def test_delta_rs_opens_tables_whose_log_cannot_be_copied(
    tmp_path: Path, copied: None, damage: Callable[[str], None]
) -> None:
    """delta-rs reads checkpoints with unique names, and reports a damaged log."""
    uri = str(tmp_path)
    for value in range(3):
        append(uri, value)
    damage(uri)
    assert open_copied(uri) is None


@pytest.mark.parametrize("parts", [(1,), (2,), (1, 2)], ids=["first", "second", "both"])
def test_a_checkpoint_without_all_of_its_parts_hides_no_row(
    tmp_path: Path, copied: None, parts: tuple[int, ...]
) -> None:
    """Spark writes the parts one by one. Its commit of a property repeats the metadata."""
    uri = two_rows(tmp_path)
    log = tmp_path / "_delta_log"
    actions = map(json.loads, (log / f"{0:020}.json").read_text().splitlines())
    repeated = [each for each in actions if each.keys() & {"metaData", "protocol"}]
    text = "\n".join(map(json.dumps, repeated))
    (log / f"{2:020}.json").write_text(text)
    DeltaTable(uri).create_checkpoint()
    whole = log / f"{2:020}.checkpoint.parquet"
    rows = pq.read_table(whole)
    for part in parts:
        path = log / f"{2:020}.checkpoint.{part:010}.{2:010}.parquet"
        pq.write_table(rows.slice(0 if part == 1 else 2, 2 if part == 1 else None), path)
    whole.unlink()
    (log / "_last_checkpoint").unlink()
    assert described(opened(uri)) == described(DeltaTable(uri))
    assert query_rows(opened(uri), "SELECT count(*) AS n FROM t") == [{"n": 2}]


def test_the_folder_of_a_copy_is_removed_with_its_last_table(tmp_path: Path, copied: None) -> None:
    append(str(tmp_path), 1)
    table = opened(str(tmp_path))
    folder = table._folder.path
    forget_copies()
    gc.collect()
    assert folder.exists()
    del table
    gc.collect()
    assert not folder.exists()


def test_the_folder_of_a_killed_process_is_removed_if_its_number_is_used_again(
    tmp_path: Path, copied: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container, each start has the same numbers."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names = (f"{os.getpid()}-killed", f"{os.getpid()}-own", "1-new", f"{10**30}-no-number")
    killed, own, new, other = (tmp_path / f"tidemark-log-{name}" for name in names)
    long_ago = time.time() - 2 * 86_400
    for folder, changed in ((killed, long_ago), (own, time.time()), (new, time.time())):
        folder.mkdir()
        os.utime(folder, (changed, changed))
    other.mkdir()
    os.utime(other, (long_ago, long_ago))
    log_folders._cleaned_by.clear()
    table_of_this_process = LogFolder()
    assert not killed.exists()
    assert own.exists()
    assert new.exists()
    started = psutil.Process().create_time()
    monkeypatch.setattr(log_folders, "time", lambda: started + 2 * 86_400)
    os.utime(own, (started, started))
    log_folders._cleaned_by.clear()
    LogFolder()
    assert own.exists()
    assert table_of_this_process.path.exists()


def _end(_: OpenedTable) -> None:
    gc.collect()


def test_a_forked_process_removes_no_folder_of_its_parent(tmp_path: Path, copied: None) -> None:
    """The child has no copies of its own, and has the objects of its parent."""
    append(str(tmp_path), 1)
    table = opened(str(tmp_path))
    child = multiprocessing.get_context("fork").Process(target=_end, args=(table,))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert table._folder.path.exists()
    pid = os.fork()
    if not pid:
        ended = not log_copies._copies
        del table
        gc.collect()
        os._exit(0 if ended else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert table._folder.path.exists()


def test_a_control_file_is_read_from_the_copy_and_a_missing_one_from_the_table(
    tmp_path: Path, copied: None
) -> None:
    uri = str(tmp_path)
    for name in ("a", "b"):
        rows = pa.table({"pipeline": [name], "value": [1]})
        write_deltalake(uri, rows, mode="append", partition_by=["pipeline"])
    table = opened(uri)
    found = table.with_files("pipeline = 'a'")
    shutil.rmtree(tmp_path / "pipeline=a")
    assert query_rows(found, "SELECT pipeline FROM t WHERE pipeline = 'a'") == [{"pipeline": "a"}]
    assert not (table._folder.path / "pipeline=b").exists()
    forget_copies()
    with pytest.raises(Exception, match=r"[Nn]ot found"):
        query_rows(opened(uri).with_files("pipeline = 'a'"), "SELECT * FROM t WHERE pipeline='a'")


def test_a_later_process_uses_control_files_that_an_earlier_one_has_kept(
    tmp_path: Path, copied: None
) -> None:
    keep_files_in(tmp_path / "kept")
    uri = str(tmp_path / "table")
    append(uri, 1)
    assert query_rows(opened(uri).with_files("true"), "SELECT value FROM t") == [{"value": 1}]
    for file in Path(uri).glob("*.parquet"):
        file.unlink()
    forget_copies()
    assert query_rows(opened(uri).with_files("true"), "SELECT value FROM t") == [{"value": 1}]


def test_a_kept_checkpoint_before_one_that_cannot_be_copied_is_not_used(
    tmp_path: Path, copied: None
) -> None:
    keep_files_in(tmp_path / "kept")
    uri = two_rows(tmp_path / "table")
    DeltaTable(uri).create_checkpoint()
    assert opened(uri).version() == 1
    append(uri, 2)
    name = f"{2:020}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"
    (tmp_path / "table" / "_delta_log" / name).touch()
    forget_copies()
    assert open_copied(uri) is None
    append(uri, 3)
    DeltaTable(uri).create_checkpoint()
    forget_copies()
    assert described(opened(uri)) == described(DeltaTable(uri))


def test_a_query_of_a_table_with_payload_leaves_no_file(tmp_path: Path, copied: None) -> None:
    keep_files_in(tmp_path / "kept")
    uri = str(tmp_path / "table")
    for value in (1, 2):
        append(uri, value)
    table = opened(uri)
    with queried(table, "value > 1") as rows:
        folder = Path(urlsplit(rows.table_uri).path)
        assert len(list(folder.glob("*.parquet"))) == 1
        assert query_rows(rows, "SELECT value FROM t WHERE value > 1") == [{"value": 2}]
    assert not folder.exists()
    assert not [*table._folder.path.rglob("*c000*"), *(tmp_path / "kept").rglob("data-*")]
    # Statistics exclude no file for a condition on an expression.
    sql = "SELECT value FROM t WHERE value * 2 = 2"
    assert query_rows(table, sql, "value * 2 = 2") == [{"value": 1}]


def test_delta_rs_reads_rows_of_a_shallow_clone(tmp_path: Path, copied: None) -> None:
    """The log of a clone has addresses of files, which are in the folder of its source."""
    source, clone = tmp_path / "source", tmp_path / "clone"
    append(str(source), 1)
    (file,) = source.glob("*.parquet")
    commit = Path("_delta_log", f"{0:020}.json")
    (clone / "_delta_log").mkdir(parents=True)
    text = (source / commit).read_text()
    (clone / commit).write_text(text.replace(f'"{file.name}"', f'"file://{file}"'))
    assert query_rows(opened(str(clone)), "SELECT value FROM t") == [{"value": 1}]
    with_files = opened(str(clone)).with_files("true")
    assert query_rows(with_files, "SELECT value FROM t") == [{"value": 1}]


def test_delta_rs_reads_rows_that_cannot_be_copied(
    tmp_path: Path, copied: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example if the temporary folder is full."""
    append(str(tmp_path), 1)
    table = opened(str(tmp_path))

    def fail(*_: object, **__: object) -> None:
        raise GenericError("no answer")

    for name in ("add", "keep"):
        monkeypatch.setattr(LogCopy, name, fail)
    assert query_rows(table, "SELECT value FROM t") == [{"value": 1}]
    assert query_rows(table.with_files("true"), "SELECT value FROM t") == [{"value": 1}]
    with pytest.raises(DeltaError, match="no answer"):
        history(table)


def test_a_full_temporary_folder_stops_neither_queries_nor_commits(
    tmp_path: Path, copied: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = two_rows(tmp_path)
    table = opened(uri)

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(copied_tables, "LogFolder", fail)
    assert query_rows(table, "SELECT count(*) AS n FROM t") == [{"n": 2}]
    append_rows(table, pa.table({"value": [5]}), commit_properties=landing(1))
    assert values(uri) == [0, 1, 5]
    with pytest.raises(CommitFailedError):
        append_rows(table, pa.table({"value": [5]}), commit_properties=landing(1))
    monkeypatch.undo()
    assert values(uri) == [0, 1, 5]


# -- commits -------------------------------------------------------------------------------------


def change_columns(uri: str) -> None:
    rows = pa.table({"value": [7], "other": [1]})
    write_deltalake(uri, rows, mode="append", schema_mode="merge")


def same_transaction(uri: str) -> None:
    append(uri, 7, commit_properties=landing(1))


def remove_rows(uri: str) -> None:
    DeltaTable(uri).delete("value = 0")


def put_an_older_copy_back(uri: str) -> None:
    for file in Path(uri, "_delta_log").glob(f"{1:020}*"):
        file.unlink()


def create_again(uri: str) -> None:
    shutil.rmtree(uri)
    append(uri, 8)
    append(uri, 9)


OTHER = CommitProperties(app_transactions=[Transaction("other", 1)])
CONFLICTS = [
    change_columns,
    same_transaction,
    remove_rows,
    put_an_older_copy_back,
    create_again,
]
INDEPENDENT = [
    lambda _: None,
    lambda uri: append(uri, 7),
    lambda uri: append(
        uri, 7, commit_properties=CommitProperties(app_transactions=[Transaction("other", 1)])
    ),
    lambda uri: DeltaTable(uri).optimize.compact(),
    lambda uri: DeltaTable(uri).create_checkpoint(),
]


def two_rows(folder: Path) -> str:
    uri = str(folder)
    append(uri, 0)
    append(uri, 1)
    return uri


@pytest.mark.parametrize("other", CONFLICTS)
def test_a_commit_is_refused_after_a_conflicting_one(
    tmp_path: Path, copied: None, other: Callable[[str], None]
) -> None:
    uri = two_rows(tmp_path)
    table = opened(uri)
    other(uri)
    before = values(uri), DeltaTable(uri).version()
    with pytest.raises(CommitFailedError):
        append_rows(table, pa.table({"value": [5]}), commit_properties=landing(1))
    assert (values(uri), DeltaTable(uri).version()) == before


@pytest.mark.parametrize("other", INDEPENDENT)
@pytest.mark.parametrize("retries", [None, 0])
def test_a_commit_follows_an_independent_one_if_it_may_retry(
    tmp_path: Path, copied: None, other: Callable[[str], None], retries: int | None
) -> None:
    uri = two_rows(tmp_path)
    table = opened(uri)
    other(uri)
    before = values(uri)
    properties = landing(1, max_commit_retries=retries)
    if DeltaTable(uri).version() > table.version() and retries == 0:
        with pytest.raises(CommitFailedError):
            append_rows(table, pa.table({"value": [5]}), commit_properties=properties)
        assert values(uri) == before
    else:
        append_rows(table, pa.table({"value": [5]}), commit_properties=properties)
        assert values(uri) == sorted([*before, 5])
        assert DeltaTable(uri).transaction_version(APP) == 1
        assert values(uri) == sorted(
            row["value"] for row in query_rows(opened(uri), "SELECT value FROM t")
        )


def test_a_removal_is_refused_after_any_commit(tmp_path: Path, copied: None) -> None:
    uri = two_rows(tmp_path)
    table = opened(uri)
    (file, _) = live_files(table)
    append(uri, 7)
    with pytest.raises(CommitFailedError, match="depends on all rows"):
        table.create_write_transaction(
            *([file.removal(0, data_change=True)], "append", table.schema()),
            commit_properties=CommitProperties(),
        )
    assert values(uri) == [0, 1, 7]


def _land(uri: str, ready: Any, sequence: int, app: str) -> int:
    """Append a row when all processes are ready; 1 if that succeeded."""
    log_copies.is_copied = lambda _: True  # type: ignore[assignment]
    table = opened(uri)
    ready.wait(60)
    transaction = CommitProperties(app_transactions=[Transaction(app, sequence)])
    try:
        append_rows(table, pa.table({"value": [sequence]}), commit_properties=transaction)
    except CommitFailedError:
        return 0
    return 1


@pytest.mark.slow
@pytest.mark.parametrize(("apps", "committed"), [(["app"] * 6, 1), (list("abcdef"), 6)])
def test_concurrent_commits_with_own_transactions_succeed(
    tmp_path: Path, copied: None, apps: list[str], committed: int
) -> None:
    uri = two_rows(tmp_path)
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, ProcessPoolExecutor(len(apps), context) as processes:
        ready = manager.Barrier(len(apps))
        counts = [processes.submit(_land, uri, ready, n, app) for n, app in enumerate(apps, 10)]
        assert sum(each.result() for each in counts) == committed
    assert len(values(uri)) == 2 + committed
    assert DeltaTable(uri).version() == 1 + committed


class StoreProxy:
    """A store; the classes below change its answers to writes."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def write_through(proxy: type[StoreProxy], table: OpenedTable) -> None:
    store = cast("Any", proxy(table._copy._store))
    table._copy._open_for_writes = lambda: store


class LostAnswers(StoreProxy):
    """A store that creates a commit, and then reports that it exists, as after a lost answer."""

    def put(self, path: str, content: bytes, **options: Any) -> Any:
        answer = self._store.put(path, content, **options)
        if options.get("mode") == "create":
            raise AlreadyExistsError(path)
        return answer


def test_a_commit_whose_answer_was_lost_is_not_committed_again(
    tmp_path: Path, copied: None
) -> None:
    uri = two_rows(tmp_path)
    table = opened(uri)
    write_through(LostAnswers, table)
    append_rows(table, pa.table({"value": [5]}), commit_properties=landing(1))
    assert (values(uri), DeltaTable(uri).version()) == ([0, 1, 5], 2)


class Unfinished(StoreProxy):
    """A store that first answers as S3 during another creation of the same file."""

    answers = 2

    def put(self, path: str, content: bytes, **options: Any) -> Any:
        if options.get("mode") == "create" and self.answers:
            self.answers -= 1
            raise AlreadyExistsError(path)
        return self._store.put(path, content, **options)


def test_a_commit_waits_for_an_unfinished_creation(
    tmp_path: Path, copied: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_commits, "_UNFINISHED_S", 0.0)
    uri = two_rows(tmp_path)
    table = opened(uri)
    write_through(Unfinished, table)
    append_rows(table, pa.table({"value": [5]}), commit_properties=landing(1))
    assert (values(uri), DeltaTable(uri).version()) == ([0, 1, 5], 2)


class WithoutCheckpoints(StoreProxy):
    """A store that fails after the commit."""

    def put(self, path: str, content: bytes, **options: Any) -> Any:
        if "checkpoint" in path:
            raise GenericError("no answer")
        return self._store.put(path, content, **options)


def test_a_commit_succeeds_if_its_checkpoint_cannot_be_written(
    tmp_path: Path, copied: None
) -> None:
    uri = str(tmp_path)
    append(uri, 0, configuration={"delta.checkpointInterval": "2"})
    table = opened(uri)
    write_through(WithoutCheckpoints, table)
    append_rows(table, pa.table({"value": [1]}), commit_properties=landing(1))
    append_rows(opened(uri), pa.table({"value": [2]}), commit_properties=landing(2))
    assert values(uri) == [0, 1, 2]
    assert not list((tmp_path / "_delta_log").glob("*checkpoint*"))


def test_two_holders_of_a_version_do_not_commit_the_same_transaction(
    tmp_path: Path, copied: None
) -> None:
    uri = two_rows(tmp_path)
    first, second = opened(uri), opened(uri)
    assert query_rows(first, "SELECT count(*) AS n FROM t") == [{"n": 2}]
    write_deltalake(
        for_writing(first), pa.table({"value": [5]}), mode="append", commit_properties=landing(1)
    )
    with pytest.raises(CommitFailedError):
        write_deltalake(
            for_writing(second),
            pa.table({"value": [5]}),
            mode="append",
            commit_properties=landing(1),
        )
    assert values(uri) == [0, 1, 5]
    assert query_rows(second, "SELECT count(*) AS n FROM t") == [{"n": 2}]


def test_a_copy_that_lost_a_file_is_replaced_and_commits_nothing(
    tmp_path: Path, copied: None
) -> None:
    uri = two_rows(tmp_path)
    table = opened(uri)
    (table._folder.path / "_delta_log" / f"{1:020}.json").unlink()
    with pytest.raises((CommitFailedError, DeltaError)):
        append_rows(table, pa.table({"value": [5]}), commit_properties=landing(1))
    assert values(uri) == [0, 1]
    append_rows(opened(uri), pa.table({"value": [5]}), commit_properties=landing(1))
    assert values(uri) == [0, 1, 5]


def test_a_table_that_is_replaced_during_the_copy_leaves_no_commit_in_it(
    tmp_path: Path, copied: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next commit would leave a version out."""
    uri = str(tmp_path / "table")
    for value in range(3):
        append(uri, value)
    shutil.copytree(uri, tmp_path / "older")
    append(uri, 3, commit_properties=landing(5))
    copy = LogCopy._copy
    replaced: list[Tags] = []

    def copying(self: LogCopy, tags: Tags) -> None:
        copy(self, tags)
        if not replaced:
            replaced.append(tags)
            shutil.rmtree(uri)
            shutil.copytree(tmp_path / "older", uri)
            raise _Replaced

    monkeypatch.setattr(LogCopy, "_copy", copying)
    table = opened(uri)
    assert described(table) == described(DeltaTable(uri))
    append_rows(table, pa.table({"value": [5]}), commit_properties=landing(1))
    assert (values(uri), DeltaTable(uri).version()) == ([0, 1, 2, 5], 3)


def test_deletion_vectors_are_those_of_the_table(tmp_path: Path, copied: None) -> None:
    uri = two_rows(tmp_path)
    assert list(opened(uri).deletion_vectors()) == list(DeltaTable(uri).deletion_vectors())


def test_a_new_checkpoint_of_another_kind_refuses_a_commit(tmp_path: Path, copied: None) -> None:
    uri = two_rows(tmp_path)
    table = opened(uri)
    name = f"{1:020}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"
    Path(uri, "_delta_log", name).touch()
    with pytest.raises(CommitFailedError, match="new kind"):
        append_rows(table, pa.table({"value": [5]}), commit_properties=landing(1))


def test_files_before_the_newest_checkpoint_are_removed(tmp_path: Path, copied: None) -> None:
    uri = str(tmp_path)
    append(uri, 0, configuration={"delta.checkpointInterval": "3"})
    for value in range(1, 30):
        append_rows(opened(uri), pa.table({"value": [value]}), commit_properties=landing(value))
    assert len(list((opened(uri)._folder.path / "_delta_log").iterdir())) < 6


def test_old_commits_are_found_by_one_list(tmp_path: Path, copied: None) -> None:
    uri = str(tmp_path)
    for value in range(6):
        append(uri, value)
    DeltaTable(uri).create_checkpoint()
    for version in range(3):
        Path(uri, "_delta_log", f"{version:020}.json").unlink()
    assert [each["version"] for each in history(opened(uri), 1_000_000)] == [5, 4, 3]


@pytest.mark.parametrize("name", ["t\u00fc", "a b", "t[a]", "t#q"])
def test_delta_rs_opens_tables_if_the_temporary_folder_has_an_unusual_name(
    tmp_path: Path, copied: None, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    append(str(tmp_path / "table"), 1)
    (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / name))
    assert open_copied(str(tmp_path / "table")) is None


def test_a_linked_temporary_folder_is_resolved(
    tmp_path: Path, copied: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = two_rows(tmp_path / "table")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "link"))
    assert query_rows(opened(uri), "SELECT count(*) AS n FROM t") == [{"n": 2}]
    assert described(opened(uri)) == described(DeltaTable(uri))


def test_a_copy_refuses_changes_of_rows(tmp_path: Path, copied: None) -> None:
    table = opened(two_rows(tmp_path))
    for change in (
        table.delete,
        table.optimize,
        table.create_checkpoint,
        table.history,
        table.scan,
    ):
        with pytest.raises(TypeError, match="needs a table of"):
            change()


@pytest.mark.parametrize("uri", ["/t", "file:///t", "s3://lake/\u00fc/t", "s3://lake/a b"])
def test_other_tables_are_opened_by_delta_rs(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Also with the option --copied-logs.
    monkeypatch.undo()
    assert not log_copies.is_copied(uri)


def test_one_of_two_equal_commits_fails(tmp_path: Path, copied: None) -> None:
    """Two fences of one plan in the same millisecond have equal actions."""
    store = LocalStore(str(tmp_path))
    content = b'{"txn": {"appId": "app", "version": 1}}'
    assert create_commit(store, 0, content, retries=0) == 0
    with pytest.raises(CommitFailedError, match="same transaction"):
        create_commit(store, 0, content, retries=15)


def test_a_due_checkpoint_is_written(tmp_path: Path, copied: None) -> None:
    uri = str(tmp_path)
    append(uri, 0, configuration={"delta.checkpointInterval": "3"})
    for value in range(1, 8):
        append_rows(opened(uri), pa.table({"value": [value]}), commit_properties=landing(value))
    log = Path(uri, "_delta_log")
    assert sorted(each.name[:20] for each in log.glob("*.checkpoint.parquet")) == [
        f"{2:020}",
        f"{5:020}",
    ]
    assert json.loads((log / "_last_checkpoint").read_text())["version"] == 5
    for file in log.glob("*.json"):
        if file.name < f"{5:020}":
            file.unlink()
    assert values(uri) == list(range(8))
    assert DeltaTable(uri).transaction_version(APP) == 7


# -- requests ------------------------------------------------------------------------------------


@pytest.fixture
def counted(
    conditional_store: Store, place_in: PlaceIn, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, RequestCounter]]:
    """A table with ten commits after its checkpoint, and the counter of its requests."""
    uri = f"{place_in(conditional_store)}/bronze/table"
    for value in range(12):
        append(uri, value, commit_properties=landing(value + 1))
        if value == 1:
            DeltaTable(uri).create_checkpoint()
    address, _, port = conditional_store.environ["AWS_ENDPOINT_URL"].rpartition(":")
    with RequestCounter(int(port)) as counter:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"{address}:{counter.port}")
        forget_copies()
        yield uri, counter
        forget_copies()


@pytest.mark.store
def test_a_log_is_read_once_from_an_object_store(counted: tuple[str, RequestCounter]) -> None:
    uri, counter = counted
    table = opened(uri)
    assert counter.take().total() <= 3 + 11
    assert table.transaction_version(APP) == 12
    assert len(history(table, 5)) == 5
    assert opened(uri) is table
    # The log is listed again.
    assert counter.take().total() == 1
    append_rows(table, pa.table({"value": [12]}), commit_properties=landing(13))
    # One request each: list the log, write the rows, create the commit.
    assert counter.take().total() == 3
    assert opened(uri).transaction_version(APP) == 13
    assert counter.take().total() == 2
    assert described(opened(uri)) == described(DeltaTable(uri))


@pytest.mark.store
def test_a_later_process_lists_the_log_and_reads_new_commits_only(
    counted: tuple[str, RequestCounter], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_files, "_kept_in", tmp_path)
    uri, counter = counted
    opened(uri)
    counter.take()
    for further in range(2):
        forget_copies()
        assert opened(uri).version() == 11 + further
        assert counter.take().total() == 1 + further
        append(uri, 12 + further)
        counter.take()


@pytest.mark.store
def test_without_access_delta_rs_names_the_error(
    counted: tuple[str, RequestCounter], monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, _ = counted
    assert open_if_exists(uri) is not None
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    forget_copies()
    with pytest.raises(StorageUnavailable), translate_delta_errors(uri):
        open_if_exists(uri)
