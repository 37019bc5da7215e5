"""Avro records as Spark columns, each read with its own schema.

Spark's own reader accepts a record that is longer than its schema. It returns the same result for a
failed record as for a record with only null fields. So this module appends its own bytes to each
record and to its schema. Spark truncates numbers to 32 bits and accepts any bytes as text. So this
module reads numbers as 64 bits, and checks numbers and text.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Hashable, Iterator
from typing import cast

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own docs use
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from tidemark.silver.typed.formats.avro import Symbols, as_spark_reads, column_of, is_raw
from tidemark.silver.typed.spark_frames import ResultColumns, Steps
from tidemark.spec.decode import QuarantineReason
from tidemark.spec.fields import UNION_MEMBER, FieldType, ListOf, MapOf, Struct, widened_type

_END = secrets.token_bytes(16)
"""Random bytes that this module appends to each record; no record contains them."""
_NAME = f"tidemark_{secrets.token_hex(8)}"
"""Random prefix of the internal types: no schema has a type of that name."""
_END_TYPE = {"type": "fixed", "name": f"{_NAME}_end", "size": len(_END)}
_OPTIONS = {
    "mode": "PERMISSIVE",
    # Days before 1582 follow the calendar of Avro's specification.
    "datetimeRebaseMode": "CORRECTED",
    # Members of unions get the names of their types, independent of their order.
    "enableStableIdentifiersForUnionType": "true",
    "stableIdentifierPrefixForUnionType": UNION_MEMBER,
}
_BOUNDS = {
    "integer": (-(2**31), 2**31 - 1),
    # The years 1 to 9999, in days and in microseconds since 1970: Python readers fail on others.
    "date": (-719_162, 2_932_896),
    "timestamp": (-62_135_596_800_000_000, 253_402_300_799_999_999),
}
_FIELD_REASONS = (QuarantineReason.NOT_UTF8, QuarantineReason.MALFORMED)
"""The reasons that `_faults` finds. A record with several gets the first one."""
_TRUNCATED = "truncated, or written with another schema"
"""Detail of a record that ends before its schema does, or that the reader cannot parse."""
_LONGER = "bytes after the end of the record"
_LENGTH_BYTES = 5
_FALSE, _TRUE = b"\x00", b"\x01"


def reading(payload: Column, schema: str, place: ResultColumns, *, widens: bool) -> Steps:
    """Projections that decode a payload as one Avro record.

    Args:
        payload: One record each, or null.
        schema: The schema of the records, in JSON.
        place: Names of the new columns.
        widens: Whether numbers of four bytes become numbers of eight bytes.
    """
    read = f"__read_{place.value}"
    found_in = {reason: f"__{reason.value}_{place.value}" for reason in _FIELD_REASONS}
    written = F.concat(_length_of(payload), payload) if is_raw(schema) else payload
    ended = F.concat(written, F.lit(_END))
    kind = column_of(schema)
    if widens:
        kind = widened_type(kind)
    made = yield {read: from_avro(ended, _ended(schema), _OPTIONS)}
    have = cast("StructType", made[read].dataType)["value"].dataType
    value = F.col(read)["value"]
    fields: dict[QuarantineReason, list[Column]] = {reason: [] for reason in _FIELD_REASONS}
    for at, why, wrong in _faults(value, have, kind, ""):
        fields[why].append(F.when(wrong, at))
    nothing = F.lit(None).cast("string")
    yield {name: F.coalesce(*fields[reason], nothing) for reason, name in found_in.items()}
    is_whole = F.coalesce(F.col(read)["end"] == F.lit(_END), F.lit(False))
    reason = F.when(payload.isNotNull() & ~is_whole, QuarantineReason.MALFORMED.value)
    # A short record consumes bytes of the end, and the reader then fails. After a long one, the end
    # consists of other bytes.
    is_longer = F.col(read)["end"].isNotNull() & ~is_whole
    no_record = F.when(payload.isNull() | is_whole, nothing)
    no_record = no_record.when(is_longer, _LONGER).otherwise(_TRUNCATED)
    for each, name in found_in.items():
        reason = reason.when(F.col(name).isNotNull(), each.value)
    yield {
        place.value: _value(value, have, kind),
        place.reason: reason,
        # The record itself has an empty path.
        place.detail: F.coalesce(no_record, F.nullif(F.coalesce(*found_in.values()), F.lit(""))),
    }


def form(schema: str, *, widens: bool) -> Hashable:
    """Return a value that is equal for schemas whose payloads `reading` decodes in the same way.

    Args:
        schema: A schema, in JSON.
        widens: As in `reading`.
    """
    kind = column_of(schema)
    if widens:
        kind = widened_type(kind)
    read = json.dumps(json.loads(as_spark_reads(schema)), sort_keys=True)
    return is_raw(schema), read, _with_symbols(kind)


def _with_symbols(kind: FieldType) -> Hashable:
    """Return a value for a type that also distinguishes the symbols of enums."""
    match kind:
        case Struct():
            return tuple((name, _with_symbols(each)) for name, each in kind.fields)
        case ListOf():
            return "list", _with_symbols(kind.element)
        case MapOf():
            return "map", _with_symbols(kind.value)
        case Symbols():
            return "enum", kind.symbols
        case _:
            return kind


def _ended(text: str) -> str:
    """Return the schema for Spark's reader: the record, and the bytes after it."""
    fields = [
        {"name": "value", "type": json.loads(as_spark_reads(text))},
        {"name": "end", "type": _END_TYPE},
    ]
    return json.dumps({"type": "record", "name": f"{_NAME}_record", "fields": fields})


def _length_of(payload: Column) -> Column:
    """Return the length of a payload in Avro's form: seven bits a byte, lowest bits first."""
    doubled = F.length(payload).cast("bigint") * 2
    parts = []
    for place in range(_LENGTH_BYTES):
        bits = F.shiftright(doubled, 7 * place).bitwiseAND(127)
        goes_on = 0 if place == _LENGTH_BYTES - 1 else 128
        parts.append(F.lpad(F.hex(bits.bitwiseOR(goes_on)), 2, "0"))
    return F.unhex(F.concat(*parts))


_TEXT = QuarantineReason.NOT_UTF8


def _number(read: Column, have: DataType) -> Column:
    """Return a number, extracted from the record around it."""
    if isinstance(have, StructType):
        return F.coalesce(*(_number(read[each.name], each.dataType) for each in have.fields))
    return read


def _needs_conversion(have: DataType, kind: FieldType) -> bool:
    """Return whether Spark's value needs a conversion for the column."""
    match have, kind:
        case StructType(), Struct():
            return any(_needs_conversion(have[name].dataType, each) for name, each in kind.fields)
        case ArrayType(), ListOf():
            return _needs_conversion(have.elementType, kind.element)
        case MapType(), MapOf():
            return _needs_conversion(have.valueType, kind.value)
        case _:
            return isinstance(have, StructType) or kind in ("integer", "date", "boolean")


def _value(read: Column, have: DataType, kind: FieldType) -> Column:
    """Return Spark's value in the type of the column; null if it does not fit."""
    if not _needs_conversion(have, kind):
        return read
    match have, kind:
        case StructType(), Struct():
            fields = [
                _value(read[name], have[name].dataType, each).alias(name)
                for name, each in kind.fields
            ]
            return F.when(read.isNotNull(), F.struct(*fields))
        case ArrayType(), ListOf():
            element = have.elementType
            return F.transform(read, lambda each: _value(each, element, kind.element))
        case MapType(), MapOf():
            inner = have.valueType
            return F.transform_values(read, lambda _, each: _value(each, inner, kind.value))
        case _:
            return _scalar(_number(read, have), kind)


def _scalar(number: Column, kind: FieldType) -> Column:
    if isinstance(kind, Symbols):
        symbols = F.array(*(F.lit(each) for each in kind.symbols))
        return F.get(symbols, number.try_cast("int"))
    if kind == "boolean":
        return number == F.lit(_TRUE)
    if kind == "date":
        return F.date_from_unix_date(number.try_cast("int"))
    return number.try_cast("int") if kind == "integer" else number


def _faults(
    read: Column, have: DataType, kind: FieldType, path: str
) -> Iterator[tuple[str, QuarantineReason, Column]]:
    """Yield the path, the reason and the condition of each possible fault of a value."""
    match have, kind:
        case StructType(), Struct():
            for name, each in kind.fields:
                place = f"{path}.{name}" if path else name
                yield from _faults(read[name], have[name].dataType, each, place)
        case ArrayType(), ListOf():
            yield from _faults_in(read, have.elementType, kind.element, f"{path}[]")
        case MapType(), MapOf():
            keys, values = F.map_keys(read), F.map_values(read)
            yield f"{path}{{}}", _TEXT, F.exists(keys, lambda key: ~F.is_valid_utf8(key))
            yield from _faults_in(values, have.valueType, kind.value, f"{path}{{}}")
        case _, Symbols():
            index = _number(read, have)
            yield path, QuarantineReason.MALFORMED, ~index.between(0, len(kind.symbols) - 1)
        case _, "boolean":
            yield path, QuarantineReason.MALFORMED, ~read.isin(_FALSE, _TRUE)
        case _, "string":
            yield path, _TEXT, ~F.is_valid_utf8(read)
        case _, str() if kind in _BOUNDS:
            number = F.unix_micros(read) if kind == "timestamp" else _number(read, have)
            yield path, QuarantineReason.MALFORMED, ~number.between(*map(F.lit, _BOUNDS[kind]))


def _faults_in(
    elements: Column, have: DataType, kind: FieldType, path: str
) -> Iterator[tuple[str, QuarantineReason, Column]]:
    """Yield the faults of a list's elements, one for each reason."""

    def any_is_wrong(because: QuarantineReason) -> Column:
        def is_wrong(each: Column) -> Column:
            wrong = [found for _, why, found in _faults(each, have, kind, "") if why is because]
            return F.coalesce(*(F.when(found, F.lit(True)) for found in wrong), F.lit(False))

        return F.exists(elements, is_wrong)

    for because in sorted({why for _, why, _ in _faults(elements, have, kind, "")}):
        yield path, because, any_is_wrong(because)
