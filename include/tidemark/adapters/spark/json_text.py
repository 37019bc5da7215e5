"""JSON objects as Spark columns, with the types of a schema.

Strict where Spark is lenient: its JSON parser ignores what follows the first object, takes a
number for a timestamp and "12,50" for 1250, and rounds decimals without a word. All that it reads
as text goes through a double if it was a number: a decimal does not.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own docs use

from tidemark.adapters.spark.frames import Read, Steps
from tidemark.core.decoding import Reason
from tidemark.core.fields import Decimal, FieldType, ListOf, Struct

SETTINGS = {"spark.sql.json.enablePartialResults": "false"}
"""Session settings to decode with: a text with a fault anywhere has no fields at all."""

_END = f"__end_{secrets.token_hex(8)}"
"""Field of an object that is put behind each text: the parser ignores what follows the first.
Nobody knows its name, or a text could say that it ends and go on."""

_OPTIONS = {
    "mode": "PERMISSIVE",
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
    # In which a comma is no part of a number in quotes.
    "locale": "de-CH",
}
_FORMS = {
    "date": r"^\d{4}-\d{2}-\d{2}\z",
    "timestamp": r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(?:\.\d{1,6})?(?:Z|[+-]\d{2}:\d{2})?\z",
}
"""ISO 8601, in UTC where no distance from it is said; a digit that would be cut off is too much.
Java's `$` would let a line end follow, and groups that are kept cost time."""
_MOST_DIGITS = 38
_OVERFLOWING = ("float", "double")
"""What the parser makes infinite if it is too large, which JSON has no number for."""


def reading(text: Column, schema: Struct, place: Read) -> Steps:
    """Projections that decode a text as one JSON object.

    Args:
        text: One object each, or null.
        schema: Its fields.
        place: What the new columns are called.
    """
    nothing = F.lit(None).cast("string")
    not_utf8 = F.when(~F.is_valid_utf8(text), Reason.NOT_UTF8.value)
    parsed, fields = f"__parsed_{place.value}", f"__fields_{place.value}"
    is_whole = (F.size(parsed) == 2) & F.get(parsed, F.lit(1))[_END]
    wrong = (
        F.when(is_wrong, path)
        for path, is_wrong in _faults(F.col(fields), F.col(place.value), schema, "")
    )
    is_malformed = text.isNotNull() & (F.col(fields).isNull() | F.col(place.detail).isNotNull())
    yield {parsed: _parsed(text, schema)}
    yield {fields: F.when(is_whole, F.get(parsed, F.lit(0)))}
    yield {place.value: _value(F.col(fields), schema)}
    yield {place.detail: F.coalesce(*wrong, nothing)}
    yield {place.reason: F.coalesce(not_utf8, F.when(is_malformed, Reason.MALFORMED.value))}


def _parsed(text: Column, schema: Struct) -> Column:
    both = F.concat(F.lit("["), text, F.lit(f',{{"{_END}":true}}]'))
    fields = f"ARRAY<STRUCT<{_ddl_fields(schema)}, `{_END}`: BOOLEAN>>"
    return F.from_json(both, fields, _OPTIONS)


def _ddl_fields(schema: Struct) -> str:
    return ", ".join(f"`{name}`: {_ddl(kind)}" for name, kind in schema.fields)


def _ddl(kind: FieldType) -> str:
    """A type as the parser is to read it: what it would read too leniently, as text."""
    match kind:
        case Struct():
            return f"STRUCT<{_ddl_fields(kind)}>"
        case ListOf():
            return f"ARRAY<{_ddl(kind.element)}>"
        case Decimal(precision=precision, scale=scale):
            # With as many digits behind the point as there can be: none is cut off unseen.
            return f"DECIMAL({_MOST_DIGITS},{scale + _MOST_DIGITS - precision})"
        case _:
            return "STRING" if kind in _FORMS else str(kind)


def _leaves(kind: FieldType) -> Iterator[FieldType]:
    match kind:
        case Struct():
            for _, each in kind.fields:
                yield from _leaves(each)
        case ListOf():
            yield from _leaves(kind.element)
        case _:
            yield kind


def _needs_cast(kind: FieldType) -> bool:
    return any(isinstance(each, Decimal) or each in _FORMS for each in _leaves(kind))


def _can_be_wrong(kind: FieldType) -> bool:
    return _needs_cast(kind) or any(each in _OVERFLOWING for each in _leaves(kind))


def _value(read: Column, kind: FieldType) -> Column:
    """What the parser has read, in its own type; null where that cannot be."""
    match kind:
        case Struct():
            fields = [_value(read[name], each).alias(name) for name, each in kind.fields]
            return F.when(read.isNotNull(), F.struct(*fields))
        case ListOf() if _needs_cast(kind):
            return F.transform(read, lambda each: _value(each, kind.element))
        case _:
            return read.try_cast(str(kind)) if _needs_cast(kind) else read


def _faults(read: Column, made: Column, kind: FieldType, path: str) -> Iterator[tuple[str, Column]]:
    """Where a value may not be of its type, and whether it is not."""
    match kind:
        case Struct():
            for name, each in kind.fields:
                place = f"{path}.{name}" if path else name
                yield from _faults(read[name], made[name], each, place)
        case ListOf(element=element) if _can_be_wrong(kind):
            yield f"{path}[]", F.exists(read, lambda each: _is_wrong(each, element))
        case _ if _can_be_wrong(kind):
            yield path, _differs(read, made, kind)


def _is_wrong(read: Column, kind: FieldType) -> Column:
    """Whether an element of a list is not of its type; never null."""
    either = F.lit(False)
    for _, wrong in _faults(read, _value(read, kind), kind, ""):
        either = either | wrong
    return F.coalesce(either, F.lit(False))


def _differs(read: Column, made: Column, kind: FieldType) -> Column:
    """Whether what the parser has read is not what was made of it; never null."""
    if kind in _OVERFLOWING:
        return F.coalesce(F.abs(read) == F.lit(float("inf")), F.lit(False))
    if isinstance(kind, Decimal):
        return read.isNotNull() & ~F.coalesce(made == read, F.lit(False))
    return read.isNotNull() & (made.isNull() | ~read.rlike(_FORMS[str(kind)]))
