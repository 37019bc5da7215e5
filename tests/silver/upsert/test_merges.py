"""Which records a merge reads, and when it is due, on real tables without Spark."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.support.file_lake import Payload, put_back, remove_old_commits
from tests.support.plans import wanted
from tests.support.registered_lake import MemoryRegistry
from tests.support.registry import framed
from tests.support.upsert_lake import UpsertLake
from tidemark.core.errors import TidemarkError
from tidemark.core.offsets import Span
from tidemark.core.origins import RunOrigin
from tidemark.core.publication import PublishRule
from tidemark.delta import noted_commits
from tidemark.delta.control_table import DeltaControlTable
from tidemark.delta.noted_commits import NotedTable
from tidemark.silver.upsert.table import DeltaUpsertTable
from tidemark.spec.decode import Format, PayloadSpec
from tidemark.spec.upsert import Deletes, MergePlan, MergeScope


@pytest.fixture
def lake(tmp_path: Path) -> UpsertLake:
    """Nothing has landed; deletes are hard."""
    return UpsertLake(root=tmp_path / "lake", deletes=Deletes.HARD)


def recreate(lake: UpsertLake, topic_id: str) -> None:
    """Recreate the topic, and accept it."""
    lake.bronze.kafka.create("events", 2, topic_id)
    lake.bronze.decisions.accept_recreation("test", "recreated on purpose")
    lake.bronze.payloads.clear()


def control_before(lake: UpsertLake, copy: Path, then: Callable[[], object]) -> None:
    """Do something, then restore the control table from before."""
    shutil.copytree(lake.bronze.control_uri, copy)
    then()
    put_back(copy, lake.bronze.control_uri)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "method"),
    [(NotedTable, "open"), (DeltaUpsertTable, "version"), (DeltaUpsertTable, "last_merge")],
)
def test_a_merge_that_waits_after_a_read_never_moves_a_row_back(
    lake: UpsertLake, monkeypatch: pytest.MonkeyPatch, owner: type, method: str
) -> None:
    """Another run merges newer records meanwhile, and decodes older ones."""
    lake.land_records(("other", "1"))
    lake.merge()
    lake.bronze.undo.undo(lake.land_records(("k", "old")), "ops", "read it again later")
    lake.bronze.payloads[(0, 2)] = Payload(b"k", b"new")
    lake.bronze.produce(1, 0)
    newer = lake.bronze.planner.backfill(wanted((0, 2, 3)), RunOrigin("fill")).plan
    assert newer is not None
    lake.bronze.ingest.execute(newer.sequence)
    read = getattr(owner, method)

    def wait_after(self: Any, *arguments: Any) -> Any:
        found = read(self, *arguments)
        monkeypatch.undo()
        lake.merge()
        lake.bronze.run(0)
        lake.run()
        return found

    monkeypatch.setattr(owner, method, wait_after)
    lake.upserts.execute(lake.merger)
    assert lake.visible()["k"] == "new"
    lake.upserts.execute(lake.merger)
    lake.check()
    assert lake.visible()["k"] == "new"


def test_a_merge_without_changes_keeps_the_version_that_was_read(lake: UpsertLake) -> None:
    """Commits without rows follow in the typed table, and its log loses the earlier ones."""
    lake.land_records(("a", "1"))
    lake.merge()
    before = lake.upserts.table.version()
    for _ in range(2):
        lake.bronze.undo.undo(lake.land_records(("b", "1")), "ops", "not meant")
        lake.run()
        assert lake.upserts.next() is None
        assert lake.upserts.execute(lake.merger) is None
    lake.upserts.execute(lake.merger)
    assert lake.upserts.table.version() == before + 2
    assert lake.upserts.table.merge_after(before) is None
    remove_old_commits(lake.typed_uri)
    lake.land_records(("a", "2"))
    merge = lake.merge()
    assert merge is not None
    assert merge.scope is MergeScope.NEW
    assert lake.upserts.table.merge_after(before) == merge.as_record()
    lake.check()


def test_a_late_merge_without_changes_does_not_cover_another(
    lake: UpsertLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.land_records(("a", "1"))
    lake.merge()
    lake.bronze.undo.undo(lake.land_records(("b", "1")), "ops", "not meant")
    lake.run()
    renew = DeltaUpsertTable.renew

    def late(table: DeltaUpsertTable, merge: MergePlan) -> None:
        lake.land_records(("a", "2"))
        lake.merge()
        renew(table, merge)

    monkeypatch.setattr(DeltaUpsertTable, "renew", late)
    lake.upserts.execute(lake.merger)
    lake.land_records(("a", "3"))
    merge = lake.merge()
    assert merge is not None
    assert merge.scope is MergeScope.NEW
    lake.check()


@pytest.mark.slow
@pytest.mark.parametrize("is_changed", [False, True])
@pytest.mark.parametrize("lost", ["all of the ledger", "the recreation"])
def test_rows_of_a_recreated_topic_stay_the_newest_while_the_ledger_is_lost(
    lake: UpsertLake, tmp_path: Path, lost: str, *, is_changed: bool
) -> None:
    """The offsets of the earlier topic are higher."""
    lake.land_records(("a", "1"), ("a", "2"), ("b", "1"))
    copy = tmp_path / "copy"
    if lost == "the recreation":
        shutil.copytree(lake.bronze.control_uri, copy)
    lake.merge()
    recreate(lake, "id-2")
    lake.land_records(("a", "again"))
    lake.merge()
    if is_changed:
        lake.land_records(("b", "again"))
        lake.run()
    shutil.rmtree(lake.bronze.control_uri)
    if copy.exists():
        shutil.copytree(copy, lake.bronze.control_uri)
    merge = lake.upserts.execute(lake.merger)
    assert (merge is not None) == is_changed
    assert lake.visible() == {"a": "again", "b": "again" if is_changed else "1"}


@pytest.mark.slow
def test_a_copy_of_the_typed_table_that_has_grown_again_causes_a_rebuild(
    lake: UpsertLake, tmp_path: Path
) -> None:
    """The last merge read a version that the copy has with another commit."""
    lake.land_records(("a", "1"))
    lake.merge()
    lake.land_records(("b", "1"))
    lake.run()
    copy = shutil.copytree(lake.typed_uri, tmp_path / "copy")
    DeltaTable(lake.typed_uri).optimize.compact()
    lake.merge()
    put_back(copy, lake.typed_uri)
    lake.land_records(("a", "2"), ("c", "1"))
    merge = lake.merge()
    assert merge is not None
    assert merge.scope is MergeScope.ALL
    lake.check()
    # The rebuild is the base of the next merge.
    lake.land_records(("d", "1"))
    merge = lake.merge()
    assert merge is not None
    assert merge.scope is MergeScope.NEW
    lake.check()


@pytest.mark.slow
def test_rows_that_leave_the_published_view_leave_the_upsert_table(lake: UpsertLake) -> None:
    """By a decision, or by a changed rule. Plans without any decision keep their rows."""
    lake.publish = PublishRule.CHECKED
    publication = lake.bronze.publication
    older, newer = lake.land_records(("a", "1"), ("b", "1")), lake.land_records(("a", "2"))
    lake.land_records(("c", "1"))
    publication.release(newer, "ops", "a test")
    assert scope_of(lake.merge()) is MergeScope.ALL
    assert lake.visible() == {"a": "2"}
    publication.release(older, "ops", "a test")
    assert scope_of(lake.merge()) is MergeScope.KEYS
    assert lake.visible() == {"a": "2", "b": "1"}
    publication.reject(newer, "ops", "a test")
    lake.run()
    merge = lake.upserts.next()
    assert merge is not None
    assert (merge.scope, merge.withdrawn) == (MergeScope.KEYS, 1)
    lake.merge()
    assert lake.visible() == {"a": "1", "b": "1"}
    for rule, rows in (
        (PublishRule.ALWAYS, {"a": "2", "b": "1", "c": "1"}),
        (PublishRule.CHECKED, {"a": "1", "b": "1", "c": "1"}),
    ):
        lake.publish = rule
        assert scope_of(lake.merge()) is (
            MergeScope.NEW if rule is PublishRule.ALWAYS else MergeScope.KEYS
        )
        assert lake.visible() == rows
        assert lake.upserts.next() is None


@pytest.mark.slow
def test_rows_that_return_after_a_rejection_may_be_older_than_rows_from_in_between(
    lake: UpsertLake,
) -> None:
    """A bookmark lists the plan as it lists a plan of new records."""
    lake.publish = PublishRule.CHECKED
    publication = lake.bronze.publication
    first = lake.land_records(("a", "1"), ("b", "1"))
    publication.release(first, "ops", "a test")
    lake.merge()
    publication.reject(first, "ops", "a test")
    second = lake.land_records(("a", "2"))
    publication.release(second, "ops", "a test")
    lake.merge()
    publication.release(first, "ann", "right after all")
    assert scope_of(lake.merge()) is MergeScope.KEYS
    assert lake.visible() == {"a": "2", "b": "1"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        lambda lake: lake.part.clear("ops", "a test"),
        lambda lake: DeltaTable(lake.typed_uri).delete('"offset" = 1'),
        lambda lake: DeltaTable(lake.typed_uri).restore(1),
    ],
    ids=["from-scratch", "delete", "restore"],
)
def test_a_change_that_no_bookmark_lists_causes_a_rebuild(
    lake: UpsertLake, change: Callable[[UpsertLake], object]
) -> None:
    """The table then has the rows of the typed table, before and after the next decode."""
    lake.land_records(("a", "1"), ("b", "1"))
    lake.merge()
    lake.land_records(("a", "2"), ("c", "1"))
    lake.merge()
    change(lake)
    merge = lake.upserts.execute(lake.merger)
    assert scope_of(merge) is MergeScope.ALL
    assert lake.upsert_rows() == lake.expected_rows(("id-1",))
    lake.merge()
    assert lake.upsert_rows() == lake.expected_rows(("id-1",))
    assert lake.upserts.next() is None


def test_a_typed_table_without_rows_and_columns_leaves_no_row(lake: UpsertLake) -> None:
    """No decode brings the columns of registered schemas back, because the plan was undone."""
    lake.decode = replace(lake.decode, value=PayloadSpec(format=Format.JSON_SCHEMA))
    lake.registry = MemoryRegistry({1: {"id": "integer"}})
    landed = lake.land_values([framed(1, b'{"id": 1}')])
    lake.merge()
    lake.bronze.undo.undo(landed.sequence, "ops", "wrong")
    lake.part.clear("ops", "wrong")
    assert scope_of(lake.upserts.execute(lake.merger)) is MergeScope.ALL
    assert lake.upsert_rows() == {}
    assert lake.merge() is None
    lake.land_values([framed(1, b'{"id": 2}')])
    assert scope_of(lake.merge()) is MergeScope.ALL
    assert [row["value"]["id"] for row in lake.upsert_rows().values()] == [2]
    assert lake.upserts.next() is None


def test_reports_of_a_merge_read_no_typed_row_of_a_single_topic(
    lake: UpsertLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the table is up to date, they read no control table either."""
    lake.land_records(("a", "1"))
    lake.merge()
    with monkeypatch.context() as patched:
        patched.setattr(noted_commits, "query_rows", refuse)
        patched.setattr(DeltaControlTable, "summary", refuse)
        assert lake.upserts.next() is None
    lake.land_records(("a", "2"))
    lake.run()
    monkeypatch.setattr(noted_commits, "query_rows", refuse)
    merge = lake.upserts.next()
    assert scope_of(merge) is MergeScope.NEW


def refuse(*_: object) -> object:
    raise AssertionError


def scope_of(merge: MergePlan | None) -> MergeScope | None:
    """Return the scope of a merge."""
    return None if merge is None else merge.scope


def test_a_merge_is_due_since_the_oldest_change_that_no_merge_has_read(lake: UpsertLake) -> None:
    """A bookmark without a change of rows does not count."""
    lake.land_records(("a", "1"))
    lake.run()
    first = commit_time(lake)
    assert due_since(lake) == first
    lake.merge()
    lake.bronze.publication.release(1, "ops", "moves the bookmark")
    lake.run()
    assert lake.upserts.next() is None
    undone = lake.land_records(("a", "2"))
    lake.run()
    second = commit_time(lake)
    assert due_since(lake) == second
    lake.bronze.undo.undo(undone, "ops", "wrong")
    lake.run()
    assert due_since(lake) == second
    DeltaTable(lake.typed_uri).delete()
    # The rebuild has still not read these changes.
    assert due_since(lake) == second
    lake.merge()
    DeltaTable(lake.typed_uri).restore(1)
    assert due_since(lake) is None


def due_since(lake: UpsertLake) -> datetime | None:
    merge = lake.upserts.next()
    assert merge is not None
    return lake.upserts.due_since(merge)


def commit_time(lake: UpsertLake) -> datetime:
    milliseconds = DeltaTable(lake.typed_uri).history(1)[0]["timestamp"]
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


class RandomHistory:
    """Random changes of the tables of a pipeline, with decodes and merges between them.

    Args:
        root: Folder of the tables.
        seed: Seed of all choices.
    """

    def __init__(self, root: Path, seed: int) -> None:
        self.chance = Random(seed)
        self.lake = UpsertLake(root=root / "lake", deletes=Deletes.HARD)
        self.copies = root
        self.topic_ids = ["id-1"]
        self.late: list[MergePlan] = []
        self.done: list[str] = []

    def act(self) -> None:
        """Do something; it may be refused."""
        actions: Mapping[Callable[[], object], float] = {
            self.land: 6,
            self.lake.run: 4,
            self.merge: 4,
            self.plan_merge: 1,
            self.merge_late: 1,
            self.decide: 3,
            self.change_rule: 0.7,
            self.replay: 1,
            self.undo: 1.5,
            self.land_again: 1.5,
            self.clear: 0.3,
            self.restore_typed: 0.5,
            self.delete_typed: 0.5,
            self.compact: 0.5,
            self.restore_upsert: 0.5,
            self.recreate: 0.3,
            self.put_ledger_back: 0.5,
        }
        (action,) = self.chance.choices([*actions], [*actions.values()])
        try:
            action()
        except TidemarkError as refused:
            self.done.append(f"{action.__name__}: {type(refused).__name__}")
        else:
            self.done.append(action.__name__)

    def land(self) -> None:
        partition = self.chance.randrange(2)
        first = self.lake.bronze.kafka.topics["events"][partition].end
        count = self.chance.randint(1, 4)
        if partition == 0 and self.chance.random() < 0.3:
            self.lake.broken = {*self.lake.broken, *range(first, first + count, 2)}
        keys = self.chance.choices(["a", "b", "c", None], k=count)
        records = [(key, self.chance.choice([None, "1", "2", "3"])) for key in keys]
        self.lake.land_records(*records, partition=partition)

    def merge(self) -> None:
        self.lake.upserts.execute(self.lake.merger)

    def plan_merge(self) -> None:
        if (merge := self.lake.upserts.next()) is not None:
            self.late.append(merge)

    def merge_late(self) -> None:
        if self.late and self.lake.upsert_uri.exists():
            self.lake.merger.merge(self.late.pop())

    def plan_number(self) -> int:
        records = self.lake.control.ledger("events").plans.values()
        return self.chance.choice([each.plan.sequence for each in records if each.has_rows] or [1])

    def decide(self) -> None:
        publication = self.lake.bronze.publication
        decide = publication.release if self.chance.random() < 0.8 else publication.reject
        decide(self.plan_number(), f"cli:ann:{len(self.done)}", "a test")

    def change_rule(self) -> None:
        self.lake.publish = self.chance.choice([*PublishRule])

    def replay(self) -> None:
        self.lake.broken = ()
        self.lake.replay(Span(0, self.chance.randint(1, 30)))

    def undo(self) -> None:
        self.lake.bronze.undo.undo(self.plan_number(), "test", "by chance")

    def land_again(self) -> None:
        partition = self.chance.randrange(2)
        end = self.lake.bronze.kafka.topics["events"][partition].end
        start = self.chance.randrange(max(end, 1))
        with suppress(AssertionError):
            self.lake.bronze.land_again(
                (partition, start, start + 2), requested_by=f"test {len(self.done)}"
            )

    def clear(self) -> None:
        self.lake.part.clear("test", "by chance")

    def restore_typed(self) -> None:
        self._restore(self.lake.typed_uri)

    def _restore(self, uri: Path) -> None:
        newest = DeltaTable(uri).version()
        if newest > 1:
            DeltaTable(uri).restore(self.chance.randint(max(1, newest - 3), newest - 1))

    def delete_typed(self) -> None:
        DeltaTable(self.lake.typed_uri).delete(f'"offset" = {self.chance.randrange(10)}')

    def compact(self) -> None:
        DeltaTable(self.lake.typed_uri).optimize.compact()

    def restore_upsert(self) -> None:
        if self.lake.upsert_uri.exists():
            self._restore(self.lake.upsert_uri)

    def recreate(self) -> None:
        self.topic_ids.append(f"id-{len(self.topic_ids) + 1}")
        recreate(self.lake, self.topic_ids[-1])

    def put_ledger_back(self) -> None:
        """Take a copy of the control table, or restore it."""
        copy, control = self.copies / "copy", self.lake.bronze.control_uri
        if not copy.exists():
            shutil.copytree(control, copy)
            return
        put_back(copy, control)
        if self.chance.random() < 0.5:
            self.merge()
        self.lake.bronze.repair.rewind("test", "restored")

    def settle(self) -> None:
        """Decode and merge until nothing is left, and compare with the model."""
        for step in (lambda: self.lake.bronze.repair.rewind("test", "restored"), self.lake.run):
            with suppress(TidemarkError):
                step()
        for _ in range(5):
            if self.lake.upserts.execute(self.lake.merger) is None:
                break
        assert self.lake.upserts.next() is None
        if self.lake.upsert_uri.exists():
            assert self.lake.upsert_rows() == self.lake.expected_rows((*self.topic_ids,))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_merges_in_random_histories_leave_the_newest_typed_row_of_each_key(
    tmp_path: Path, seed: int
) -> None:
    """Some of the merges are late. All are without Spark."""
    history = RandomHistory(tmp_path, seed)
    history.land()
    for _ in range(6):
        for _ in range(10):
            history.act()
        history.settle()
    print(f"seed {seed}: {history.done}")
