"""Keys and values as Spark columns: decoded, or with the reason why they cannot be."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, assert_never

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own docs use
from pyspark.sql.types import DataType

from tidemark.adapters.spark import avro, frames, json_text, protobuf
from tidemark.core import json_schema
from tidemark.core.decoding import Format, Part, PayloadSpec, Reason, RegisteredSchema

SETTINGS = {**json_text.SETTINGS, **protobuf.SETTINGS}
"""Session settings to decode with."""
_AT_ONCE = 50
"""Schemas whose payloads are read side by side. Side by side each costs a column, one after the
other each costs several projections, of which Spark's analysis takes some hundreds."""


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
        widens: Whether numbers of four bytes become numbers of eight.
    """

    schemas: Sequence[RegisteredSchema] = ()
    refused: Collection[int] = ()
    column: DataType | None = None
    widens: bool = True


def with_decoded(
    rows: DataFrame,
    part: Part,
    spec: PayloadSpec,
    written: WriterSchemas | None = None,
    *,
    names_faults: bool = False,
) -> DataFrame:
    """Rows with a key, or a value, decoded.

    Args:
        rows: Have the bytes in the column `raw(part)`, and the record's `headers`.
        part: Which half of the record.
        spec: How to decode it.
        written: The schemas, of a format whose payloads begin with their ids.
        names_faults: Whether to find out more of what is no JSON of its schema, which takes longer:
            the field, or that it is no JSON object. Without it, and where so many schemas are
            written with that it takes too long, such a payload is malformed.

    Returns:
        The rows with three columns more: the part itself, `reason(part)` and `detail(part)`; and
        `part.schema_id`, if they have ids.
    """
    payload, nothing = F.col(raw(part)), F.lit(None).cast("string")
    text = payload.cast("string")
    names = (part.value, reason(part), detail(part))
    match spec.format:
        case Format.BINARY:
            return rows.withColumns(dict(zip(names, (payload, nothing, nothing), strict=True)))
        case Format.STRING:
            not_utf8 = F.when(~F.is_valid_utf8(text), Reason.NOT_UTF8.value)
            return rows.withColumns(dict(zip(names, (text, not_utf8, nothing), strict=True)))
        case Format.JSON:
            if spec.schema is None:
                raise ValueError("JSON without its fields")
            place = frames.Read(*names)
            reading = json_text.reading(text, spec.schema, place, names_faults=names_faults)
            return frames.with_steps(rows, [reading]).select(*rows.columns, *names)
        case Format.AVRO | Format.JSON_SCHEMA | Format.PROTOBUF:
            return _framed(rows, part, spec.format, written or WriterSchemas(), names_faults)
        case _:
            assert_never(spec.format)


def _framed(
    rows: DataFrame,
    part: Part,
    kind: Literal[Format.AVRO, Format.JSON_SCHEMA, Format.PROTOBUF],
    written: WriterSchemas,
    names_faults: bool,
) -> DataFrame:
    """Each payload by the schema that it names; all in the column of the typed table."""
    payload, number = F.col(raw(part)), F.col(part.schema_id)
    made = frames.Read(part.value, reason(part), detail(part))
    ids = [each.id for each in written.schemas]
    in_header = frames.names_schema_in_header(part)
    framed_id = frames.schema_id_of(payload, ids)
    rows = rows.withColumn(part.schema_id, F.when(~in_header, framed_id))
    why_not = frames.unreadable(payload, in_header, number, ids, written.refused)
    rows = frames.with_nothing_read(rows, why_not, written.column, made)
    kept, body = rows.columns, frames.body_of(payload)
    for first in range(0, len(ids), _AT_ONCE):
        some = written.schemas[first : first + _AT_ONCE]
        read = {each.id: frames.Read.of(part, each.id) for each in some}
        readings = [
            _reading(
                kind,
                F.when(number == each.id, body),
                each.text,
                read[each.id],
                widens=written.widens,
                names_faults=names_faults and len(ids) <= _AT_ONCE,
            )
            for each in some
        ]
        rows = frames.with_steps(rows, readings)
        rows = frames.together(rows, number, read, written.column, made, kept)
    return rows


def _reading(
    kind: Literal[Format.AVRO, Format.JSON_SCHEMA, Format.PROTOBUF],
    payload: Column,
    schema: str,
    place: frames.Read,
    *,
    widens: bool,
    names_faults: bool,
) -> frames.Steps:
    """How payloads of one schema are read."""
    match kind:
        case Format.AVRO:
            return avro.reading(payload, schema, place, widens=widens)
        case Format.PROTOBUF:
            return protobuf.reading(payload, schema, place)
        case Format.JSON_SCHEMA:
            fields, text = json_schema.column_of(schema), payload.cast("string")
            return json_text.reading(text, fields, place, names_faults=names_faults)
        case _:
            assert_never(kind)
