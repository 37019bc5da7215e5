"""JSON values in the types of fields, read by Python."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal as Number
from decimal import DecimalException
from fractions import Fraction
from typing import Any

from tidemark.silver.typed.payload_values import MalformedPayload
from tidemark.spec.decode import REST
from tidemark.spec.fields import Decimal, FieldType, ListOf, Struct

_RANGES = {"integer": range(-(2**31), 2**31), "long": range(-(2**63), 2**63)}
_MAX_DIGITS = 38
"""Digits of a decimal that Spark reads. It cuts off the others."""
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_TIMESTAMP = re.compile(
    r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(\.\d{1,6})?(Z|[+-]\d{2}:\d{2})?", re.ASCII
)
_DECIMAL = re.compile(r"-?(\d+\.?\d*|\.\d+)(E-?\d+)?", re.ASCII)


class NotJudged(Exception):
    """A value that cannot be compared. The text is the reason, for reports.

    The exception takes the place of the value, or is raised if the whole payload has no expected
    value.
    """


@dataclass(frozen=True, slots=True)
class JsonText:
    """A JSON value that a column stores as text. Spark chooses the form of the text.

    Attributes:
        value: The value, with `decimal.Decimal` for numbers with a fraction or an exponent.
        is_rest: Whether the value is the object of the fields without a column.
        whole: The object around it, if `is_rest`.
    """

    value: Any
    is_rest: bool = False
    whole: Any = None


def json_object(payload: bytes, schema: Struct, *, keeps_rest: bool = False) -> Mapping[str, Any]:
    """Return the fields of a JSON object in their types.

    Args:
        payload: The object in UTF-8.
        schema: The fields.
        keeps_rest: Whether `REST` has the fields that the schema does not name.

    Raises:
        MalformedPayload: A decode would put the record into quarantine.
        NotJudged: Only Spark can read the object.
    """
    content = parsed_json(utf8_text(payload))
    if not isinstance(content, dict):
        raise MalformedPayload
    made = dict(_json_value(content, schema))
    if keeps_rest:
        rest = {name: each for name, each in content.items() if name not in made}
        made[REST] = JsonText(rest, is_rest=True, whole=content) if rest else None
    return made


def parsed_json(text: str) -> Any:
    """Return a JSON value, with `decimal.Decimal` for numbers with a fraction or an exponent."""
    try:
        return json.loads(text, parse_float=_number, parse_constant=_refuse)
    except RecursionError:
        raise NotJudged("JSON nested deeper than Python reads") from None
    except ValueError as wrong:
        raise MalformedPayload from wrong


def _number(text: str) -> Number:
    try:
        return Number(text)
    except DecimalException:
        raise NotJudged("a number with an exponent of more than 18 digits") from None


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _json_value(value: Any, kind: FieldType) -> Any:
    """Return a parsed value in the type of its field."""
    if value is None:
        return None
    match kind, value:
        case Struct(), dict():
            return {name: _json_value(value.get(name), each) for name, each in kind.fields}
        case ListOf(element=element), list():
            return [_json_value(each, element) for each in value]
        case "string", _:
            _check_text(value)
            return value if isinstance(value, str) else JsonText(value)
        case "boolean", bool():
            return value
        case ("boolean", _) | (_, bool() | dict() | list()):
            raise MalformedPayload
        case _:
            return (
                _json_number(value, kind)
                if isinstance(kind, Decimal)
                else _json_scalar(value, kind)
            )


def _json_scalar(value: int | Number | str, kind: FieldType) -> Any:
    match kind, value:
        case (("integer" | "long"), (int() | Number())):
            return _integer(value, _RANGES[str(kind)])
        case (("float" | "double"), (int() | Number())):
            return _float(value, is_single=kind == "float")
        case (("date" | "timestamp"), str()):
            return _moment(value, str(kind))
        case _:
            raise MalformedPayload


def _json_number(value: int | Number | str, kind: Decimal) -> Number | NotJudged:
    if isinstance(value, str) and not _DECIMAL.fullmatch(value):
        return NotJudged("a decimal in quotes in a form that only Java reads")
    return _decimal(_number(value) if isinstance(value, str) else Number(value), kind)


def _check_text(value: Any) -> None:
    """Check that Spark can write a JSON value as text.

    Raises:
        MalformedPayload: It has an unpaired surrogate, or a number that exceeds a double.
    """
    match value:
        case dict():
            for each in (*value, *value.values()):
                _check_text(each)
        case list():
            for each in value:
                _check_text(each)
        case Number() if math.isinf(nearest_double(value)):
            raise MalformedPayload
        case str() if has_surrogate(value):
            raise MalformedPayload


def _integer(value: int | Number, allowed: range) -> int:
    if isinstance(value, Number):
        # Zero may have any exponent. The digits of another number would not fit into memory.
        if not value:
            return 0
        if value.adjusted() > len(str(allowed.stop)) or value != value.to_integral_value():
            raise MalformedPayload
        value = int(value)
    if value not in allowed:
        raise MalformedPayload
    return value


def _float(value: int | Number, *, is_single: bool) -> float:
    try:
        made = float(value)
        if is_single:
            made = _single(made, value)
    except OverflowError as wrong:
        raise MalformedPayload from wrong
    if math.isinf(made):
        raise MalformedPayload
    return made


def _single(nearest: float, value: int | Number) -> float:
    """Return the nearest number of four bytes, rounded once.

    Args:
        nearest: The nearest number of eight bytes.
        value: The number.
    """
    is_between_two = struct.unpack("<Q", struct.pack("<d", nearest))[0] & (2**29 - 1) == 2**28
    if is_between_two and (rest := Fraction(value) - Fraction(nearest)):
        nearest = math.nextafter(nearest, math.inf if rest > 0 else -math.inf)
    return float(struct.unpack("<f", struct.pack("<f", nearest))[0])


def _decimal(value: Number, kind: Decimal) -> Number | NotJudged:
    """Return a number that fits its type."""
    _, digits, exponent = value.as_tuple()
    written = "".join(map(str, digits))
    lowest = int(exponent) + len(written) - len(written.rstrip("0"))
    is_too_large = value.adjusted() >= kind.precision - kind.scale
    if not is_too_large and lowest < kind.precision - kind.scale - _MAX_DIGITS:
        return NotJudged("a decimal with more digits than Spark reads")
    if value and (is_too_large or lowest < -kind.scale):
        raise MalformedPayload
    return value


def _moment(text: str, kind: str) -> date | datetime:
    try:
        if kind == "date":
            if not _DATE.fullmatch(text):
                raise MalformedPayload
            return date.fromisoformat(text)
        if not _TIMESTAMP.fullmatch(text):
            raise MalformedPayload
        made = datetime.fromisoformat(text)
        return made.replace(tzinfo=UTC) if made.tzinfo is None else made.astimezone(UTC)
    except (ValueError, OverflowError) as wrong:
        raise MalformedPayload from wrong


def nearest_double(number: int | Number) -> float:
    """Return the nearest number of eight bytes, or infinity."""
    try:
        return float(number)
    except OverflowError:
        return math.inf


def has_surrogate(text: str) -> bool:
    """Return whether a text has an unpaired surrogate."""
    return not text.isascii() and any("\ud800" <= each <= "\udfff" for each in text)


def utf8_text(payload: bytes) -> str:
    """Return a payload as text.

    Raises:
        MalformedPayload: It is not UTF-8.
    """
    try:
        return payload.decode("utf-8")
    except UnicodeDecodeError as wrong:
        raise MalformedPayload from wrong
