"""Payloads with schema ids: decodes each with its own schema, and combines all values in a column.

The frame is Confluent's wire format: a zero byte, the schema id in four bytes, then the payload.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from typing import NamedTuple, Self, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  the usual alias
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from tidemark.spec.decode import FRAME_BYTES, FRAME_MAGIC, Part, QuarantineReason

_MAX_BYTES = 2**31 - 1
_MAX_COMPARED_IDS = 8
"""Maximum number of ids to compare as bytes. More comparisons are slower than parsing the id."""
_WIDENINGS = {("int", "bigint"), ("float", "double")}


class ResultColumns(NamedTuple):
    """Names of the columns that the decoding of payloads adds.

    Attributes:
        value: The decoded value; null on failure.
        reason: Why the payload could not be decoded, a `QuarantineReason`; null on success.
        detail: The first field with an invalid value; null if unknown.
    """

    value: str
    reason: str
    detail: str

    @classmethod
    def of(cls, name: str, schema_id: int) -> Self:
        """Return column names for the payloads of one form.

        Args:
            name: The common prefix.
            schema_id: The id of a schema of the form.
        """
        return cls(*(f"__{each}_{name}_{schema_id}" for each in cls._fields))


def schema_id_of(payload: Column, expected: Collection[int] = ()) -> Column:
    """Return the schema id of a payload; null if it does not begin with one.

    Args:
        payload: The bytes.
        expected: Ids of most payloads. To compare bytes with a few ids is faster than to parse a
            number.
    """
    frame = F.substring(payload, 1, FRAME_BYTES)
    is_framed = (F.length(frame) == FRAME_BYTES) & (F.substring(frame, 1, 1) == F.lit(FRAME_MAGIC))
    number = F.when(payload.isNull(), None)
    for each in expected if len(expected) <= _MAX_COMPARED_IDS else ():
        known = F.lit(FRAME_MAGIC + each.to_bytes(FRAME_BYTES - 1))
        number = number.when(frame == known, F.lit(each).cast("bigint"))
    return number.when(is_framed, F.conv(F.hex(frame), 16, 10).cast("bigint"))


def has_schema_id_header(part: Part) -> Column:
    """Return whether a record header has the schema id of a key or a value; never null."""
    names = F.col("headers")["key"]
    return F.coalesce(F.array_contains(names, part.schema_id_header), F.lit(False))


def body_of(payload: Column) -> Column:
    """Return the payload after the schema id."""
    return F.substring(payload, FRAME_BYTES + 1, _MAX_BYTES)


Steps: TypeAlias = Generator[dict[str, Column], StructType, None]
"""Successive projections. The consumer sends the schema of the rows after each projection.

Each step is a separate projection: in a single one, Spark would compute an input once for each use.
"""


def with_steps(rows: DataFrame, readings: Sequence[Steps]) -> DataFrame:
    """Return rows with the columns of all `readings`; each projection combines one step of each."""
    schema: StructType | None = None
    while columns := {name: each for steps in readings for name, each in _next(steps, schema)}:
        rows = rows.withColumns(columns)
        schema = rows.schema
    return rows


def _next(steps: Steps, schema: StructType | None) -> Iterable[tuple[str, Column]]:
    try:
        return (next(steps) if schema is None else steps.send(schema)).items()
    except StopIteration:
        return ()


def with_empty_columns(
    rows: DataFrame, reason: Column, column: DataType | None, result: ResultColumns
) -> DataFrame:
    """Return rows with null results and the reason why no schema can decode a payload.

    Args:
        rows: The rows.
        reason: The result of `unreadable_reason`.
        column: The type of the typed table's column; None without a column and a schema.
        result: Names of the new columns.
    """
    null = F.lit(None)
    columns = (null.cast(column or "binary"), reason.cast("string"), null.cast("string"))
    return rows.withColumns(dict(zip(result, columns, strict=True)))


def is_among(schema_id: str, ids: Collection[int]) -> Column:
    """Return whether a column has one of some ids; null where the column is null.

    The function builds SQL, for the same reason as `aligned`.
    """
    if not ids:
        return F.lit(False)
    return F.expr(f"{quoted(schema_id)} IN ({', '.join(map(str, ids))})")


def unreadable_reason(
    payload: Column,
    in_header: Column,
    schema_id: str,
    known: Collection[int],
    refused: Collection[int],
    oversized: Collection[int] = (),
) -> Column:
    """Return the reason why no schema can decode a payload; null if one can.

    Args:
        payload: The bytes, including the frame.
        in_header: Result of `has_schema_id_header`.
        schema_id: Name of the column of `schema_id_of`; null where `in_header` is true.
        known: Ids of schemas that can decode payloads.
        refused: Ids of quarantined schemas.
        oversized: Ids of schemas that exceed a limit.
    """
    return (
        F.when(payload.isNull(), None)
        .when(in_header, QuarantineReason.SCHEMA_IN_HEADER.value)
        .when(F.col(schema_id).isNull(), QuarantineReason.NOT_FRAMED.value)
        .when(is_among(schema_id, refused), QuarantineReason.REFUSED_SCHEMA.value)
        .when(is_among(schema_id, oversized), QuarantineReason.SCHEMA_TOO_LARGE.value)
        .when(~is_among(schema_id, known), QuarantineReason.UNKNOWN_SCHEMA.value)
    )


def with_combined_columns(
    rows: DataFrame,
    forms: Iterable[tuple[Column, ResultColumns]],
    column: DataType | None,
    result: ResultColumns,
    selected: Sequence[str],
) -> DataFrame:
    """Return rows in which the result columns of all forms of schemas are combined.

    Args:
        rows: The rows.
        forms: For each form, whether a row's payload has the form, and the result columns.
        column: The type of the typed table's column; None if the table has no such column.
        result: The combined columns, which `with_empty_columns` added.
        selected: Columns of the returned rows, including `result`.

    Raises:
        ValueError: The typed table's column lacks fields of a schema.
    """
    if column is None:
        raise ValueError(f"the typed table has no column {result.value}")
    schema = rows.schema
    candidates: list[list[Column]] = [[F.col(name)] for name in result]
    for has_form, columns in forms:
        have = schema[columns.value].dataType
        value = F.expr(aligned(quoted(columns.value), have, column, result.value))
        # Another form may decode a null payload to a value.
        candidates[0].append(F.when(has_form & F.col(columns.reason).isNull(), value))
        candidates[1].append(F.when(has_form, F.col(columns.reason)))
        candidates[2].append(F.col(columns.detail))
    combined = {name: F.coalesce(*each) for name, each in zip(result, candidates, strict=True)}
    return rows.select(*(combined.get(name, F.col(name)).alias(name) for name in selected))


def aligned(read: str, have: DataType, want: DataType, path: str, depth: int = 0) -> str:
    """Return SQL that converts a column to another type without loss: more fields, wider numbers.

    The function builds SQL, because each call of Spark's Python functions takes a millisecond: a
    thousand schemas of a hundred fields would take minutes.

    Args:
        read: The column, in SQL.
        have: The type of the column.
        want: The other type.
        path: The name of the column in errors.
        depth: Number of lists and maps that contain the column.

    Raises:
        ValueError: The other type cannot represent all values.
    """
    if have.simpleString() == want.simpleString():
        return read
    each = f"each_{depth}"
    match have, want:
        case StructType(), StructType():
            if extra := set(have.names) - set(want.names):
                raise ValueError(f"the typed table has no field {path}.{min(extra)}")
            fields = [
                aligned(
                    f"{read}.{quoted(f.name)}",
                    have[f.name].dataType,
                    f.dataType,
                    f"{path}.{f.name}",
                    depth,
                )
                if f.name in have.names
                else f"CAST(NULL AS {_sql_type(f.dataType)})"
                for f in want.fields
            ]
            named = [
                f"{field} AS {quoted(f.name)}" for field, f in zip(fields, want.fields, strict=True)
            ]
            return f"IF({read} IS NULL, NULL, struct({', '.join(named)}))"
        case ArrayType(), ArrayType():
            inner = aligned(each, have.elementType, want.elementType, f"{path}[]", depth + 1)
            return f"transform({read}, {each} -> {inner})"
        case MapType(), MapType():
            inner = aligned(each, have.valueType, want.valueType, f"{path}{{}}", depth + 1)
            return f"transform_values({read}, (key_{depth}, {each}) -> {inner})"
        case _ if (have.simpleString(), want.simpleString()) in _WIDENINGS:
            return f"CAST({read} AS {_sql_type(want)})"
        case _:
            raise ValueError(f"{path} is {want.simpleString()} in the typed table")


def inner_names(kind: DataType) -> Mapping[str, Sequence[str]]:
    """Return the names of the fields of a type, each with the names of the fields inside."""
    fields = kind.fields if isinstance(kind, StructType) else ()
    return {
        each.name: each.dataType.names if isinstance(each.dataType, StructType) else []
        for each in fields
    }


def quoted(name: str) -> str:
    """Return the name of a column or a field in SQL."""
    return f"`{name.replace('`', '``')}`"


def _sql_type(kind: DataType) -> str:
    match kind:
        case StructType():
            fields = (f"{quoted(each.name)}: {_sql_type(each.dataType)}" for each in kind.fields)
            return f"STRUCT<{', '.join(fields)}>"
        case ArrayType():
            return f"ARRAY<{_sql_type(kind.elementType)}>"
        case MapType():
            return f"MAP<{_sql_type(kind.keyType)}, {_sql_type(kind.valueType)}>"
        case _:
            return str(kind.simpleString())
