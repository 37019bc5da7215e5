"""The most frequent key of a batch, compared with a count of all keys."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tidemark.quality import top_key as module
from tidemark.quality.check_results import BatchRef
from tidemark.quality.checks import TopKey
from tidemark.quality.top_key import top_key


def batch_with(folder: Path, *files: Sequence[bytes | None]) -> BatchRef:
    """Create a table with these keys of one plan, by file, and with rows of another plan."""
    schema = pa.schema([("key", pa.binary()), ("plan_sequence", pa.int64())])
    for keys in files:
        rows = [{"key": key, "plan_sequence": 1} for key in keys]
        rows += [{"key": b"other plan", "plan_sequence": 2}] * 100
        write_deltalake(folder, pa.Table.from_pylist(rows, schema), mode="append")
    return BatchRef(
        pipeline="prices", table=str(folder), table_version=len(files) - 1, plan_sequence=1
    )


def test_the_key_with_the_most_rows_is_found(tmp_path: Path) -> None:
    """All files count; rows without a key do not."""
    ref = batch_with(tmp_path, [b"a", b"b", None, None, None], [b"b", b"c", None])
    assert top_key(ref) == TopKey(key="b", records=2)


def test_the_smaller_of_equally_frequent_keys_is_found(tmp_path: Path) -> None:
    """A repetition finds the same key."""
    assert top_key(batch_with(tmp_path, [b"z", b"b", b"z", b"b"])) == TopKey(key="b", records=2)


def test_a_key_is_returned_as_text_and_shortened(tmp_path: Path) -> None:
    """Its bytes may be invalid UTF-8."""
    assert top_key(batch_with(tmp_path, [b"\xff" * 50])) == TopKey(key="\ufffd" * 40, records=1)


@pytest.mark.parametrize("keys", [(), (None, None)])
def test_a_batch_without_keys_has_no_top_key(tmp_path: Path, keys: Sequence[None]) -> None:
    """A plan of gaps has no rows at all."""
    assert top_key(batch_with(tmp_path, keys)) == TopKey(key=None, records=0)


@pytest.mark.parametrize("seed", range(5))
def test_a_frequent_key_is_found_among_more_keys_than_fit_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The count is exact, in any order of the rows."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    frequent = chance.randrange(220, 300)
    keys = [b"frequent"] * frequent + [b"%d" % chance.randrange(3_000) for _ in range(2_000)]
    chance.shuffle(keys)
    monkeypatch.setattr(module, "_GROUP_ROWS", 50)
    files = [keys[start : start + 400] for start in range(0, len(keys), 400)]
    found = top_key(batch_with(tmp_path, *files), max_keys=10)
    assert Counter(keys).most_common(1) == [(b"frequent", frequent)]
    assert found == TopKey(key="frequent", records=frequent)


def test_long_keys_take_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer long keys fit in memory."""
    monkeypatch.setattr(module, "_MAX_BYTES", 4_096)
    keys = [b"frequent"] * 200 + [b"%0500d" % number for number in range(300)]
    random.Random(1).shuffle(keys)
    assert top_key(batch_with(tmp_path, keys)) == TopKey(key="frequent", records=200)


def test_keys_at_the_end_of_a_batch_do_not_hide_the_most_frequent_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They keep their counts; many distinct keys lower earlier counts."""
    monkeypatch.setattr(module, "_GROUP_ROWS", 1)
    others = [b"other %d" % number for number in range(5 * 8_192 - 10)]
    late = [b"late %d" % number for number in range(1_100)] * 6
    keys = [b"frequent"] * 10 + others + late
    found = top_key(batch_with(tmp_path, keys), max_keys=1_500)
    assert found == TopKey(key="frequent", records=10)


def test_any_of_many_long_distinct_keys_may_be_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them is one of the most frequent keys."""
    monkeypatch.setattr(module, "_MAX_BYTES", 4_096)
    keys = [b"%0500d" % number for number in range(300)]
    found = top_key(batch_with(tmp_path, keys))
    assert found.key is not None
    assert found.records == 1


@pytest.mark.parametrize("seed", range(5))
def test_keys_of_any_length_are_counted_exactly_within_the_stated_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """A key with more rows than the bound is always found."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    monkeypatch.setattr(module, "_MAX_BYTES", 2_048)
    monkeypatch.setattr(module, "_GROUP_ROWS", 100)
    # The first bytes differ, and are the ones that the result shows.
    pool = [b"%06d" % number + b"x" * chance.choice((0, 90)) for number in range(400)]
    weights = [chance.paretovariate(0.8) for _ in pool]
    keys = chance.choices(pool, weights, k=3_000)
    files = [keys[start : start + 300] for start in range(0, len(keys), 300)]
    found = top_key(batch_with(tmp_path, *files))
    counted = Counter(key[:40].decode() for key in keys)
    most = max(counted.values())
    fitting = 2_048 // (96 + 8)
    print(f"most {most}, bound {len(keys) // (fitting + 1)}")
    assert found.key is not None
    assert found.records == counted[found.key] >= most - len(keys) // (fitting + 1)
    if most > len(keys) // (fitting + 1):
        assert found.records == most
