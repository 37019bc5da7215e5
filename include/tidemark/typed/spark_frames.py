"""Payloads with schema ids: each is read with its own schema, and all values get one column.

The frame is Confluent's wire format: a zero byte, the schema id in four bytes, the payload.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Sequence
from typing import NamedTuple, Self, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own docs use
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from tidemark.spec.decode import FRAME_BYTES, FRAME_MAGIC, Part, QuarantineReason

_MAX_BYTES = 2**31 - 1
_MAX_COMPARED_IDS = 8
"""The most ids to recognise by their bytes; more comparisons are slower than reading the id."""
_WIDER = {("int", "bigint"), ("float", "double")}


class Read(NamedTuple):
    """Names of the columns that a reader of payloads makes.

    Attributes:
        value: The decoded value; null on failure.
        reason: Why the payload could not be decoded, a `QuarantineReason`; null on success.
        detail: The first field with a wrong value; null if unknown.
    """

    value: str
    reason: str
    detail: str

    @classmethod
    def of(cls, name: str, schema_id: int) -> Self:
        """Return the columns for payloads of one form, named after a schema of that form."""
        return cls(*(f"__{each}_{name}_{schema_id}" for each in cls._fields))


def schema_id_of(payload: Column, expected: Collection[int] = ()) -> Column:
    """Return the schema id of a payload; null if it does not begin with one.

    Args:
        payload: The bytes.
        expected: Ids of most payloads. Recognising a few ids by their bytes is faster than reading
            a number.
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
    """Return the payload behind the schema id."""
    return F.substring(payload, FRAME_BYTES + 1, _MAX_BYTES)


Steps: TypeAlias = Generator[dict[str, Column], StructType, None]
"""Successive projections. The receiver sends back the schema of the rows after each.

Each step is a separate projection: in a single one, Spark would compute an input for each use.
"""


def with_steps(rows: DataFrame, readings: Sequence[Steps]) -> DataFrame:
    """Return rows with the columns of several readings; each projection has one step of all."""
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
    rows: DataFrame, reason: Column, column: DataType | None, made: Read
) -> DataFrame:
    """Return rows with empty result columns, before any schema is read.

    Args:
        rows: The rows.
        reason: Why none of the following schemas can read a payload.
        column: The type of the typed table's column; None without a column and a schema.
        made: Names of the new columns.
    """
    nothing = F.lit(None)
    columns = (nothing.cast(column or "binary"), reason.cast("string"), nothing.cast("string"))
    return rows.withColumns(dict(zip(made, columns, strict=True)))


def is_among(schema_id: str, ids: Collection[int]) -> Column:
    """Return whether a column has one of some ids; null where the column is null.

    Builds SQL for the same reason as `aligned`.
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
) -> Column:
    """Return the reason why no schema can read a payload; null if one can.

    Args:
        payload: The bytes, including the frame.
        in_header: Result of `has_schema_id_header`.
        schema_id: The column that `schema_id_of` makes; null where `in_header` is true.
        known: Ids of readable schemas.
        refused: Ids of quarantined schemas.
    """
    return (
        F.when(payload.isNull(), None)
        .when(in_header, QuarantineReason.SCHEMA_IN_HEADER.value)
        .when(F.col(schema_id).isNull(), QuarantineReason.NOT_FRAMED.value)
        .when(is_among(schema_id, refused), QuarantineReason.REFUSED_SCHEMA.value)
        .when(~is_among(schema_id, known), QuarantineReason.UNKNOWN_SCHEMA.value)
    )


def with_combined_columns(
    rows: DataFrame,
    read: Iterable[tuple[Column, Read]],
    column: DataType | None,
    made: Read,
    kept: Sequence[str],
) -> DataFrame:
    """Return rows in which the columns of all forms of schemas are combined.

    Args:
        rows: The rows.
        read: By form, whether a row's payload is of that form, and the columns of the form.
        column: The type of the typed table's column; None if there is none.
        made: The common columns, as `with_empty_columns` makes them.
        kept: The columns to keep, including `made`.

    Raises:
        ValueError: The typed table's column lacks fields of a schema.
    """
    if column is None:
        raise ValueError(f"the typed table has no column {made.value}")
    schema = rows.schema
    found: list[list[Column]] = [[F.col(name)] for name in made]
    for is_mine, place in read:
        have = schema[place.value].dataType
        value = F.expr(aligned(quoted(place.value), have, column, made.value))
        # Another form may read a null payload as a value.
        found[0].append(F.when(is_mine & F.col(place.reason).isNull(), value))
        found[1].append(F.when(is_mine, F.col(place.reason)))
        found[2].append(F.col(place.detail))
    columns = {name: F.coalesce(*each) for name, each in zip(made, found, strict=True)}
    return rows.select(*(columns.get(name, F.col(name)).alias(name) for name in kept))


def aligned(read: str, have: DataType, want: DataType, path: str, depth: int = 0) -> str:
    """Return SQL that converts a column to another type without loss: more fields, wider numbers.

    Builds SQL, because each call of Spark's Python functions takes a millisecond: a thousand
    schemas of a hundred fields would take minutes.

    Args:
        read: The column, in SQL.
        have: Its type.
        want: The other type.
        path: Its name in errors.
        depth: Number of lists and maps around it.

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
        case _ if (have.simpleString(), want.simpleString()) in _WIDER:
            return f"CAST({read} AS {_sql_type(want)})"
        case _:
            raise ValueError(f"{path} is {want.simpleString()} in the typed table")


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
