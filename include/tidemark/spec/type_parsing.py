"""Parses the types of fields in specs, and suggests a type for a name of another system."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tidemark.core.texts import did_you_mean
from tidemark.spec.fields import FIELD_NAME, Decimal, FieldType, ListOf, Struct

PRIMITIVES = ("string", "boolean", "integer", "long", "double", "date", "timestamp")
"""Types with a one-word name in a spec; the other scalar type is `decimal(p,s)`."""

_DECIMAL = re.compile(r"decimal\((\d{1,2}),\s*(\d{1,2})\)")
_WIDEST = 28
"""Maximum precision: ten digits less than Delta's, so that excess digits can be detected."""
_ANY_TYPE = (
    f"one of {', '.join(PRIMITIVES)}, decimal(p,s), a mapping of fields, or a list with one type"
)

_NAMES_OF_OTHERS = {
    "boolean": "bool bit logical",
    "integer": "int int2 int4 int16 int32 smallint tinyint mediumint short byte",
    "long": "bigint int8 int64 uint32 unsigned serial bigserial",
    "double": "float float4 float8 float32 float64 real doubleprecision number",
    "string": "varchar nvarchar char nchar bpchar character charactervarying text str utf8 clob "
    "uuid enum json jsonb variant time interval binary varbinary bytes bytea blob",
    "date": "date32",
    "timestamp": "datetime datetime2 datetime64 timestamptz timestampltz timestampntz "
    "timestampwithtimezone timestampwithouttimezone",
    "decimal": "decimal numeric dec money",
    "list": "array list repeated set",
    "mapping": "struct record row object map dict",
}
_SUGGESTIONS = {name: kind for kind, names in _NAMES_OF_OTHERS.items() for name in names.split()}
"""The type of a spec for a name of SQL, Avro, Arrow or Python, without spaces and underscores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeProblem:
    """A part of a type that is invalid.

    Attributes:
        path: The field, such as `legs[].price`; empty for the whole type.
        expected: The valid values.
        value: The actual value.
    """

    path: str
    expected: str
    value: Any

    @property
    def suggestion(self) -> str:
        """The type that is probably meant, as ` (did you mean 'long'?)`; empty without one."""
        if not isinstance(self.value, str) or self.expected is not _ANY_TYPE:
            return ""
        name, *arguments = re.split(r"[(<\[]", self.value.lower(), maxsplit=1)
        name = re.sub(r"[\s_]", "", name)
        kind = "list" if self.value.endswith("[]") else _SUGGESTIONS.get(name)
        match kind:
            case None if arguments and name in PRIMITIVES:
                meant = repr(name)
            case None:
                return did_you_mean(self.value, PRIMITIVES)
            case "decimal":
                meant = repr(str(_decimal(arguments[0] if arguments else "")))
            case "list":
                meant = "a list with one type, such as [string]"
            case "mapping":
                meant = "a mapping of fields"
            case _:
                meant = repr(kind)
        return f" (did you mean {meant}?)"


def _decimal(arguments: str) -> Decimal:
    """Return a valid decimal type that resembles the arguments `p,s` of another one."""
    precision, scale, *_ = (*map(int, re.findall(r"[0-9]{1,3}", arguments)), 0, 0)
    precision = min(precision, _WIDEST)
    return Decimal(precision, min(scale, precision)) if precision else Decimal(18, 2)


class InvalidType(ValueError):
    """A type in a spec is invalid. The error contains the problem of every field."""

    def __init__(self, problems: Sequence[TypeProblem]) -> None:
        super().__init__("; ".join(f"{each.expected}, not {each.value!r}" for each in problems))
        self.problems = tuple(problems)


def parse_type(raw: Any) -> FieldType:
    """Parse a type from a spec: a name, a mapping of fields, or a list with the element type.

    Raises:
        InvalidType: The value is not a type.
    """
    problems: list[TypeProblem] = []
    parsed = _parsed(raw, "", problems)
    if problems:
        raise InvalidType(problems)
    return parsed


def _parsed(raw: Any, path: str, problems: list[TypeProblem]) -> FieldType:
    """Return the type of a field, and add its problems. `string` replaces an invalid part."""
    expected = _ANY_TYPE
    match raw:
        case dict():
            return _struct(raw, path, problems)
        case [element]:
            return ListOf(_parsed(element, f"{path}[]", problems))
        case list():
            expected = "a list with one type, the type of its elements"
        case str() if raw in PRIMITIVES:
            return raw
        case str() if found := _DECIMAL.fullmatch(raw):
            precision, scale = int(found[1]), int(found[2])
            if 1 <= precision <= _WIDEST and scale <= precision:
                return Decimal(precision, scale)
            expected = f"decimal(p,s) with s <= p <= {_WIDEST}"
    problems.append(TypeProblem(path=path, expected=expected, value=raw))
    return "string"


def _struct(raw: dict[Any, Any], path: str, problems: list[TypeProblem]) -> Struct:
    def add(expected: str, value: Any) -> None:
        problems.append(TypeProblem(path=path, expected=expected, value=value))

    if not raw:
        add("at least one field", raw)
    fields, present = [], set()
    for name, kind in raw.items():
        if isinstance(name, bool):
            add('quotes around names that YAML parses as a boolean, such as "on"', name)
        elif not isinstance(name, str) or not re.fullmatch(FIELD_NAME, name):
            add("field names without spaces or any of ,;{}()=`", name)
        elif name.lower() in present:
            add("field names that differ in more than case", name)
        present.add(str(name).lower())
        at = f"{path}.{name}" if path else str(name)
        fields.append((str(name), _parsed(kind, at, problems)))
    return Struct(tuple(fields))
