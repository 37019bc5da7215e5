"""Payloads behind the ids of their schemas, each read with its own, in one column.

The frame is Confluent's wire format: a zero byte, the id in four bytes, the payload.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, Self

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own docs use
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from tidemark.core.decoding import FRAME_BYTES, FRAME_MAGIC, Part, Reason

_MOST_BYTES = 2**31 - 1
_WIDER = {("int", "bigint"), ("float", "double")}


class Read(NamedTuple):
    """Names of the columns that reading payloads makes.

    Attributes:
        value: What was read; null where it could not be.
        reason: Why it could not be, as `Reason`; null where it could.
        detail: The first field with a wrong value; null where nobody knows.
    """

    value: str
    reason: str
    detail: str

    @classmethod
    def of(cls, name: str, schema_id: int) -> Self:
        """The columns for payloads of one schema."""
        return cls(*(f"__{each}_{name}_{schema_id}" for each in cls._fields))


def schema_id_of(payload: Column, expected: Iterable[int] = ()) -> Column:
    """The id that a payload begins with; null where it begins with none.

    Args:
        payload: The bytes.
        expected: Ids that most payloads begin with; these are known by their bytes, which is
            quicker than to read a number.
    """
    frame = F.substring(payload, 1, FRAME_BYTES)
    is_framed = (F.length(frame) == FRAME_BYTES) & (F.substring(frame, 1, 1) == F.lit(FRAME_MAGIC))
    number = F.when(payload.isNull(), None)
    for each in expected:
        known = F.lit(FRAME_MAGIC + each.to_bytes(FRAME_BYTES - 1))
        number = number.when(frame == known, F.lit(each).cast("bigint"))
    return number.when(is_framed, F.conv(F.hex(frame), 16, 10).cast("bigint"))


def names_schema_in_header(part: Part) -> Column:
    """Whether a record header names the schema of a key or a value; never null."""
    names = F.col("headers")["key"]
    return F.coalesce(F.array_contains(names, part.schema_id_header), F.lit(False))


def body_of(payload: Column) -> Column:
    """What is behind the id."""
    return F.substring(payload, FRAME_BYTES + 1, _MOST_BYTES)


def together(
    rows: DataFrame,
    payload: Column,
    in_header: Column,
    schema_id: Column,
    read: Sequence[tuple[int, Read]],
    refused: Collection[int],
    column: DataType | None,
    made: Read,
) -> DataFrame:
    """Rows with what was read by each schema in the columns of all.

    Args:
        rows: The rows.
        payload: The bytes, id and all.
        in_header: As `names_schema_in_header` makes it.
        schema_id: As `schema_id_of` makes it; null where `in_header` is true.
        read: The columns of each schema's payloads, which are dropped.
        refused: Ids of schemas that are quarantined.
        column: The type of the typed table's column; None if there is none, and no schema.
        made: What the new columns are called.

    Raises:
        ValueError: The typed table's column has not all the fields of a schema.
    """
    values, why, where = [], [], []
    for number, place in read:
        if column is None:
            raise ValueError(f"the typed table has no column {made.value}")
        value = aligned(F.col(place.value), rows.schema[place.value].dataType, column, made.value)
        # Of the row's own schema, and not null by any other.
        values.append(F.when((schema_id == number) & F.col(place.reason).isNull(), value))
        why.append(F.when(schema_id == number, F.col(place.reason)))
        where.append(F.col(place.detail))
    nothing = F.lit(None)
    reason = (
        F.when(payload.isNull(), None)
        .when(in_header, Reason.SCHEMA_IN_HEADER.value)
        .when(schema_id.isNull(), Reason.NOT_FRAMED.value)
        .when(schema_id.isin(list(refused)), Reason.REFUSED_SCHEMA.value)
        .when(~schema_id.isin([number for number, _ in read]), Reason.UNKNOWN_SCHEMA.value)
        .otherwise(F.coalesce(*why, nothing))
    )
    return rows.withColumns(
        {
            made.value: F.coalesce(*values, nothing.cast(column or "binary")),
            made.reason: reason.cast("string"),
            made.detail: F.coalesce(*where, nothing.cast("string")),
        }
    ).drop(*(name for _, place in read for name in place))


def aligned(read: Column, have: DataType, want: DataType, path: str) -> Column:
    """A column in another type that takes all of it: more fields, wider numbers.

    Raises:
        ValueError: It does not take all of it.
    """
    if have.simpleString() == want.simpleString():
        return read
    match have, want:
        case StructType(), StructType():
            if extra := set(have.names) - set(want.names):
                raise ValueError(f"the typed table has no field {path}.{min(extra)}")
            fields = [
                aligned(read[f.name], have[f.name].dataType, f.dataType, f"{path}.{f.name}")
                if f.name in have.names
                else F.lit(None).cast(f.dataType)
                for f in want.fields
            ]
            named = [each.alias(f.name) for each, f in zip(fields, want.fields, strict=True)]
            return F.when(read.isNotNull(), F.struct(*named))
        case ArrayType(), ArrayType():
            have_element, want_element = have.elementType, want.elementType
            return F.transform(
                read, lambda each: aligned(each, have_element, want_element, f"{path}[]")
            )
        case MapType(), MapType():
            have_value, want_value = have.valueType, want.valueType
            return F.transform_values(
                read, lambda _, each: aligned(each, have_value, want_value, f"{path}{{}}")
            )
        case _ if (have.simpleString(), want.simpleString()) in _WIDER:
            return read.cast(want)
        case _:
            raise ValueError(f"{path} is {want.simpleString()} in the typed table")
