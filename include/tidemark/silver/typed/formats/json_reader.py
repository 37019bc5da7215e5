"""JSON objects as Arrow columns with the types of a schema.

Spark's Python workers run this module without Spark. The library msgspec parses most objects
directly into the types of the schema, and their fields become columns for a whole batch at once.
This first reading accepts only the plainest form of each value.

All other objects are read a second time, value by value. This reading also accepts other valid
forms, such as 1.0 as an integer, and any value as text. It names the fault of an invalid object.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal as Number
from decimal import DecimalException
from functools import lru_cache
from itertools import accumulate, chain
from operator import attrgetter
from types import GenericAlias
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Meta, Raw

from tidemark.core.payload_text import refuse_constant
from tidemark.silver.typed.formats.arrow_results import (
    result_type,
    results,
    without_garbage_collection,
)
from tidemark.silver.typed.formats.value_limits import (
    MAX_VALUES,
    TOO_MANY_VALUES,
    has_too_many_values,
)
from tidemark.spec.decode import REST, QuarantineReason
from tidemark.spec.fields import Decimal, FieldType, ListOf, Struct

_INTEGERS = {"integer": range(-(2**31), 2**31), "long": range(-(2**63), 2**63)}
_MOMENT = (
    r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(?:\.\d{1,6})?"
    r"(?:Z|[+-](?:(?:0\d|1[0-7]):[0-5]\d|18:00))?$"
)
"""ISO 8601, in UTC without an offset, with at most six digits of a second."""
_IS_DECIMAL = re.compile(r"-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
"""A decimal in quotes. Without quotes, it is a JSON number."""
_IS_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_IS_MOMENT = re.compile(_MOMENT, re.ASCII)
_FIRST, _LAST = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The years 1 to 9999, in microseconds since 1970: Python readers fail on other years."""
_MAX_DIGITS = 38
"""Digits of the widest decimal."""
_MAX_EXPONENT = 10_000
"""Larger exponents than any type can store. The digits would not fit into memory."""
_NULL = Raw(b"null")
_INVALID = (ValueError, OverflowError, DecimalException)
"""Errors of Python for invalid values."""

_Fill: TypeAlias = Callable[[Sequence[Any]], pa.Array]
"""Returns parsed values as an Arrow array; None is a missing value. Raises `_Suspects`."""


class _Suspects(Exception):
    """Some values may not fit their column.

    Args:
        positions: Their positions among the values.
    """

    def __init__(self, positions: Sequence[int]) -> None:
        super().__init__()
        self.positions = positions


class _Fault(Exception):
    """A value does not fit its type. The text is the detail of the quarantine."""


class _Column(NamedTuple):
    """A column for the values of a field.

    Attributes:
        arrow: Its Arrow type.
        parsed: The type into which msgspec parses its values.
        fill: Converts parsed values.
    """

    arrow: pa.DataType
    parsed: Any
    fill: _Fill


# -- columns -------------------------------------------------------------------------------------


def _column(kind: FieldType) -> _Column:
    match kind:
        case Struct():
            return _struct_column(kind)
        case ListOf():
            return _list_column(_column(kind.element))
        case Decimal():
            arrow = pa.decimal128(kind.precision, kind.scale)
            return _Column(arrow, Raw, lambda values: _decimals(values, arrow))
        case "timestamp":
            return _Column(_TIMESTAMP, str, _moments)
    arrow, parsed = _SCALARS[str(kind)]
    return _Column(arrow, parsed, lambda values: pa.array(values, arrow))


_TIMESTAMP = pa.timestamp("us", tz="UTC")
_SCALARS: Mapping[str, tuple[pa.DataType, Any]] = {
    "string": (pa.string(), str),
    "boolean": (pa.bool_(), bool),
    "integer": (pa.int32(), Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]),
    "long": (pa.int64(), Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]),
    "double": (pa.float64(), float),
    "date": (pa.date32(), date),
}


def _struct_column(kind: Struct) -> _Column:
    columns = [_column(each) for _, each in kind.fields]
    names = [name for name, _ in kind.fields]
    arrow = pa.struct([(name, each.arrow) for name, each in zip(names, columns, strict=True)])
    attributes = [f"f{number}" for number in range(len(names))]
    # Without plain names, the first reading refuses every payload.
    renamed = dict(zip(attributes, names, strict=True)) if all(map(_is_plain, names)) else {}
    fields = [
        (attribute, Raw, _NULL) if each.parsed is Raw else (attribute, each.parsed | None, None)
        for attribute, each in zip(attributes, columns, strict=True)
    ]
    parsed = msgspec.defstruct("Fields", fields, rename=renamed, gc=False)
    readers = [attrgetter(each) for each in attributes]

    def fill(values: Sequence[Any]) -> pa.Array:
        missing = [each is None for each in values]
        suspects, made = set[int](), list[pa.Array]()
        for read, column in zip(readers, columns, strict=True):
            own = [None if each is None else read(each) for each in values]
            try:
                made.append(column.fill(own))
            except _Suspects as found:
                suspects.update(found.positions)
        if suspects:
            raise _Suspects(sorted(suspects))
        return pa.StructArray.from_arrays(
            made, fields=list(arrow), mask=pa.array(missing, pa.bool_())
        )

    return _Column(arrow, parsed, fill)


def _is_plain(name: str) -> bool:
    """Return whether msgspec parses fields of a name; others need an escape in JSON."""
    return json.dumps(name, ensure_ascii=False)[1:-1] == name


def _names(kind: FieldType) -> Iterator[str]:
    """Yield the names of all fields of a type."""
    match kind:
        case Struct():
            for name, each in kind.fields:
                yield name
                yield from _names(each)
        case ListOf():
            yield from _names(kind.element)


def _list_column(element: _Column) -> _Column:
    arrow = pa.list_(pa.field("element", element.arrow))
    parsed = GenericAlias(list, Raw if element.parsed is Raw else element.parsed | None)

    def fill(values: Sequence[Any]) -> pa.Array:
        some = [each or () for each in values]
        ends = list(accumulate(map(len, some), initial=0))
        try:
            elements = element.fill(list(chain.from_iterable(some)))
        except _Suspects as found:
            lists = np.searchsorted(ends, found.positions, side="right") - 1
            raise _Suspects(lists.tolist()) from None
        missing = pa.array([each is None for each in values], pa.bool_())
        return pa.ListArray.from_arrays(
            pa.array(ends, pa.int32()), elements, type=arrow, mask=missing
        )

    return _Column(arrow, parsed, fill)


def _texts(values: Sequence[Raw | None]) -> pa.Array:
    """Return JSON values as text; null is missing."""
    texts = (None if each is None else bytes(each) for each in values)
    return pa.array([None if each == b"null" else each for each in texts], pa.string())


def _cast(texts: pa.Array, kind: pa.DataType, convert: Callable[[str], object]) -> pa.Array:
    """Return texts in another type.

    Args:
        texts: The texts.
        kind: The other type.
        convert: Raises `_INVALID` for each text that Arrow cannot cast.
    """
    try:
        return pc.cast(texts, kind)
    except pa.ArrowInvalid:
        suspects = []
        for number, text in enumerate(texts.to_pylist()):
            try:
                _ = text is None or convert(text)
            except _INVALID:
                suspects.append(number)
        # Arrow may refuse a text for another reason than `convert`.
        raise _Suspects(suspects or pc.indices_nonzero(texts.is_valid()).to_pylist()) from None


def _check(fits: pa.Array) -> None:
    """Raise `_Suspects` for values that are false."""
    suspects = pc.indices_nonzero(pc.invert(fits.fill_null(True)))
    if len(suspects):
        raise _Suspects(suspects.to_pylist())


def _decimals(values: Sequence[Raw | None], kind: pa.DataType) -> pa.Array:
    texts = pc.utf8_trim(_texts(values), '"')
    # Arrow returns wrong numbers, or crashes, for other texts: its intermediate results overflow,
    # and its scales differ by more than 38.
    whole = max(kind.precision - kind.scale, 1)
    fraction = f"[.][0-9]{{0,{_MAX_DIGITS - whole}}}"
    _check(pc.match_substring_regex(texts, f"^-?[0-9]{{1,{whole}}}(?:{fraction})?$"))
    fitting = Decimal(kind.precision, kind.scale)
    return _cast(texts, kind, lambda text: _decimal(text, fitting))


def _moments(values: Sequence[str | None]) -> pa.Array:
    texts = pa.array(values, pa.string())
    _check(pc.match_substring_regex(texts, _MOMENT))
    _check(pc.invert(pc.starts_with(texts, "0000")))
    in_zone = pc.match_substring_regex(texts, r"(?:Z|[+-]\d{2}:\d{2})$")
    texts = pc.if_else(in_zone, texts, pc.binary_join_element_wise(texts, "Z", ""))
    made = _cast(texts, _TIMESTAMP, _moment)
    micros = made.cast(pa.int64())
    _check(pc.and_(pc.greater_equal(micros, _FIRST), pc.less_equal(micros, _LAST)))
    return made


# -- value by value ------------------------------------------------------------------------------

_KINDS = {"{": "object", "[": "list", '"': "text", "t": "boolean", "f": "boolean", "n": "null"}
"""Types of JSON values by their first character; others are numbers."""

_object: Callable[[bytes | Raw], dict[str, Raw]] = msgspec.json.Decoder(dict[str, Raw]).decode
_list: Callable[[Raw], list[Raw]] = msgspec.json.Decoder(list[Raw]).decode
_string: Callable[[Raw], str] = msgspec.json.Decoder(str).decode


def _value(written: Raw, kind: FieldType, path: str) -> Any:
    """Return a JSON value in a type, as Arrow accepts it.

    Raises:
        _Fault: It does not fit.
    """
    text = bytes(written).decode()
    seen = _KINDS.get(text[0], "number")
    if seen == "null":
        return None
    with suppress(*_INVALID):
        match kind, seen:
            case Struct(), "object":
                return _fields(_object(written), kind, f"{path}.")
            case ListOf(element=element), "list":
                return [_value(each, element, f"{path}[]") for each in _list(written)]
            case "string", "text":
                return _string(written)
            case "string", _:
                return msgspec.json.format(text, indent=-1)
            case "boolean", "boolean":
                return text == "true"
            case ((Decimal() | "integer" | "long" | "double"), "number"):
                return _numeric(text, kind)
            case ((Decimal() | "date" | "timestamp"), "text"):
                return _quoted(_string(written), kind)
    another = "another " if seen == _json_type(kind) else ""
    raise _Fault(f"{path}: expected {_expected(kind)}, found {another}{seen}")


def _fields(written: Mapping[str, Raw], kind: Struct, prefix: str) -> dict[str, Any]:
    return {
        name: _value(written.get(name, _NULL), each, f"{prefix}{name}")
        for name, each in kind.fields
    }


def _expected(kind: FieldType) -> str:
    match kind:
        case Struct():
            return "object"
        case ListOf(element=element):
            return f"list of {_expected(element)}"
        case _:
            return "text" if kind == "string" else str(kind)


def _json_type(kind: FieldType) -> str:
    """Return the JSON type in which values of a type are written."""
    match kind:
        case Struct():
            return "object"
        case ListOf():
            return "list"
        case Decimal() | "integer" | "long" | "double":
            return "number"
        case "boolean":
            return "boolean"
        case _:
            return "text"


def _number(text: str) -> Number:
    """Return a number with a bounded exponent, because its digits have to fit into memory."""
    number = Number(text)
    if number and abs(number.adjusted()) > _MAX_EXPONENT:
        raise ValueError("the exponent is too large")
    return number if number else Number(0)


def _numeric(text: str, kind: FieldType) -> int | float | Number:
    if isinstance(kind, Decimal):
        return _decimal(text, kind)
    if kind == "double":
        if math.isinf(number := float(text)):
            raise ValueError("the number is too large")
        # The first reading parses this number as an integer.
        return 0.0 if text == "-0" else number
    exact, allowed = _number(text), _INTEGERS[str(kind)]
    if exact.adjusted() > len(str(allowed.stop)) or exact != (whole := int(exact)):
        raise ValueError("the number is no integer")
    if whole not in allowed:
        raise ValueError("the integer is too large")
    return whole


def _decimal(text: str, kind: Decimal) -> Number:
    number = _number(text)
    sign, digits, exponent = number.as_tuple()
    whole = "".join(map(str, digits)).rstrip("0")
    lowest = int(exponent) + len(digits) - len(whole)
    if number and (number.adjusted() >= kind.precision - kind.scale or lowest < -kind.scale):
        raise ValueError("the number has too many digits")
    return Number((sign, tuple(map(int, whole)), lowest)) if number else number


def _quoted(text: str, kind: FieldType) -> Number | date | datetime:
    if isinstance(kind, Decimal):
        if not _IS_DECIMAL.fullmatch(text):
            raise ValueError("the text is no number")
        return _decimal(text, kind)
    if kind == "date":
        if not _IS_DATE.fullmatch(text):
            raise ValueError("the text is no date")
        return date.fromisoformat(text)
    if not _IS_MOMENT.fullmatch(text):
        raise ValueError("the text is no timestamp")
    return _moment(text)


def _moment(text: str) -> datetime:
    made = datetime.fromisoformat(text)
    return made.replace(tzinfo=UTC) if made.tzinfo is None else made.astimezone(UTC)


# -- batches -------------------------------------------------------------------------------------


def read_type(schema: Struct, *, keeps_rest: bool = False) -> pa.StructType:
    """Return the type of `read`'s result."""
    return result_type(_reader(schema, keeps_rest).arrow)


def read(payloads: pa.Array, schema: Struct, *, keeps_rest: bool = False) -> pa.StructArray:
    """Decode payloads as JSON objects.

    Args:
        payloads: Binary column: one object in UTF-8 each, or null.
        schema: The fields.
        keeps_rest: Whether `REST` has the fields that the schema does not name, as JSON.

    Returns:
        The result of `arrow_results.results`. The detail is the wrong field with the expected and
        the found type, why the text is no JSON object, or `TOO_MANY_VALUES`.
    """
    with without_garbage_collection():
        return _reader(schema, keeps_rest).read(payloads)


class _Reader:
    """Reads the objects of one schema."""

    def __init__(self, schema: Struct, keeps_rest: bool) -> None:
        self._schema = schema
        self._keeps_rest = keeps_rest
        self._named = {name for name, _ in schema.fields}
        column = _struct_column(schema)
        self._fill = column.fill
        self._parse: Callable[[bytes], Any] = msgspec.json.Decoder(column.parsed).decode
        if not all(map(_is_plain, _names(schema))):
            self._parse = _refuse
        self.arrow = pa.struct([*column.arrow, (REST, pa.string())] if keeps_rest else column.arrow)

    def read(self, payloads: pa.Array) -> pa.StructArray:
        """See `read`."""
        written = payloads.to_pylist()
        faults = {**_too_many_values(payloads, written), **_not_utf8(payloads, written)}
        parsed, again = list[Any](), list[int]()
        for number, each in enumerate(written):
            try:
                parsed.append(None if each is None or number in faults else self._parse(each))
            except (msgspec.DecodeError, RecursionError):
                parsed.append(None)
                again.append(number)
        rest = self._rests(parsed, written, again) if self._keeps_rest else ()
        made = None
        while made is None:
            try:
                made = self._fill(parsed)
            except _Suspects as found:
                again += [number for number in found.positions if parsed[number] is not None]
                for number in found.positions:
                    parsed[number] = None
        if self._keeps_rest:
            fields = [*made.flatten(), pa.array(rest, pa.string())]
            missing = made.is_null()
            made = pa.StructArray.from_arrays(fields, fields=list(self.arrow), mask=missing)
        if again:
            made = self._read_again(made, written, again, faults)
        return results(made, faults)

    def _rests(
        self, parsed: list[Any], written: Sequence[bytes], again: list[int]
    ) -> Sequence[str | None]:
        """Return `REST` of each parsed payload; add those that are nested too deep to `again`."""
        rests: list[str | None] = [None] * len(parsed)
        for number, each in enumerate(parsed):
            try:
                if each is not None:
                    rests[number] = self._rest(_object(written[number]))
            except RecursionError:
                parsed[number] = None
                again.append(number)
        return rests

    def _rest(self, written: Mapping[str, Raw]) -> str | None:
        rest = {name: each for name, each in written.items() if name not in self._named}
        return msgspec.json.format(msgspec.json.encode(rest), indent=-1).decode() if rest else None

    def _read_again(
        self,
        made: pa.StructArray,
        written: Sequence[bytes],
        again: Sequence[int],
        faults: dict[int, tuple[QuarantineReason, str | None]],
    ) -> pa.StructArray:
        """Return the values with those of some payloads, which are read value by value."""
        values: list[dict[str, Any] | None] = []
        for number in again:
            try:
                found = _object(written[number])
                value = _fields(found, self._schema, "")
                if self._keeps_rest:
                    value[REST] = self._rest(found)
                values.append(value)
            except _Fault as fault:
                faults[number] = (QuarantineReason.MALFORMED, str(fault))
                values.append(None)
            except (msgspec.DecodeError, RecursionError) as wrong:
                faults[number] = (QuarantineReason.NOT_JSON, _explained(wrong, written[number]))
                values.append(None)
        order = np.arange(len(made))
        order[list(again)] = np.arange(len(made), len(made) + len(again))
        both = pa.concat_arrays([made, pa.array(values, self.arrow)])
        return both.take(pa.array(order))


def _refuse(_: bytes) -> None:
    """Parse nothing, so that each payload is read value by value."""
    raise msgspec.DecodeError


def _too_many_values(
    payloads: pa.Array, written: Sequence[bytes | None]
) -> dict[int, tuple[QuarantineReason, str | None]]:
    """Return the positions of payloads beyond the limit of values."""
    if payloads.nbytes <= MAX_VALUES:
        return {}
    return {
        number: (QuarantineReason.MALFORMED, TOO_MANY_VALUES)
        for number, each in enumerate(written)
        if each is not None and has_too_many_values(each)
    }


def _not_utf8(
    payloads: pa.Array, written: Sequence[bytes | None]
) -> dict[int, tuple[QuarantineReason, str | None]]:
    """Return the positions of payloads that are not UTF-8, also in fields without a column."""
    try:
        payloads.cast(pa.string())
    except pa.ArrowInvalid:
        return {
            number: (QuarantineReason.NOT_UTF8, None)
            for number, each in enumerate(written)
            if each is not None and not _is_utf8(each)
        }
    return {}


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _explained(wrong: Exception, written: bytes) -> str:
    """Return why a text is no JSON object, without the position, which differs in each text."""
    if isinstance(wrong, RecursionError):
        return "the text is nested too deep"
    # A text of another type, such as a list, is valid JSON.
    if not isinstance(wrong, msgspec.ValidationError):
        with suppress(ValueError, RecursionError):
            # Python's parser accepts unpaired surrogates.
            json.loads(written.decode(), parse_constant=refuse_constant, parse_int=float)
            return "a text has an unpaired surrogate"
    return re.sub(r" \(byte \d+\)$|^JSON is malformed: ", "", str(wrong))


@lru_cache(maxsize=64)
def _reader(schema: Struct, keeps_rest: bool) -> _Reader:
    return _Reader(schema, keeps_rest)
