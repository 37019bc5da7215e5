"""Avro behind the ids of its schemas, as Spark columns.

Each record is read with the schema that it was written with, and then put into the column of the
typed table, which has the fields of all of them. Spark's own reader is lenient where a record is
longer than its schema, and cannot say a record that it failed on from one whose fields are all
null: so bytes of our own are put behind each record, which its schema ends with as well.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own docs use
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from tidemark.core.avro import as_spark_reads
from tidemark.core.decoding import Reason, RegisteredSchema

_MAGIC = b"\x00"
_FRAME_BYTES = 5
_END = secrets.token_bytes(16)
"""What is put behind each record: no record ends with it by itself."""
_END_TYPE = {"type": "fixed", "name": "tidemark_end", "size": len(_END)}
_OPTIONS = {
    "mode": "PERMISSIVE",
    # Days before 1582 are those of the calendar that Avro's specification means.
    "datetimeRebaseMode": "CORRECTED",
}
_MOST_BYTES = 2**31 - 1


def schema_id_of(payload: Column) -> Column:
    """The id that a payload begins with; null where it begins with none."""
    is_framed = (F.length(payload) >= _FRAME_BYTES) & (F.substring(payload, 1, 1) == F.lit(_MAGIC))
    number = F.conv(F.hex(F.substring(payload, 2, _FRAME_BYTES - 1)), 16, 10)
    return F.when(is_framed, number.cast("bigint"))


def with_read(
    rows: DataFrame,
    payload: Column,
    schema_id: Column,
    schemas: Sequence[RegisteredSchema],
    column: DataType | None,
    name: str,
    is_read: str,
) -> DataFrame:
    """Rows with a payload decoded, each by the schema whose id it begins with.

    Args:
        rows: Have the payload and its id.
        payload: The bytes.
        schema_id: As `schema_id_of` makes it.
        schemas: Those that can be read.
        column: The type of the typed table's column; None if there is none, and no schema.
        name: What the new column is called; it is null where nothing could be read.
        is_read: And the column that says whether it could be.

    Raises:
        ValueError: The typed table's column has not all the fields of a schema.
    """
    if column is None:
        return rows.withColumns({name: F.lit(None).cast("binary"), is_read: F.lit(False)})
    body = F.concat(F.substring(payload, _FRAME_BYTES + 1, _MOST_BYTES), F.lit(_END))
    places = {f"__{name}_{each.id}": each for each in schemas}
    # Each in a projection of its own, or Spark would read it again for whoever needs it.
    read = rows.withColumns(
        {
            place: F.when(schema_id == each.id, from_avro(body, _ended(each.text), _OPTIONS))
            for place, each in places.items()
        }
    )
    is_whole = {place: F.col(place)["end"] == F.lit(_END) for place in places}
    whole = (
        F.when(each, aligned(F.col(place)["value"], _type_of(read, place), column, name))
        for place, each in is_whole.items()
    )
    return read.withColumns(
        {
            name: F.coalesce(*whole, F.lit(None).cast(column)),
            is_read: F.coalesce(*is_whole.values(), F.lit(False)),
        }
    ).drop(*places)


def fault(
    payload: Column,
    schema_id: Column,
    schemas: Sequence[RegisteredSchema],
    refused: Collection[int],
    is_read: Column,
) -> Column:
    """Why a payload was not decoded, as `Reason`; null if it was, or is null."""
    is_known = schema_id.isin([each.id for each in schemas])
    return (
        F.when(payload.isNull() | is_read, None)
        .when(schema_id.isNull(), Reason.NOT_FRAMED.value)
        .when(schema_id.isin(list(refused)), Reason.REFUSED_SCHEMA.value)
        .when(~is_known, Reason.UNKNOWN_SCHEMA.value)
        .otherwise(Reason.MALFORMED.value)
    )


def _ended(text: str) -> str:
    """The schema of what is read: the record, and the bytes behind it."""
    fields = [
        {"name": "value", "type": json.loads(as_spark_reads(text))},
        {"name": "end", "type": _END_TYPE},
    ]
    return json.dumps({"type": "record", "name": "tidemark_record", "fields": fields})


def _type_of(rows: DataFrame, place: str) -> DataType:
    whole = rows.schema[place].dataType
    if not isinstance(whole, StructType):
        raise TypeError(f"a record, not {whole.simpleString()}")
    return whole["value"].dataType


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


_WIDER = {("int", "bigint"), ("float", "double")}
