"""Compactions beside each other writer of a table, 200 rounds of each pair, without forced steps.

The test prints in how many rounds the two writers worked at the same time.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from tidemark.adapters.delta.compaction import Compaction
from tidemark.errors import CompactionConflict

pytestmark = pytest.mark.faults

ROUNDS = 200
SEED = 22

Writer = Callable[[str, int], None]
"""Changes a table in a round."""


def rows(*numbers: int, p: str = "a") -> pa.Table:
    """Rows of partition `p`."""
    return pa.table({"p": [p] * len(numbers), "x": pa.array(numbers, pa.int64())})


def compact(uri: str, number: int) -> None:
    """Compact the whole table."""
    Compaction(uri).run()


def compact_part(uri: str, number: int) -> None:
    """Compact one partition, as the control table does every 50 events."""
    Compaction(uri).run({"p": "a"})


def append(uri: str, number: int) -> None:
    """Land a row."""
    write_deltalake(uri, rows(number * 10 + 9), mode="append")


def delete(uri: str, number: int) -> None:
    """Remove a row, as an undo does."""
    DeltaTable(uri).delete(f"x = {number * 10}")


def overwrite(uri: str, number: int) -> None:
    """Replace a row by itself, as a replacement does."""
    write_deltalake(
        DeltaTable(uri), rows(number * 10), mode="overwrite", predicate=f"x = {number * 10}"
    )


PAIRS = {
    "maintain": compact,
    "control compaction": compact_part,
    "ingest": append,
    "undo": delete,
    "replace": overwrite,
}


@pytest.mark.parametrize("name", PAIRS)
def test_i1_every_row_is_there_once_after_a_race_with_a_compaction(
    tmp_path: Path, name: str
) -> None:
    """Of both writers each commits as if it were alone, or is refused and changes nothing."""
    uri, chance, overlapped, refused = str(tmp_path), random.Random(SEED), 0, 0
    expected: list[int] = []
    print(f"seed {SEED}")
    for number in range(ROUNDS):
        for step in range(3):
            new = number * 10 + step
            partition = "ab"[step % 2]
            write_deltalake(uri, rows(new, p=partition), mode="append", partition_by=["p"])
            expected.append(new)
        other = PAIRS[name]
        done: dict[str, tuple[float, float, bool]] = {}
        barrier = threading.Barrier(2)

        def work(
            who: str,
            writer: Writer,
            pause: float,
            *,
            number: int = number,
            barrier: threading.Barrier = barrier,
            done: dict[str, tuple[float, float, bool]] = done,
        ) -> None:
            barrier.wait()
            time.sleep(pause)
            began, committed = time.monotonic(), True
            try:
                writer(uri, number)
            except (CompactionConflict, CommitFailedError):
                committed = False
            done[who] = (began, time.monotonic(), committed)

        pauses = [chance.random() * 0.01, chance.random() * 0.01]
        threads = [
            threading.Thread(target=work, args=("one", compact, pauses[0])),
            threading.Thread(target=work, args=("other", other, pauses[1])),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        one, two = done["one"], done["other"]
        overlapped += max(one[0], two[0]) < min(one[1], two[1])
        refused += not (one[2] and two[2])
        if two[2] and other is append:
            expected.append(number * 10 + 9)
        if two[2] and other is delete:
            expected.remove(number * 10)
        found = pa.table(DeltaTable(uri).scan(columns=["x"]))["x"].to_pylist()
        assert sorted(found) == sorted(expected), f"round {number}"
    print(f"maintain and {name}: {overlapped} of {ROUNDS} overlapped, one refused in {refused}")
    assert overlapped
