"""Tests of start offsets from the transactions of kafka-delta-ingest tables."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from tidemark.ingest.errors import InvalidStart
from tidemark.ingest.start_ingested import ingested_position

ROW = pa.table({"id": pa.array(["a"])})


def commit(table: Path, **last: int) -> None:
    """Commit as kafka-delta-ingest does: `commit(table, p0=4)` with the last offset written."""
    transactions = [
        Transaction(f"web_requests-{name.removeprefix('p')}", offset)
        for name, offset in last.items()
    ]
    write_deltalake(
        table,
        ROW,
        mode="append",
        commit_properties=CommitProperties(app_transactions=transactions),
    )


def test_ingested_table_gives_the_offset_after_the_last_one(tmp_path: Path) -> None:
    """A transaction contains the last offset; an end here is exclusive."""
    commit(tmp_path, p0=4, p1=0)
    commit(tmp_path, p0=9, p11=2)
    found = ingested_position(str(tmp_path), "web_requests", 12)
    assert found.offsets == {0: 10, 1: 1, 11: 3}
    assert found.source == f"transactions of 'web_requests' in the Delta table {tmp_path}"


def test_ingested_table_includes_partitions_that_the_topic_lacks(tmp_path: Path) -> None:
    """The core refuses them as offsets of another topic."""
    commit(tmp_path, p0=4, p7=4)
    assert ingested_position(str(tmp_path), "web_requests", 2).offsets == {0: 5, 7: 5}


def test_transactions_of_another_job_are_ignored(tmp_path: Path) -> None:
    commit(tmp_path, p0=4)
    for app_id in ("web", "web_requests-0", "Web_requests"):
        with pytest.raises(InvalidStart) as refused:
            ingested_position(str(tmp_path), app_id, 1)
        assert f"{app_id}-0" in refused.value.rule


def test_a_folder_without_a_table_is_refused_and_not_changed(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nosuch"):
        with pytest.raises(InvalidStart) as refused:
            ingested_position(str(path), "web_requests", 1)
        assert refused.value.rule == "a Delta table"
    assert list(tmp_path.iterdir()) == []


def test_a_uri_with_credentials_is_refused_without_showing_it() -> None:
    """The control table records the source of a start."""
    with pytest.raises(InvalidStart) as refused:
        ingested_position("s3://AKID:SECRET@lake/x", "web_requests", 1)
    assert "SECRET" not in str(refused.value)
