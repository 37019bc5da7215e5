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

from tidemark.adapters.delta.failures import named_failures
from tidemark.core.quality import SliceRef
from tidemark.core.quality_checks import TopKey

_KEY_SHOWN = 40
_KEYS_HELD = 1_000_000
"""The most different keys that are counted at a time."""
_ROWS_HELD = 1_000_000
_BYTES_HELD = 128 * 2**20
"""The most bytes of counted keys, and of keys to add. Long keys leave room for fewer."""
_CANDIDATES = 1_000


def top_key(ref: SliceRef, keys_held: int = _KEYS_HELD) -> TopKey:
    """Find the key with the most rows; the smallest one of equally frequent keys.

    Exact if the slice has at most `keys_held` different keys. Otherwise another key may have more
    rows, by at most one in `keys_held` of the slice's rows. Keys that together exceed `_BYTES_HELD`
    lower `keys_held`.

    Args:
        ref: The slice.
        keys_held: The most different keys that are counted at a time.

    Raises:
        StorageRefused, StorageUnavailable, DeltaLogDamaged, EngineFailed: The table cannot be read.
    """
    with named_failures(ref.table, "reading the table"):
        found = _Counts.of(_keys(ref), keys_held)
        if found.missing:
            likely = found.most_frequent(_CANDIDATES)
            found = _Counts.of(_among(_keys(ref), likely), keys_held)
    if not len(found.keys):
        return TopKey(key=None, records=0)
    equal = found.keys.take(pa.array(np.flatnonzero(found.records == found.records.max())))
    first = equal[pc.sort_indices(equal)[0].as_py()].as_py()
    text = first.decode("utf-8", errors="replace")[:_KEY_SHOWN]
    return TopKey(key=text, records=int(found.records.max()))


def _keys(ref: SliceRef) -> Iterator[pa.Array]:
    sql = f"SELECT key FROM t WHERE plan_sequence = {ref.plan_sequence} AND key IS NOT NULL"
    table = DeltaTable(ref.table, version=ref.table_version)
    rows = QueryBuilder().register("t", table).execute(sql)
    for batch in pa.RecordBatchReader.from_stream(rows):
        yield batch.column("key").cast(pa.large_binary())


def _among(keys: Iterable[pa.Array], wanted: pa.Array) -> Iterator[pa.Array]:
    for each in keys:
        yield each.filter(pc.is_in(each, value_set=wanted))


@dataclass(frozen=True, slots=True)
class _Counts:
    """Rows by key.

    Attributes:
        keys: Different keys.
        records: Rows of each.
        missing: The most rows that a count lacks, and that a key without a count has.
    """

    keys: pa.Array
    records: npt.NDArray[np.int64]
    missing: int

    @classmethod
    def of(cls, keys: Iterable[pa.Array], keys_held: int) -> Self:
        """Count keys, with at most `keys_held` different keys in memory."""
        counts = cls(pa.nulls(0, pa.large_binary()), np.zeros(0, np.int64), 0)
        held: list[pa.Array] = []
        for each in keys:
            held.append(each)
            if sum(map(len, held)) >= _ROWS_HELD or sum(a.nbytes for a in held) >= _BYTES_HELD:
                counts = counts._with(held, keys_held)
                held.clear()
        return counts._with(held, keys_held)

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
        fitting = min(keys_held, len(keys) * _BYTES_HELD // max(keys.nbytes, 1))
        if len(keys) <= fitting:
            return replace(self, keys=keys, records=records)
        excess = int(np.partition(records, len(keys) - fitting - 1)[len(keys) - fitting - 1])
        left = np.flatnonzero(records > excess)
        return replace(
            self,
            keys=keys.take(pa.array(left)),
            records=records[left] - excess,
            missing=self.missing + excess,
        )

    def most_frequent(self, number: int) -> pa.Array:
        """The keys with the highest counts, at most `number`."""
        return self.keys.take(pa.array(np.argsort(-self.records, kind="stable")[:number]))
