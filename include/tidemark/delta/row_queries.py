"""Queries on the rows of a data table: offsets, counts by origin, and records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import pairwise
from typing import Any, NamedTuple
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.schema import PrimitiveType

from tidemark.core.offsets import Span, SpanSet, spans_by_partition
from tidemark.core.record import LogRecord, TimestampType
from tidemark.core.table_state import RowOrigin, RowRange, TableSize
from tidemark.delta.deletion_vectors import may_have_deletion_vectors
from tidemark.delta.delta_errors import translates_delta_errors
from tidemark.delta.table_io import open_if_exists, query_rows, query_table, utc_datetime
from tidemark.delta.widened_maps import has_widened_maps, widened_batches, widened_schema


@translates_delta_errors
class RowQueries:
    """Queries on the rows of the newest version of a data table, which may not exist.

    Args:
        uri: The table.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri

    def size(self) -> TableSize:
        """Return the number and the size of rows of the newest version, by the log."""
        table = open_if_exists(self._uri)
        return TableSize(records=0, bytes=0) if table is None else table_size(table)

    def row_count(self) -> int | None:
        """Return the number of rows, without those that deletion vectors remove."""
        table = open_if_exists(self._uri)
        return 0 if table is None else row_count(table)

    def files_with(self, topic_id: str, spans: Mapping[int, SpanSet]) -> int:
        """Count the files that may contain rows at some offsets, by statistics."""
        table = open_if_exists(self._uri)
        if table is None:
            return 0
        return len(table.file_uris(file_pruning_predicate=offsets_condition(topic_id, spans)))

    def row_ranges(self) -> tuple[RowRange, ...]:
        """Return the ranges of rows, by plan, incarnation and partition.

        A range ends where a row of another plan follows.
        """
        table = open_if_exists(self._uri)
        if table is None:
            return ()

        def ranges(island: str) -> tuple[RowRange, ...]:
            return tuple(
                RowRange(**row) for row in query_rows(table, _ROW_RANGES.format(island=island))
            )

        whole = ranges("0")
        # Sort the table only if plans interleave.
        return ranges(_ISLAND) if _interleaved(whole) else whole

    def row_origins(self, bounds: Span) -> tuple[RowOrigin, ...]:
        """Count rows at some offsets by their origin: plan, topic, partition and time."""
        table = open_if_exists(self._uri)
        if table is None:
            return ()
        condition = f'"offset" >= {bounds.start} AND "offset" < {bounds.end}'
        found = query_rows(
            table,
            f"""
            SELECT plan_sequence AS sequence, topic, topic_id, partition,
                   arrow_cast(ingested_at, 'Int64') AS micros, min("offset") AS first,
                   count(*) AS rows
            FROM t WHERE {condition}
            GROUP BY plan_sequence, topic, topic_id, partition, micros
            ORDER BY plan_sequence, partition, first
            """,
            condition,
        )
        return tuple(RowOrigin(ingested_at=utc_datetime(row.pop("micros")), **row) for row in found)

    def spans_with_rows(self, topic_id: str, spans: Mapping[int, SpanSet]) -> Mapping[int, SpanSet]:
        """Return the offsets in `spans` with a row, by partition."""
        table = open_if_exists(self._uri)
        return {} if table is None else spans_where(table, offsets_condition(topic_id, spans))

    def spans_by_plan(
        self, topic_id: str, partition: int, window: Span, most: int
    ) -> Mapping[int, SpanSet] | None:
        """Return the offsets with a row of each plan in a window of one partition.

        Rows without a plan number are under 0, which no plan has.

        Args:
            topic_id: Incarnation of the topic.
            partition: Partition number.
            window: The offsets.
            most: Maximum number of spans in all sets.

        Returns:
            None if there are more spans.
        """
        table = open_if_exists(self._uri)
        if table is None:
            return {}
        condition = offsets_condition(topic_id, {partition: SpanSet((window,))})
        islands = query_table(
            table,
            f"""
            SELECT sequence AS key, min(place) AS first, max(place) AS last
            FROM (
                SELECT sequence, place,
                       place - row_number() OVER (PARTITION BY sequence ORDER BY place) AS island
                FROM (SELECT DISTINCT coalesce(plan_sequence, 0) AS sequence, "offset" AS place
                      FROM t WHERE {condition})
            )
            GROUP BY sequence, island
            LIMIT {most + 1}
            """,
            condition,
        )
        return None if islands.num_rows > most else _spans_by_key(islands)

    def count_offsets(self, topic_id: str, partition: int, span: Span, sequence: int) -> int:
        """Return the number of offsets of a span with a row of one plan."""
        table = open_if_exists(self._uri)
        if table is None:
            return 0
        condition = offsets_condition(topic_id, {partition: SpanSet((span,))})
        (row,) = query_rows(
            table,
            f"""
            SELECT count(DISTINCT "offset") AS offsets FROM t
            WHERE plan_sequence = {sequence} AND {condition}
            """,
            condition,
        )
        return int(row["offsets"])

    def offsets_at(self, topic_id: str, partition: int, span: Span) -> list[int]:
        """Return the offset of each row in a span of a partition."""
        table = open_if_exists(self._uri)
        if table is None:
            return []
        places = offsets_condition(topic_id, {partition: SpanSet((span,))})
        found = query_rows(
            table, f'SELECT "offset" AS place FROM t WHERE {places} ORDER BY place', places
        )
        return [row["place"] for row in found]

    def rows_of(self, topic_id: str, partition: int, span: Span) -> Iterator[tuple[int, LogRecord]]:
        """Return plan and record of the rows in a span of a partition, in offset order."""
        return self.rows_at(topic_id, {partition: SpanSet((span,))})

    def rows_at(
        self, topic_id: str, spans: Mapping[int, SpanSet]
    ) -> Iterator[tuple[int, LogRecord]]:
        """Return plan and record of the rows at some offsets, by partition and offset."""
        table = open_if_exists(self._uri)
        return iter(()) if table is None else _rows_at(table, topic_id, spans)

    def last_rows(
        self, topic_id: str, spans: Mapping[int, SpanSet], most: int
    ) -> Mapping[int, Sequence[LogRecord]]:
        """Return the rows with the highest offsets of some spans, by partition, highest first.

        Searches a window at the end of the spans, and a wider window if it has no row. Statistics
        exclude all other files and row groups from the query. Rows before the widest window are not
        found.
        """
        table = open_if_exists(self._uri)
        if table is None:
            return {}
        found: dict[int, list[LogRecord]] = {}
        left = dict(spans)
        window = _FIRST_WINDOW
        for _ in range(_WINDOWS):
            if not left:
                break
            near = {
                p: some.within(Span(max(0, some.spans[-1].end - window), some.spans[-1].end))
                for p, some in left.items()
            }
            condition = offsets_condition(topic_id, near)
            rows = query_rows(
                table,
                f"""
                SELECT partition, {_record_columns(table)} FROM t JOIN (
                    SELECT partition AS p, "offset" AS o FROM (
                        SELECT partition, "offset", row_number() OVER (
                            PARTITION BY partition ORDER BY "offset" DESC) AS place
                        FROM t WHERE {condition}
                    ) WHERE place <= {most}
                ) ON partition = p AND "offset" = o
                WHERE {condition}
                ORDER BY "offset" DESC
                """,
                condition,
            )
            for row in rows:
                found.setdefault(row["partition"], []).append(_record(row["partition"], row))
            left = {p: some for p, some in left.items() if p not in found and near[p] != some}
            window *= 50
        return found

    def values_at(self, topic_id: str, partition: int, span: Span) -> list[dict[str, Any]]:
        """Return all columns of the rows at some offsets as Python values, in offset order.

        A value that Python cannot represent, such as a date after the year 9999, becomes a text in
        angle brackets.
        """
        table = open_if_exists(self._uri)
        if table is None:
            return []
        condition = offsets_condition(topic_id, {partition: SpanSet((span,))})
        found = _rows_with_maps(table, topic_id, partition, span, condition)
        if found is None:
            found = query_table(
                table,
                f'SELECT * FROM t WHERE {condition} ORDER BY "offset", plan_sequence',
                condition,
            )
        columns = [_python_values(found.column(name)) for name in found.column_names]
        names = found.column_names
        return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]

    def bytes_to_read(self, partition: int, window: Span, most: int) -> int:
        """Return the bytes of files that may have rows of a window, by their statistics.

        If a few files have more bytes than `most`, counts their row groups instead, because the
        engine skips row groups by the same statistics.
        """
        table = open_if_exists(self._uri)
        if table is None:
            return 0
        return _bytes_of_rows(table, partition, window, most, lambda rows: rows.size)

    def bytes_to_scan(self, partition: int, window: Span, most: int) -> int:
        """Return the most bytes of offsets and plan numbers that a query of a window decodes.

        Counts files or row groups, as `bytes_to_read`. A file without a row count counts as a
        whole.
        """
        table = open_if_exists(self._uri)
        if table is None:
            return 0
        return _bytes_of_rows(
            table,
            partition,
            window,
            most,
            lambda rows: rows.size if rows.records is None else rows.records * _PLACE_BYTES,
        )


def spans_where(table: DeltaTable, condition: str) -> Mapping[int, SpanSet]:
    """Return the offsets with a row that meets an SQL condition, by partition."""
    return _spans_by_key(query_table(table, _islands(condition), condition))


def few_spans_where(table: DeltaTable, condition: str, most: int) -> Mapping[int, SpanSet] | None:
    """Return the same as `spans_where`; None if there are more than `most` spans."""
    islands = query_table(table, f"{_islands(condition)} LIMIT {most + 1}", condition)
    return None if islands.num_rows > most else _spans_by_key(islands)


def _islands(condition: str) -> str:
    return f"""
        SELECT partition AS key, min(place) AS first, max(place) AS last
        FROM (
            SELECT partition, place,
                   place - row_number() OVER (PARTITION BY partition ORDER BY place) AS island
            FROM (SELECT DISTINCT partition, "offset" AS place FROM t WHERE {condition})
        )
        GROUP BY partition, island
        """


def _spans_by_key(islands: Any) -> Mapping[int, SpanSet]:
    """Return the offsets of islands by key; `first` and `last` are the offsets of an island."""
    # Without dictionaries: a compacted topic has an island for each row.
    columns = (islands.column(name).to_pylist() for name in ("key", "first", "last"))
    return spans_by_partition(
        (key, Span(first, last + 1)) for key, first, last in zip(*columns, strict=True)
    )


class _Rows(NamedTuple):
    """Rows of a file or of a row group.

    Attributes:
        size: Their bytes.
        records: Their number; None if unknown.
    """

    size: int
    records: int | None


_FEW_FILES = 20
"""Number of files whose footers `bytes_to_read` and `bytes_to_scan` read."""

_PLACE_BYTES = 16
"""Bytes of the offset and the plan number of a row."""


def _bytes_of_rows(
    table: DeltaTable, partition: int, window: Span, most: int, bytes_of: Callable[[_Rows], int]
) -> int:
    """Return the bytes of the files that may have rows of a window.

    If a few files have more than `most`, return the bytes of their row groups instead.
    """
    files = table.get_add_actions(flatten=True)
    names = ("num_records", "min.partition", "max.partition", "min.offset", "max.offset")
    unknown = [None] * files.num_rows
    columns = [
        files.column(name).to_pylist() if name in files.column_names else unknown for name in names
    ]
    paths, sizes = (files.column(name).to_pylist() for name in ("path", "size_bytes"))
    found = {
        path: bytes_of(_Rows(size, records))
        for path, size, records, *bounds in zip(paths, sizes, *columns, strict=True)
        if _may_have(bounds[:2], Span(partition, partition + 1)) and _may_have(bounds[2:], window)
    }
    total = sum(found.values())
    if total <= most or len(found) > _FEW_FILES:
        return total
    return sum(
        bytes_of(rows)
        for path in found
        for rows in _row_groups(table.table_uri, path, partition, window)
    )


def _row_groups(uri: str, path: str, partition: int, window: Span) -> Iterator[_Rows]:
    """Yield the row groups of a file that may have rows of a window, by their statistics."""
    import pyarrow.parquet as pq

    from tidemark.delta.live_files import table_filesystem

    wanted = {"partition": Span(partition, partition + 1), "offset": window}
    with (
        table_filesystem(uri).open_input_file(unquote(path)) as source,
        pq.ParquetFile(source) as f,
    ):
        for number in range(f.metadata.num_row_groups):
            group = f.metadata.row_group(number)
            columns = [group.column(at) for at in range(group.num_columns)]
            bounds = {
                column.path_in_schema: (column.statistics.min, column.statistics.max)
                for column in columns
                if column.path_in_schema in wanted and column.is_stats_set
            }
            if all(_may_have(each, wanted[name]) for name, each in bounds.items()):
                yield _Rows(sum(column.total_compressed_size for column in columns), group.num_rows)


def _may_have(bounds: Sequence[int | None], wanted: Span) -> bool:
    """Return False if the least and the greatest value of a file exclude all wanted values."""
    least, most = bounds
    return (least is None or least < wanted.end) and (most is None or wanted.start <= most)


def offsets_condition(topic_id: str, spans: Mapping[int, SpanSet]) -> str:
    """Return the SQL condition for rows of one incarnation at some offsets."""
    places = [
        f'(partition = {partition} AND "offset" >= {span.start} AND "offset" < {span.end})'
        for partition, some in sorted(spans.items())
        for span in some
    ]
    conditions = [
        f"topic_id = '{topic_id}'",  # fence: rows-of-other-incarnations-stay
        f"({any_of(places)})",
    ]
    return " AND ".join(conditions)


def any_of(conditions: Sequence[str]) -> str:
    """Join conditions as a balanced tree: a chain of thousands is too deep for the parser."""
    if len(conditions) <= 2:
        return " OR ".join(conditions) or "false"
    middle = len(conditions) // 2
    return f"({any_of(conditions[:middle])}) OR ({any_of(conditions[middle:])})"


def _rows_with_maps(
    table: DeltaTable, topic_id: str, partition: int, span: Span, condition: str
) -> Any:
    """Return the rows of `values_at` as a table of Arrow; None if delta-rs can read them."""
    batches = widened_batches(table, pruned_by=condition) if has_widened_maps(table) else None
    if batches is None:
        return None
    import pyarrow as pa
    import pyarrow.compute as pc

    def wanted(batch: Any) -> Any:
        offsets = batch.column("offset")
        conditions = (
            pc.equal(batch.column("topic_id"), topic_id),
            pc.equal(batch.column("partition"), partition),
            pc.greater_equal(offsets, span.start),
            pc.less(offsets, span.end),
        )
        return batch.filter(reduce(pc.and_, conditions))

    try:
        found = pa.Table.from_batches(map(wanted, batches), widened_schema(table))
    except (pa.ArrowException, OSError) as failed:
        from tidemark.delta.unreadable_files import raise_if_unreadable

        raise_if_unreadable(table, failed)
        raise
    return found.sort_by([("offset", "ascending"), ("plan_sequence", "ascending")])


def _python_values(column: Any) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError):
        return [_python_value(each) for each in column]
    return values


def _python_value(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError) as failed:
        return f"<{failed}>"


_MIN_MEASURED_BYTES = 64 * 2**10
"""In smaller files, schema and statistics take more bytes than the rows."""


def table_size(table: DeltaTable) -> TableSize:
    """Return rows and bytes of the files that are large enough to measure the size of a row."""
    files = table.get_add_actions(flatten=True)
    if "num_records" not in files.column_names:
        return TableSize(records=0, bytes=0)
    records, sizes = (files.column(name).to_pylist() for name in ("num_records", "size_bytes"))
    measured = [
        (count, size)
        for count, size in zip(records, sizes, strict=True)
        if count and size >= _MIN_MEASURED_BYTES
    ]
    return TableSize(
        records=sum(count for count, _ in measured), bytes=sum(size for _, size in measured)
    )


def stored_bytes(table: DeltaTable, sequence: int | None = None) -> int | None:
    """Return the bytes of a table's files, or of those with rows of one plan alone.

    None if no file has only rows of the plan, by the statistics of the files.
    """
    files = table.get_add_actions(flatten=True)
    sizes: list[int] = files.column("size_bytes").to_pylist()
    if sequence is None:
        return sum(sizes)
    if not {"min.plan_sequence", "max.plan_sequence"} <= set(files.column_names):
        return None
    lows, highs = (files.column(f"{end}.plan_sequence").to_pylist() for end in ("min", "max"))
    plans = zip(lows, highs, sizes, strict=True)
    own = [size for low, high, size in plans if low == high == sequence]
    return sum(own) if own else None


def row_count(table: DeltaTable) -> int | None:
    """Number of rows by the statistics of the files; None without these statistics.

    Subtracts the rows that deletion vectors mark as deleted, because the statistics count them.
    """
    stored = stored_rows(table)
    return stored - _deleted(table) if stored else stored


def stored_rows(table: DeltaTable) -> int | None:
    """Number of rows in the files of a table, deleted or not; None without their statistics."""
    files = table.get_add_actions(flatten=True)
    if files.num_rows == 0:
        return 0
    if "num_records" not in files.column_names:
        return None
    counts = files.column("num_records").to_pylist()
    return None if None in counts else sum(counts)


def _deleted(table: DeltaTable) -> int:
    """Number of rows that deletion vectors mark as deleted."""
    if not may_have_deletion_vectors(table):
        return 0
    import pyarrow as pa
    import pyarrow.compute as pc

    kept = pc.list_flatten(pa.table(table.deletion_vectors())["selection_vector"])
    return int(pc.sum(pc.invert(kept), min_count=0).as_py())


_ROW_RANGES = """
    SELECT plan_sequence AS sequence, topic_id, partition,
           min("offset") AS first, max("offset") AS last, count(*) AS rows
    FROM (
        SELECT plan_sequence, topic_id, partition, "offset", {island} AS island
        FROM t
    )
    GROUP BY plan_sequence, topic_id, partition, island
    ORDER BY plan_sequence, topic_id, partition, first
"""

_ISLAND = """
    row_number() OVER (PARTITION BY topic_id, partition ORDER BY "offset", plan_sequence)
    - row_number() OVER (PARTITION BY topic_id, partition, plan_sequence ORDER BY "offset")
"""
"""A number that is equal for rows of one plan without rows of another plan between them."""


def _interleaved(whole: Sequence[RowRange]) -> bool:
    """Return True if rows of one plan are between rows of another."""
    by_place = sorted(whole, key=lambda held: (held.topic_id, held.partition, held.first))
    return any(
        (before.topic_id, before.partition) == (after.topic_id, after.partition)
        and after.first <= before.last
        for before, after in pairwise(by_place)
    )


_FIRST_WINDOW = 1_000
_WINDOWS = 4


def _rows_at(
    table: DeltaTable, topic_id: str, spans: Mapping[int, SpanSet]
) -> Iterator[tuple[int, LogRecord]]:
    """Iterate over plan and record of rows, by partition and offset."""
    places = offsets_condition(topic_id, spans)
    found = query_rows(
        table,
        f"""
        SELECT plan_sequence, partition, {_record_columns(table)}
        FROM t
        WHERE {places}
        ORDER BY partition, "offset", plan_sequence
        """,
        places,
    )
    for row in found:
        yield row["plan_sequence"], _record(row["partition"], row)


def _record_columns(table: DeltaTable) -> str:
    """Return the columns that `_record` reads: a decoded key or value is not part of a record."""
    bytes_in = {field.name for field in table.schema().fields if field.type == _BINARY}
    payload = ", ".join(
        name if name in bytes_in else f"NULL AS {name}" for name in ("key", "value")
    )
    return f"""
        "offset", {payload}, headers, timestamp_type, timestamp_out_of_range_ms,
        arrow_cast(timestamp, 'Int64') AS micros
    """


_BINARY = PrimitiveType("binary")


def _record(partition: int, row: Mapping[str, Any]) -> LogRecord:
    kind = row["timestamp_type"]
    return LogRecord(
        partition=partition,
        offset=row["offset"],
        key=row["key"],
        value=row["value"],
        headers=tuple((header["key"], header["value"]) for header in row["headers"] or ()),
        timestamp_ms=_milliseconds(row["micros"], row["timestamp_out_of_range_ms"]),
        timestamp_type=TimestampType(kind) if kind in _KINDS else TimestampType.NONE,
    )


def _milliseconds(micros: int | None, out_of_range_ms: int | None) -> int:
    """Return Kafka's milliseconds: exactly one of the two columns holds them.

    If another program changed a row so that it has no whole millisecond, the row gets a number
    that no Kafka record has. So it differs from every record.
    """
    if micros is not None and out_of_range_ms is None and micros % 1000 == 0:
        return micros // 1000
    if micros is None and out_of_range_ms is not None:
        return out_of_range_ms
    return _NO_MILLISECONDS


_NO_MILLISECONDS = 2**63
"""One more than Kafka's greatest timestamp."""


_KINDS = frozenset(TimestampType)
