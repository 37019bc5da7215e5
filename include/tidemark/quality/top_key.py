"""The most frequent key of a batch, in bounded memory and without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder

from tidemark.lake.delta_errors import translate_delta_errors
from tidemark.quality.check_results import BatchRef
from tidemark.quality.checks import TopKey

_MAX_KEY_LENGTH = 40
_MAX_KEYS = 1_000_000
"""Maximum number of distinct keys in memory."""
_GROUP_ROWS = 1_000_000
_MAX_BYTES = 128 * 2**20
"""Maximum bytes of the counted keys, and of a group of keys to add. Fewer long keys fit."""
_OVERHEAD = 8
"""Bytes of a key in memory in addition to its content."""


def top_key(ref: BatchRef, max_keys: int = _MAX_KEYS) -> TopKey:
    """Return the key with the most rows; the smallest one of equally frequent keys.

    The number of rows is exact. The key is the most frequent one if the batch has at most
    `max_keys` distinct keys with at most `_MAX_BYTES` bytes. Otherwise a first pass selects keys
    that may be the most frequent, and a second pass counts them. The first pass may drop keys with
    at most `missing` rows: the rows of the batch divided by the keys that fit, plus one. The result
    is exact if a key has more rows than this. Otherwise another key may have more rows, by less
    than `missing`.

    Args:
        ref: The batch.
        max_keys: Maximum number of distinct keys in memory.
    """
    with translate_delta_errors(ref.table, "reading the table"):
        counts = _Counts.of(_keys(ref), max_keys)
        keys, records = counts.keys, counts.records
        if counts.missing:
            keys = counts.keys if len(counts.keys) else counts.dropped
            records = _count_rows(keys, _keys(ref))
    if not len(keys):
        return TopKey(key=None, records=0)
    most_frequent = keys.take(pa.array(np.flatnonzero(records == records.max())))
    first = most_frequent[pc.sort_indices(most_frequent)[0].as_py()].as_py()
    text = first.decode("utf-8", errors="replace")[:_MAX_KEY_LENGTH]
    return TopKey(key=text, records=int(records.max()))


def _keys(ref: BatchRef) -> Iterator[pa.Array]:
    sql = f"SELECT key FROM t WHERE plan_sequence = {ref.plan_sequence} AND key IS NOT NULL"
    table = DeltaTable(ref.table, version=ref.table_version)
    rows = QueryBuilder().register("t", table).execute(sql)
    for batch in pa.RecordBatchReader.from_stream(rows):
        yield batch.column("key").cast(pa.large_binary())


def _in_groups(keys: Iterable[pa.Array]) -> Iterator[list[pa.Array]]:
    """Yield keys in groups of about `_GROUP_ROWS` keys, or of `_MAX_BYTES` bytes."""
    group: list[pa.Array] = []
    for each in keys:
        group.append(each)
        if sum(map(len, group)) >= _GROUP_ROWS or sum(a.nbytes for a in group) >= _MAX_BYTES:
            yield group
            group = []
    yield group


def _count_rows(selected: pa.Array, keys: Iterable[pa.Array]) -> npt.NDArray[np.int64]:
    """Return the number of rows of each selected key."""
    records = np.zeros(len(selected), np.int64)
    for group in _in_groups(keys):
        # Each call builds a hash table of the selected keys. Groups need fewer calls than arrays.
        indices = pc.index_in(pa.chunked_array(group, selected.type), value_set=selected)
        np.add.at(records, indices.drop_null().to_numpy(), 1)
    return records


@dataclass(frozen=True, slots=True)
class _Counts:
    """Approximate number of rows by key.

    Attributes:
        keys: Distinct keys.
        records: Number of rows of each key, at most `missing` below the true number.
        missing: Maximum number of rows of a key that has no count.
        dropped: One of the keys that were dropped last; empty if none was dropped.
    """

    keys: pa.Array
    records: npt.NDArray[np.int64]
    missing: int
    dropped: pa.Array

    @classmethod
    def of(cls, keys: Iterable[pa.Array], max_keys: int) -> Self:
        """Count keys, with at most `max_keys` distinct keys of `_MAX_BYTES` bytes in memory."""
        no_keys = pa.nulls(0, pa.large_binary())
        counts = cls(no_keys, np.zeros(0, np.int64), 0, no_keys)
        for group in _in_groups(keys):
            counts = counts._with(group, max_keys)
        return counts

    def _with(self, more: Sequence[pa.Array], max_keys: int) -> Self:
        """Return the counts with more keys.

        If more distinct keys exist than fit, the method lowers all counts by the count of the most
        frequent key that does not fit. It drops keys whose count is then zero or less (Misra and
        Gries, "Finding repeated elements", 1982).
        """
        # Arrow's `group_by` imports its datasets: see
        # docs/adr/0003-no-pyarrow-datasets-over-delta-rs.md.
        encoded = pa.concat_arrays([self.keys, *more]).dictionary_encode()
        weights = np.ones(len(encoded), np.int64)
        weights[: len(self.keys)] = self.records
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        keys, records = encoded.dictionary, np.zeros(len(encoded.dictionary), np.int64)
        np.add.at(records, codes, weights)
        sizes = pc.binary_length(keys).to_numpy(zero_copy_only=False) + _OVERHEAD
        if len(keys) <= max_keys and sizes.sum() <= _MAX_BYTES:
            return replace(self, keys=keys, records=records)
        by_records = np.argsort(-records, kind="stable")
        in_bytes = np.searchsorted(sizes[by_records].cumsum(), _MAX_BYTES, side="right")
        fitting = min(max_keys, int(in_bytes))
        excess = int(records[by_records[fitting]])
        remaining = np.flatnonzero(records > excess)
        return replace(
            self,
            keys=keys.take(pa.array(remaining)),
            records=records[remaining] - excess,
            missing=self.missing + excess,
            dropped=keys.take(pa.array(by_records[fitting : fitting + 1])),
        )
