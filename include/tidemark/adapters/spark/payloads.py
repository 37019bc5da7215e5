"""Keys and values as Spark columns: decoded, or with the reason why they cannot be.

Strict where Spark is lenient: its JSON parser ignores what follows the first object, takes a
number for a timestamp and "12,50" for 1250, and rounds decimals without a word. All that it reads
as text goes through a double if it was a number: a decimal does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own docs use

from tidemark.core.decoding import Decimal, FieldType, Format, ListOf, PayloadSpec, Reason, Struct

_CORRUPT = "__tidemark_corrupt"
"""Field in which Spark's JSON parser leaves a text that has another form than the schema."""

_OPTIONS = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": _CORRUPT,
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
    # In which a comma is no part of a number in quotes.
    "locale": "de-CH",
}
_FORMS = {
    "date": r"^\d{4}-\d{2}-\d{2}$",
    "timestamp": (r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(\.\d{1,6})?(Z|[+-]\d{2}:\d{2})?$"),
}
"""ISO 8601, in UTC where no distance from it is said; a digit that would be cut off is too much."""
_MOST_DIGITS = 38


@dataclass(frozen=True, slots=True)
class Decoded:
    """One half of a record as columns.

    Attributes:
        value: The decoded payload; null for a null.
        reason: Why it cannot be decoded, as `Reason`; null where it can.
        detail: The first field that has a wrong value; null where nobody knows.
    """

    value: Column
    reason: Column
    detail: Column


def parsed(payload: Column, spec: PayloadSpec) -> Column:
    """What is to be computed once for each record, before `decoded` looks at it."""
    if spec.schema is None:
        return F.lit(None)
    text = payload.cast("string")
    schema = f"{_ddl_fields(spec.schema)}, `{_CORRUPT}` STRING"
    return F.struct(
        F.from_json(text, schema, _OPTIONS).alias("fields"),
        # The parser ignores what follows the first object.
        F.json_array_length(F.concat(F.lit("["), text, F.lit("]"))).alias("objects"),
    )


def decoded(payload: Column, spec: PayloadSpec, made: Column) -> Decoded:
    """One half of a record.

    Args:
        payload: Its bytes.
        spec: How to decode them.
        made: The column that `parsed` has made of them.
    """
    nothing = F.lit(None).cast("string")
    if spec.format is Format.BINARY:
        return Decoded(payload, nothing, nothing)
    not_utf8 = F.when(~F.is_valid_utf8(payload.cast("string")), Reason.NOT_UTF8.value)
    if spec.schema is None:
        return Decoded(payload.cast("string"), not_utf8, nothing)
    fields, schema = made["fields"], spec.schema
    has_form = (
        fields.isNotNull()
        & fields[_CORRUPT].isNull()
        & F.coalesce(made["objects"] == 1, F.lit(False))
    )
    wrong = [F.when(is_wrong, path) for path, is_wrong in _faults(fields, schema, "")]
    detail = F.when(payload.isNotNull() & has_form, F.coalesce(*wrong, nothing))
    is_malformed = payload.isNotNull() & (~has_form | detail.isNotNull())
    return Decoded(
        F.when(payload.isNotNull(), _value(fields, schema)),
        F.coalesce(not_utf8, F.when(is_malformed, Reason.MALFORMED.value)),
        detail,
    )


def _ddl_fields(schema: Struct, separator: str = " ") -> str:
    return ", ".join(f"`{name}`{separator}{_ddl(kind)}" for name, kind in schema.fields)


def _ddl(kind: FieldType) -> str:
    """A type as the parser is to read it: what it would read too leniently, as text."""
    match kind:
        case Struct():
            return f"STRUCT<{_ddl_fields(kind, ': ')}>"
        case ListOf():
            return f"ARRAY<{_ddl(kind.element)}>"
        case Decimal(precision=precision, scale=scale):
            # With as many digits behind the point as there can be: none is cut off unseen.
            return f"DECIMAL({_MOST_DIGITS},{scale + _MOST_DIGITS - precision})"
        case _:
            return "STRING" if kind in _FORMS else str(kind)


def _needs_cast(kind: FieldType) -> bool:
    match kind:
        case Struct():
            return any(_needs_cast(each) for _, each in kind.fields)
        case ListOf():
            return _needs_cast(kind.element)
        case _:
            return isinstance(kind, Decimal) or kind in _FORMS


def _value(raw: Column, kind: FieldType) -> Column:
    """What the parser has read, in its own type; null where that cannot be."""
    match kind:
        case Struct():
            fields = [_value(raw[name], each).alias(name) for name, each in kind.fields]
            return F.when(raw.isNotNull(), F.struct(*fields))
        case ListOf() if _needs_cast(kind):
            return F.transform(raw, lambda each: _value(each, kind.element))
        case _:
            return raw.try_cast(str(kind)) if _needs_cast(kind) else raw


def _faults(raw: Column, kind: FieldType, path: str) -> Iterator[tuple[str, Column]]:
    """Where a value may not be of its type, and whether it is not."""
    match kind:
        case Struct():
            for name, each in kind.fields:
                yield from _faults(raw[name], each, f"{path}.{name}" if path else name)
        case ListOf() if _needs_cast(kind):
            yield f"{path}[]", F.exists(raw, lambda each: _is_wrong(each, kind.element))
        case _ if _needs_cast(kind):
            yield path, _is_wrong(raw, kind)


def _is_wrong(raw: Column, kind: FieldType) -> Column:
    """Whether what the parser has read is not of its type; never null."""
    match kind:
        case Struct() | ListOf():
            wrong = [is_wrong for _, is_wrong in _faults(raw, kind, "")]
            either = F.lit(False)
            for each in wrong:
                either = either | each
            return F.coalesce(either, F.lit(False))
        case Decimal():
            return raw.isNotNull() & ~F.coalesce(raw.try_cast(str(kind)) == raw, F.lit(False))
        case _:
            has_form = raw.rlike(_FORMS[str(kind)]) & raw.try_cast(str(kind)).isNotNull()
            return raw.isNotNull() & ~has_form
