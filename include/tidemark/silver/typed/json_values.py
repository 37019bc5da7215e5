"""JSON values in the types of fields, read by Python."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal as Number
from decimal import DecimalException
from typing import Any

from tidemark.core.payload_text import refuse_constant
from tidemark.silver.typed.formats.value_limits import has_too_many_values
from tidemark.silver.typed.json_types import TEXT_FORMS
from tidemark.silver.typed.payload_values import MalformedPayload
from tidemark.spec.decode import REST
from tidemark.spec.fields import Decimal, FieldType, ListOf, Struct

_RANGES = {"integer": range(-(2**31), 2**31), "long": range(-(2**63), 2**63)}
_UNPAIRED = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
"""The escape of an unpaired surrogate, in a text without an escaped backslash."""
_MAX_INTEGER = 1_000
"""Maximum length of an integer that Python parses as such."""
_DECIMAL = re.compile(r"-?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


class NotJudged(Exception):
    """A value that cannot be compared. The text is the reason, for reports.

    The exception takes the place of the value, or is raised if the whole payload has no expected
    value.
    """


@dataclass(frozen=True, slots=True)
class JsonText:
    """A JSON value that a column stores as text.

    Attributes:
        value: The value, with `decimal.Decimal` for numbers with a fraction or an exponent.
    """

    value: Any


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
    text = utf8_text(payload)
    if has_too_many_values(payload):
        raise MalformedPayload
    content = parsed_json(text)
    if not isinstance(content, dict):
        raise MalformedPayload
    made = dict(_json_value(content, schema))
    if keeps_rest:
        rest = {name: each for name, each in content.items() if name not in made}
        made[REST] = JsonText(rest) if rest else None
    return made


def parsed_json(text: str) -> Any:
    """Return a JSON value, with `decimal.Decimal` for numbers with a fraction or an exponent."""
    try:
        found = json.loads(
            text, parse_float=_number, parse_int=_whole, parse_constant=refuse_constant
        )
    except RecursionError:
        raise NotJudged("JSON nested deeper than Python reads") from None
    except ValueError as wrong:
        raise MalformedPayload from wrong
    if _UNPAIRED.search(text.replace("\\\\", "\\u005c")):
        raise MalformedPayload
    return found


def _whole(text: str) -> int | Number:
    # Python refuses integers of more than 4,300 digits.
    return int(text) if len(text) < _MAX_INTEGER else _number(text)


def _number(text: str) -> Number:
    try:
        return Number(text)
    except DecimalException:
        raise NotJudged("a number with an exponent of more than 18 digits") from None


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
        case "double", (int() | Number()):
            return _double(value)
        case (("date" | "timestamp"), str()):
            return _moment(value, str(kind))
        case _:
            raise MalformedPayload


def _json_number(value: int | Number | str, kind: Decimal) -> Number:
    if isinstance(value, str) and not _DECIMAL.fullmatch(value):
        raise MalformedPayload
    return _decimal(_number(value) if isinstance(value, str) else Number(value), kind)


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


def _double(value: int | Number) -> float:
    try:
        made = float(value)
    except OverflowError as wrong:
        raise MalformedPayload from wrong
    if math.isinf(made):
        raise MalformedPayload
    return made


def _decimal(value: Number, kind: Decimal) -> Number:
    """Return a number that fits its type."""
    _, digits, exponent = value.as_tuple()
    written = "".join(map(str, digits))
    lowest = int(exponent) + len(written) - len(written.rstrip("0"))
    is_too_large = value.adjusted() >= kind.precision - kind.scale
    if value and (is_too_large or lowest < -kind.scale):
        raise MalformedPayload
    return value


def _moment(text: str, kind: str) -> date | datetime:
    if not TEXT_FORMS[kind].fullmatch(text):
        raise MalformedPayload
    try:
        if kind == "date":
            return date.fromisoformat(text)
        made = datetime.fromisoformat(text)
        return made.replace(tzinfo=UTC) if made.tzinfo is None else made.astimezone(UTC)
    except (ValueError, OverflowError) as wrong:
        raise MalformedPayload from wrong


def utf8_text(payload: bytes) -> str:
    """Return a payload as text.

    Raises:
        MalformedPayload: It is not UTF-8.
    """
    try:
        return payload.decode("utf-8")
    except UnicodeDecodeError as wrong:
        raise MalformedPayload from wrong
