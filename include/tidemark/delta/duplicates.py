"""Finds copies of rows in files of a data table, without a Python object for each row."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from tidemark.delta.errors import DuplicatesDiffer
from tidemark.delta.live_files import LiveFile
from tidemark.delta.rewriting import open_parquet, read_batches

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.fs import FileSystem

KEY_COLUMNS = ("topic_id", "partition", "offset", "plan_sequence")
"""A plan lands each offset once, so two rows must not share these."""

MAX_KEYS_IN_MEMORY = 1_000_000
"""Keys in memory, unless one plan has more rows. A key takes about 100 bytes during the sort."""
_BYTES_AT_ONCE = 32 * 1024 * 1024
_ROWS_AT_ONCE = 65_536
"""Bounds of the whole rows in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    live: LiveFile
    rows_by_plan: Mapping[int, int]
    bytes_per_row: int


class DuplicateSearch:
    """Searches the rows of some files for copies.

    Args:
        files: The table's folder.
        live: The files, the oldest first.
        pipeline: The pipeline of the table, for error messages.
    """

    def __init__(self, files: FileSystem, live: Sequence[LiveFile], pipeline: str) -> None:
        self._files = files
        self._pipeline = pipeline
        self._live = [_summary(files, file) for file in live]
        self._topics: dict[str, int] = {}

    def find(self) -> dict[int, pa.Array]:
        """Return the copies in each file that has duplicate rows, by the number of the file.

        The copies are sorted row numbers. The first row of a key is not one of them, so a file with
        only first rows has no copies. Rows with a null in their key have no copies.

        Raises:
            DuplicatesDiffer: Two rows with one key differ in another column.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        found: dict[int, list[pa.Array]] = {}
        for plans in self._plan_ranges():
            duplicates = self._duplicates(plans)
            for piece in self._pieces(duplicates):
                self._check_equal(piece)  # fence: copies-are-equal
            for number in pc.unique(duplicates["file"]).to_pylist():
                wanted = pc.and_(pc.equal(duplicates["file"], number), duplicates["copy"])
                found.setdefault(number, []).extend(duplicates.filter(wanted)["row"].chunks)
        return {
            number: (rows := pa.concat_arrays([pa.array([], pa.int64()), *parts])).take(
                pc.sort_indices(rows)
            )
            for number, parts in sorted(found.items())
        }

    def _plan_ranges(self) -> Iterator[range]:
        """Ranges of plans whose keys fit into memory together."""
        rows: Counter[int] = Counter()
        for file in self._live:
            rows.update(file.rows_by_plan)
        first, size = min(rows, default=0), 0
        for plan in sorted(rows):
            if size and size + rows[plan] > MAX_KEYS_IN_MEMORY:
                yield range(first, plan)
                first, size = plan, 0
            size += rows[plan]
        if size:
            yield range(first, max(rows) + 1)

    def _duplicates(self, plans: range) -> pa.Table:
        """Keys and places of rows of these plans that share their key, sorted by key and place.

        The column `copy` is true for all rows of a key but the first.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        keys = pa.concat_tables(
            part
            for number, file in enumerate(self._live)
            if any(plan in plans for plan in file.rows_by_plan)
            for part in self._keys(number, plans)
        )
        keys = keys.combine_chunks().sort_by([(name, "ascending") for name in keys.column_names])
        if not keys.num_rows:
            return keys.append_column("copy", pa.array([], pa.bool_()))
        columns = [keys[name].combine_chunks() for name in KEY_COLUMNS]
        alike = reduce(pc.and_, (pc.equal(each[1:], each[:-1]) for each in columns))
        no = pa.array([False])
        copy, copied = pa.concat_arrays([no, alike]), pa.concat_arrays([alike, no])
        return keys.append_column("copy", copy).filter(pc.or_(copy, copied))

    def _keys(self, number: int, plans: range) -> Iterator[pa.Table]:
        """Keys without nulls and places of a file's rows of these plans."""
        import pyarrow as pa
        import pyarrow.compute as pc

        for first, batch in numbered_batches(
            read_batches(self._files, self._live[number].live, list(KEY_COLUMNS))
        ):
            topics = batch["topic_id"].dictionary_encode()
            codes = [
                self._topics.setdefault(name, len(self._topics))
                for name in topics.dictionary.to_pylist()
            ]
            part = pa.table(
                {
                    "topic_id": pa.array(codes, pa.int32()).take(topics.indices),
                    **{name: batch[name].cast(pa.int64()) for name in KEY_COLUMNS[1:]},
                    "file": pa.repeat(pa.scalar(number, pa.int32()), batch.num_rows),
                    "row": row_numbers(first, batch.num_rows),
                }
            )
            plan = part["plan_sequence"]
            within = pc.and_(pc.greater_equal(plan, plans.start), pc.less(plan, plans.stop))
            yield part.filter(
                reduce(pc.and_, (pc.is_valid(part[name]) for name in KEY_COLUMNS), within)
            )

    def _pieces(self, duplicates: pa.Table) -> Iterator[pa.Table]:
        """Parts that have all rows of each of their keys, and whose whole rows fit into memory."""
        import pyarrow.compute as pc

        widths = [self._live[n].bytes_per_row for n in pc.unique(duplicates["file"]).to_pylist()]
        size = min(_ROWS_AT_ONCE, max(_BYTES_AT_ONCE // max([1, *widths]), 1))
        start, copy = 0, duplicates["copy"]
        while start < duplicates.num_rows:
            stop = min(start + size, duplicates.num_rows)
            while stop < duplicates.num_rows and copy[stop].as_py():
                stop += 1
            yield duplicates.slice(start, stop - start)
            start = stop

    def _check_equal(self, piece: pa.Table) -> None:
        """Compare each copy with the row before it, which has the same key."""
        import pyarrow.compute as pc

        rows = self._whole_rows(piece)
        copies = pc.indices_nonzero(piece["copy"])
        before, after = rows.take(pc.subtract(copies, 1)), rows.take(copies)
        number = _first_difference(before, after)
        if number is None:
            return
        place = piece.take(copies.slice(number, 1)).to_pylist()[0]
        raise DuplicatesDiffer(
            pipeline=self._pipeline,
            topic_id=list(self._topics)[place["topic_id"]],
            partition=place["partition"],
            offset=place["offset"],
            sequence=place["plan_sequence"],
            columns=tuple(_differing(before.slice(number, 1), after.slice(number, 1))),
        )

    def _whole_rows(self, piece: pa.Table) -> pa.Table:
        """All columns of the rows at these places, in the same order."""
        import pyarrow as pa
        import pyarrow.compute as pc

        order = pc.sort_indices(piece, sort_keys=[("file", "ascending"), ("row", "ascending")])
        places = piece.take(order)
        parts = []
        for number in pc.unique(places["file"]).to_pylist():
            file = self._live[number].live
            rows = places.filter(pc.equal(places["file"], number))["row"].combine_chunks()
            for first, batch in numbered_batches(read_batches(self._files, file)):
                wanted = pc.subtract(rows_within(rows, first, batch.num_rows), first)
                if len(wanted):
                    part = pa.Table.from_batches([batch.take(wanted)])
                    for name, value in file.partition.items():
                        values = pa.repeat(pa.scalar(value, pa.string()), part.num_rows)
                        part = part.append_column(f"partition value {name}", values)
                    parts.append(part)
        found = pa.concat_tables(parts, promote_options="permissive")
        return found.take(pc.sort_indices(order))


def _summary(files: FileSystem, file: LiveFile) -> _File:
    """Counts of a file's rows; of no row in a file that lacks a column of the key."""
    with open_parquet(files, file) as source:
        metadata = source.metadata
        size = sum(metadata.row_group(n).total_byte_size for n in range(metadata.num_row_groups))
        width = size // max(metadata.num_rows, 1)
        keyed = set(KEY_COLUMNS) <= set(source.schema_arrow.names)
    rows: Counter[int] = Counter()
    for batch in read_batches(files, file, ["plan_sequence"]) if keyed else ():
        for each in batch.column(0).drop_null().value_counts().to_pylist():
            rows[each["values"]] += each["counts"]
    return _File(live=file, rows_by_plan=rows, bytes_per_row=width)


def _first_difference(some: pa.Table, others: pa.Table) -> int | None:
    """The number of the first row that differs, by bisection."""
    if some.equals(others):
        return None
    if some.num_rows == 1:
        return 0 if _differing(some, others) else None
    half = some.num_rows // 2
    found = _first_difference(some.slice(0, half), others.slice(0, half))
    if found is not None:
        return found
    found = _first_difference(some.slice(half), others.slice(half))
    return None if found is None else half + found


def _differing(one: pa.Table, other: pa.Table) -> list[str]:
    """Columns in which two tables of one row differ; two NaN are equal here, unlike in Arrow."""
    return [
        name
        for name in one.column_names
        if not one[name].equals(other[name])
        and repr(one[name].to_pylist()) != repr(other[name].to_pylist())
    ]


def numbered_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Batches of a file with the number of their first row."""
    first = 0
    for batch in batches:
        yield first, batch
        first += batch.num_rows


def row_numbers(first: int, count: int) -> pa.Array:
    """Consecutive numbers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), count), start=first - 1)


def rows_within(rows: pa.Array, first: int, count: int) -> pa.Array:
    """The numbers among these sorted ones that are at least `first` and below `first + count`."""

    def value(number: Any) -> int:
        return int(number.as_py())

    start = bisect_left(rows, first, key=value)
    return rows[start : bisect_left(rows, first + count, key=value)]
