"""Schema ids at the beginning of the keys and values of a bronze table."""

from __future__ import annotations

from collections.abc import Mapping

from deltalake import DeltaTable

from tidemark.core.offsets import SpanSet
from tidemark.delta.data_table import DeltaDataTable
from tidemark.delta.delta_errors import translates_delta_errors
from tidemark.delta.row_queries import offsets_condition
from tidemark.delta.table_io import open_if_exists, query_rows
from tidemark.spec.decode import FRAME_BYTES, FRAME_MAGIC, Part


@translates_delta_errors
class FramedBronzeTable(DeltaDataTable):
    """A bronze table whose payloads may begin with a schema id; a `FramedLog`."""

    def schema_ids(
        self, topic_id: str, spans: Mapping[int, SpanSet], part: Part
    ) -> Mapping[tuple[int, int], int]:
        """Return the first offset of each schema id, by partition and schema id."""
        table = open_if_exists(self._uri)
        return {} if table is None else _schema_ids(table, topic_id, spans, part)


def _schema_ids(
    table: DeltaTable, topic_id: str, spans: Mapping[int, SpanSet], part: Part
) -> Mapping[tuple[int, int], int]:
    """Return the first offset of each schema id in keys or values, by partition and schema id.

    Ignores records with their schema id in a header.
    """
    there = f"{offsets_condition(topic_id, spans)} AND {part} IS NOT NULL"
    by_header = f"""
        SELECT DISTINCT partition, "offset"
        FROM (SELECT partition, "offset", unnest(headers) AS header FROM t WHERE {there})
        WHERE header['key'] = '{part.schema_id_header}'
    """
    rows = "t"
    if query_rows(table, f"{by_header} LIMIT 1"):
        rows = f"""
            (SELECT t.* FROM t LEFT ANTI JOIN ({by_header}) named
             ON t.partition = named.partition AND t."offset" = named."offset") t
        """
    found = query_rows(
        table,
        f"""
        SELECT partition, min({part}) AS begins, max({part}) AS highest, min("offset") AS first
        FROM {rows} WHERE {there} GROUP BY partition
        """,
    )
    if any(row["begins"][:FRAME_BYTES] != row["highest"][:FRAME_BYTES] for row in found):
        # A partition has several first bytes: group by them, which takes longer.
        found = query_rows(
            table,
            f"""
            SELECT partition, decode(left(encode({part}, 'hex'), {2 * FRAME_BYTES}), 'hex')
                AS begins, min("offset") AS first
            FROM {rows} WHERE {there} GROUP BY partition, begins
            """,
        )
    begins = ((row["partition"], row["begins"][:FRAME_BYTES], row["first"]) for row in found)
    return {
        (partition, int.from_bytes(frame)): first
        for partition, frame, first in begins
        if len(frame) == FRAME_BYTES and frame.startswith(FRAME_MAGIC)
    }
