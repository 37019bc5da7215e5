"""The most frequent key of a slice, in bounded memory and without Spark."""

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

_KEY_SHOWN = 40
_KEYS_HELD = 1_000_000
"""The most different keys that are counted at a time."""
_ROWS_HELD = 1_000_000
_BYTES_HELD = 128 * 2**20
"""The most bytes of counted keys, and of keys to add. Long keys leave room for fewer."""
_OVERHEAD = 8
"""Bytes of a key in memory beside its content."""


def top_key(ref: BatchRef, keys_held: int = _KEYS_HELD) -> TopKey:
    """Find the key with the most rows; the smallest one of equally frequent keys.

    The number of rows is exact. The key is the most frequent one if the slice has at most
    `keys_held` different keys, and at most `_BYTES_HELD` bytes of them. Otherwise a first pass
    keeps the keys that may be the most frequent, and a second pass counts them. The first pass may
    drop keys with at most `missing` rows: the slice's rows divided by the keys that fit, plus one.
    So the result is exact if a key has more rows than this. Otherwise another key may have more
    rows, by less than `missing`.

    Args:
        ref: The slice.
        keys_held: The most different keys that are counted at a time.

    Raises:
        StorageRefused, StorageUnavailable, DeltaLogDamaged, EngineFailed: The table cannot be read.
    """
    with translate_delta_errors(ref.table, "reading the table"):
        found = _Counts.of(_keys(ref), keys_held)
        keys, records = found.keys, found.records
        if found.missing:
            keys = found.keys if len(found.keys) else found.any
            records = _records_of(keys, _keys(ref))
    if not len(keys):
        return TopKey(key=None, records=0)
    equal = keys.take(pa.array(np.flatnonzero(records == records.max())))
    first = equal[pc.sort_indices(equal)[0].as_py()].as_py()
    text = first.decode("utf-8", errors="replace")[:_KEY_SHOWN]
    return TopKey(key=text, records=int(records.max()))


def _keys(ref: BatchRef) -> Iterator[pa.Array]:
    sql = f"SELECT key FROM t WHERE plan_sequence = {ref.plan_sequence} AND key IS NOT NULL"
    table = DeltaTable(ref.table, version=ref.table_version)
    rows = QueryBuilder().register("t", table).execute(sql)
    for batch in pa.RecordBatchReader.from_stream(rows):
        yield batch.column("key").cast(pa.large_binary())


def _in_groups(keys: Iterable[pa.Array]) -> Iterator[list[pa.Array]]:
    """Keys in groups of about `_ROWS_HELD` keys, or of `_BYTES_HELD` bytes."""
    held: list[pa.Array] = []
    for each in keys:
        held.append(each)
        if sum(map(len, held)) >= _ROWS_HELD or sum(a.nbytes for a in held) >= _BYTES_HELD:
            yield held
            held = []
    yield held


def _records_of(wanted: pa.Array, keys: Iterable[pa.Array]) -> npt.NDArray[np.int64]:
    """The rows of each wanted key."""
    records = np.zeros(len(wanted), np.int64)
    for group in _in_groups(keys):
        # Each call builds a hash table of the wanted keys: once for a group, not for a batch.
        places = pc.index_in(pa.chunked_array(group, wanted.type), value_set=wanted)
        np.add.at(records, places.drop_null().to_numpy(), 1)
    return records


@dataclass(frozen=True, slots=True)
class _Counts:
    """Rows by key.

    Attributes:
        keys: Different keys.
        records: Rows of each.
        missing: The most rows that a count lacks, and that a key without a count has.
        any: One of the keys that were dropped last; empty if none was dropped.
    """

    keys: pa.Array
    records: npt.NDArray[np.int64]
    missing: int
    any: pa.Array

    @classmethod
    def of(cls, keys: Iterable[pa.Array], keys_held: int) -> Self:
        """Count keys, with at most `keys_held` different keys of `_BYTES_HELD` bytes in memory."""
        none = pa.nulls(0, pa.large_binary())
        counts = cls(none, np.zeros(0, np.int64), 0, none)
        for group in _in_groups(keys):
            counts = counts._with(group, keys_held)
        return counts

    def _with(self, more: Sequence[pa.Array], keys_held: int) -> Self:
        """Count more keys.

        If more keys differ than fit, lowers all counts by the count of the most frequent key that
        does not fit, and drops keys whose count is then zero or less (Misra and Gries, "Finding
        repeated elements", 1982).
        """
        # Without Arrow's `group_by`, which imports its datasets (docs/adr/0003).
        encoded = pa.concat_arrays([self.keys, *more]).dictionary_encode()
        weights = np.ones(len(encoded), np.int64)
        weights[: len(self.keys)] = self.records
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        keys, records = encoded.dictionary, np.zeros(len(encoded.dictionary), np.int64)
        np.add.at(records, codes, weights)
        sizes = pc.binary_length(keys).to_numpy(zero_copy_only=False) + _OVERHEAD
        if len(keys) <= keys_held and sizes.sum() <= _BYTES_HELD:
            return replace(self, keys=keys, records=records)
        by_records = np.argsort(-records, kind="stable")
        in_bytes = np.searchsorted(sizes[by_records].cumsum(), _BYTES_HELD, side="right")
        fitting = min(keys_held, int(in_bytes))
        excess = int(records[by_records[fitting]])
        left = np.flatnonzero(records > excess)
        return replace(
            self,
            keys=keys.take(pa.array(left)),
            records=records[left] - excess,
            missing=self.missing + excess,
            any=keys.take(pa.array(by_records[fitting : fitting + 1])),
        )
