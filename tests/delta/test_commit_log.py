"""Tests of the commits that the log of a table contains."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from tidemark.delta.commit_log import history


def append(uri: str, name: str) -> None:
    write_deltalake(
        uri,
        pa.table({"value": [1]}),
        mode="append",
        commit_properties=CommitProperties(custom_metadata={"userMetadata": name}),
    )


@pytest.mark.parametrize("limit", [None, 1, 2, 5])
def test_commits_keep_their_versions_after_a_later_commit(
    tmp_path: Path, limit: int | None
) -> None:
    """delta-rs gives each commit the version of an earlier one (`DeltaTable.history`)."""
    uri = str(tmp_path / "a table")
    for name in ("0", "1"):
        append(uri, name)
    table = DeltaTable(uri)
    append(uri, "2")
    append(uri, "3")
    expected = [(1, "1"), (0, "0")][:limit]
    assert [(each["version"], each["userMetadata"]) for each in history(table, limit)] == expected


def test_history_of_delta_rs_counts_from_the_opened_version(tmp_path: Path) -> None:
    """If this test fails, delta-rs has been fixed."""
    uri = str(tmp_path)
    append(uri, "0")
    table = DeltaTable(uri)
    append(uri, "1")
    assert [(each["version"], each["userMetadata"]) for each in table.history()] == [
        (0, "1"),
        (-1, "0"),
    ]


def test_commits_equal_the_history_of_delta_rs(tmp_path: Path) -> None:
    uri = str(tmp_path)
    for name in ("0", "1", "2"):
        append(uri, name)
    table = DeltaTable(uri)
    table.delete("value = 1")
    (tmp_path / "_delta_log" / f"{0:020}.json").unlink()
    assert history(table) == table.history()
