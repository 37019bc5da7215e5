"""Keys and values as Spark columns: decoded, or with the reason why they cannot be."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own docs use
from pyspark.sql.types import DataType

from tidemark.adapters.spark import avro, frames, json_text, protobuf
from tidemark.core import json_schema
from tidemark.core.decoding import Format, Part, PayloadSpec, Reason, RegisteredSchema

SETTINGS = {**json_text.SETTINGS, **protobuf.SETTINGS}
"""Session settings to decode with."""


def raw(part: Part) -> str:
    """The column that has the bytes of a key or a value, before and after it is decoded."""
    return f"__raw_{part}"


def reason(part: Part) -> str:
    """The column that says why a key or a value cannot be decoded, as `Reason`; null if it can."""
    return f"__reason_{part}"


def detail(part: Part) -> str:
    """The column that names the first field with a wrong value; null where nobody knows."""
    return f"__detail_{part}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterSchemas:
    """What keys, or values, are written with that begin with the id of a schema.

    Attributes:
        schemas: Those that can be read.
        refused: Ids of those that are quarantined.
        column: The typed table's column, which takes the records of all; None without one.
    """

    schemas: Sequence[RegisteredSchema] = ()
    refused: Collection[int] = ()
    column: DataType | None = None


def with_decoded(
    rows: DataFrame, part: Part, spec: PayloadSpec, written: WriterSchemas | None = None
) -> DataFrame:
    """Rows with a key, or a value, decoded.

    Args:
        rows: Have the bytes in the column `raw(part)`.
        part: Which half of the record.
        spec: How to decode it.
        written: The schemas, of a format whose payloads begin with their ids.

    Returns:
        The rows with three columns more: the part itself, `reason(part)` and `detail(part)`; and
        `part.schema_id`, if they have ids.
    """
    payload, nothing = F.col(raw(part)), F.lit(None).cast("string")
    if spec.format.has_schema_ids:
        return _framed(rows, part, spec.format, written or WriterSchemas())
    if spec.format is Format.BINARY:
        return rows.withColumns({part.value: payload, reason(part): nothing, detail(part): nothing})
    text = payload.cast("string")
    if spec.schema is not None:
        return json_text.with_object(
            rows, text, spec.schema, part.value, reason(part), detail(part)
        )
    not_utf8 = F.when(~F.is_valid_utf8(text), Reason.NOT_UTF8.value)
    return rows.withColumns({part.value: text, reason(part): not_utf8, detail(part): nothing})


def _framed(rows: DataFrame, part: Part, kind: Format, written: WriterSchemas) -> DataFrame:
    """Each payload by the schema that it names; all in the column of the typed table."""
    payload, number = F.col(raw(part)), F.col(part.schema_id)
    rows = rows.withColumn(part.schema_id, frames.schema_id_of(payload))
    body = frames.body_of(payload)
    read = []
    for schema in written.schemas:
        place = frames.Read.of(part, schema.id)
        mine = F.when(number == schema.id, body)
        match kind:
            case Format.AVRO:
                rows = avro.with_record(rows, mine, schema.text, *place)
            case Format.PROTOBUF:
                rows = protobuf.with_message(rows, mine, schema.text, *place)
            case Format.JSON_SCHEMA:
                fields = json_schema.column_of(schema.text)
                rows = json_text.with_object(rows, mine.cast("string"), fields, *place)
            case _:
                raise AssertionError(f"nobody reads {kind} by its schema")
        read.append((schema.id, place))
    return frames.together(
        rows,
        payload,
        number,
        read,
        written.refused,
        written.column,
        frames.Read(part.value, reason(part), detail(part)),
    )
