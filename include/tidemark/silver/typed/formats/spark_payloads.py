"""Keys and values as Spark columns: the decoded value, or the reason of the failure."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, assert_never

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own docs use
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType

from tidemark.silver.typed import spark_frames as frames
from tidemark.silver.typed.formats import json_reader, json_schema, protobuf_reader
from tidemark.silver.typed.formats import spark_avro as avro
from tidemark.silver.typed.formats.column import column_of
from tidemark.spec.decode import (
    Format,
    Part,
    PayloadSpec,
    QuarantineReason,
    RegisteredSchema,
)
from tidemark.spec.fields import Struct, size_of_type
from tidemark.spec.schema_limits import MAX_COLUMNS

SETTINGS = {
    # A batch is in Python's memory three times: as bytes, as messages and as columns.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(16 * 2**20),
}
"""Session settings for decoding."""
FORMS_AT_ONCE = 50
"""Maximum forms of schemas in one pass over the records. The size of a query grows with them."""
_FramedFormat: TypeAlias = Literal[Format.AVRO, Format.JSON_SCHEMA, Format.PROTOBUF]


def raw(part: Part) -> str:
    """Return the name of the column with the bytes of a key or a value."""
    return f"__raw_{part}"


def reason(part: Part) -> str:
    """Return the name of the column with the reason of a failure; null on success."""
    return f"__reason_{part}"


def detail(part: Part) -> str:
    """Return the name of the column with the first wrong field; null if unknown."""
    return f"__detail_{part}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterSchemas:
    """The schemas of keys or values in one pass.

    Attributes:
        schemas: Schemas whose records this pass decodes.
        refused: Ids of the quarantined schemas.
        oversized: Ids of the schemas that exceed a limit.
        column: Type of the typed table's column for all schemas; None without a column.
        widens: Whether numbers of four bytes become numbers of eight bytes.
        elsewhere: Ids of the schemas whose records other passes decode.
        takes_rest: Whether this pass also handles records without a schema of any pass.
    """

    schemas: Sequence[RegisteredSchema] = ()
    refused: Collection[int] = ()
    oversized: Collection[int] = ()
    column: DataType | None = None
    widens: bool = True
    elsewhere: Collection[int] = ()
    takes_rest: bool = True


def in_passes(kind: Format, written: WriterSchemas, at_once: int) -> list[WriterSchemas]:
    """Return passes over the same records that decode each record once.

    Schemas that decode in the same way, such as those that differ only in their documentation, have
    the same form. They are in the same pass.

    Args:
        kind: The format of the records.
        written: All schemas of the records.
        at_once: Maximum number of forms in a pass. A pass also has at most the columns of one large
            schema.
    """
    forms = list(_forms(kind, written).values()) if written.schemas else []
    groups: list[list[RegisteredSchema]] = [[]]
    in_group, columns = 0, 0
    for form in forms:
        added = size_of_type(column_of(kind, form[0].text))[0]
        if in_group == at_once or (in_group and columns + added > MAX_COLUMNS):
            groups.append([])
            in_group, columns = 0, 0
        groups[-1] += form
        in_group, columns = in_group + 1, columns + added
    ids = {each.id for each in written.schemas}
    return [
        replace(
            written,
            schemas=group,
            elsewhere=sorted(ids - {each.id for each in group}),
            takes_rest=number == 0,
        )
        for number, group in enumerate(groups)
    ]


def _forms(kind: Format, written: WriterSchemas) -> Mapping[Hashable, list[RegisteredSchema]]:
    """Return schemas grouped by their form."""
    forms: dict[Hashable, list[RegisteredSchema]] = {}
    for each in written.schemas:
        forms.setdefault(_form(kind, each.text, widens=written.widens), []).append(each)
    return forms


def _form(kind: Format, schema: str, *, widens: bool) -> Hashable:
    match kind:
        case Format.AVRO:
            return avro.form(schema, widens=widens)
        case Format.JSON_SCHEMA:
            return json_schema.column_of(schema)
        case Format.PROTOBUF:
            # Includes names and options of files, which only cause more forms than needed.
            return json.dumps(json.loads(schema), sort_keys=True)
        case Format.BINARY | Format.STRING | Format.JSON:
            raise ValueError(f"format {kind} has no schemas")
        case _:
            assert_never(kind)


def with_decoded(
    rows: DataFrame,
    part: Part,
    spec: PayloadSpec,
    written: WriterSchemas | None = None,
) -> DataFrame:
    """Return rows with a decoded key or value.

    Args:
        rows: Rows with the bytes in the column `raw(part)`, and the record's `headers`.
        part: The key or the value.
        spec: How to decode it.
        written: The schemas, for a format with schema ids.

    Returns:
        The rows of this pass with three more columns: the part itself, `reason(part)` and
        `detail(part)`; and `part.schema_id` for a format with schema ids.
    """
    payload, nothing = F.col(raw(part)), F.lit(None).cast("string")
    text = payload.cast("string")
    names = (part.value, reason(part), detail(part))
    match spec.format:
        case Format.BINARY:
            return rows.withColumns(dict(zip(names, (payload, nothing, nothing), strict=True)))
        case Format.STRING:
            not_utf8 = F.when(~F.is_valid_utf8(text), QuarantineReason.NOT_UTF8.value)
            return rows.withColumns(dict(zip(names, (text, not_utf8, nothing), strict=True)))
        case Format.JSON:
            if spec.schema is None:
                raise ValueError("format json without a schema")
            place = frames.ResultColumns(*names)
            reading = _json_reading(payload, spec.schema, place, keeps_rest=spec.keeps_rest)
            return frames.with_steps(rows, [reading]).select(*rows.columns, *names)
        case Format.AVRO | Format.JSON_SCHEMA | Format.PROTOBUF:
            return _framed(rows, part, spec.format, written or WriterSchemas())
        case _:
            assert_never(spec.format)


def _framed(
    rows: DataFrame,
    part: Part,
    kind: _FramedFormat,
    written: WriterSchemas,
) -> DataFrame:
    """Return rows with each payload decoded by its own schema, in the typed table's column."""
    payload, number = F.col(raw(part)), part.schema_id
    made = frames.ResultColumns(part.value, reason(part), detail(part))
    ids = [each.id for each in written.schemas]
    in_header = frames.has_schema_id_header(part)
    framed_id = frames.schema_id_of(payload, ids)
    rows = rows.withColumn(number, F.when(~in_header, framed_id))
    if not written.takes_rest:
        rows = rows.where(frames.is_among(number, ids))
    elif written.elsewhere:  # fence: passes-share-no-record
        rows = rows.where(~F.coalesce(frames.is_among(number, written.elsewhere), F.lit(False)))
    undecoded = frames.unreadable_reason(
        payload, in_header, number, ids, written.refused, written.oversized
    )
    rows = frames.with_empty_columns(rows, undecoded, written.column, made)
    if not ids:
        return rows
    kept, body = rows.columns, frames.body_of(payload)
    readings, read = [], []
    for alike in _forms(kind, written).values():
        is_mine = frames.is_among(number, [each.id for each in alike])
        place = frames.ResultColumns.of(part, alike[0].id)
        read.append((is_mine, place))
        readings.append(
            _reading(
                kind,
                F.when(is_mine, body),
                alike[0].text,
                place,
                widens=written.widens,
            )
        )
    rows = frames.with_steps(rows, readings)
    return frames.with_combined_columns(rows, read, written.column, made, kept)


def _reading(
    kind: _FramedFormat,
    payload: Column,
    schema: str,
    place: frames.ResultColumns,
    *,
    widens: bool,
) -> frames.Steps:
    """Return the projections that read payloads of one form."""
    match kind:
        case Format.AVRO:
            return avro.reading(payload, schema, place, widens=widens)
        case Format.PROTOBUF:
            return _protobuf_reading(payload, schema, place)
        case Format.JSON_SCHEMA:
            return _json_reading(payload, json_schema.column_of(schema), place)
        case _:
            assert_never(kind)


def _protobuf_reading(payload: Column, schema: str, place: frames.ResultColumns) -> frames.Steps:
    """Return projections that decode a payload as the first message of a Protobuf schema.

    Spark's own reader is a jar that does not come with Spark.

    Args:
        payload: The message index and the message, or null.
        schema: The schema's descriptors in JSON.
        place: Names of the new columns.
    """

    def decoded(payloads: pa.Array) -> pa.Array:
        return protobuf_reader.read(payloads, schema)

    return _python_reading(payload, decoded, protobuf_reader.read_type(schema), place)


def _json_reading(
    payload: Column, schema: Struct, place: frames.ResultColumns, *, keeps_rest: bool = False
) -> frames.Steps:
    """Return projections that decode a payload as a JSON object.

    Spark's own reader guesses, rounds and cuts off.

    Args:
        payload: The object in UTF-8, or null.
        schema: The fields.
        place: Names of the new columns.
        keeps_rest: Whether `REST` has the fields that the schema does not name.
    """

    def decoded(payloads: pa.Array) -> pa.Array:
        return json_reader.read(payloads, schema, keeps_rest=keeps_rest)

    kind = json_reader.read_type(schema, keeps_rest=keeps_rest)
    return _python_reading(payload, decoded, kind, place)


def _python_reading(
    payload: Column,
    decoded: Callable[[pa.Array], pa.Array],
    kind: pa.StructType,
    place: frames.ResultColumns,
) -> frames.Steps:
    """Return projections with which Spark's Python workers decode Arrow batches of payloads.

    Executors need Python and this package for these formats.

    Args:
        payload: The bytes, or null.
        decoded: Decodes a batch.
        kind: The Arrow type of its result, as of `arrow_results.results`.
        place: Names of the new columns.
    """
    read = f"__read_{place.value}"
    yield {read: F.arrow_udf(decoded, from_arrow_type(kind))(payload)}
    yield {name: F.col(read)[field] for field, name in place._asdict().items()}
