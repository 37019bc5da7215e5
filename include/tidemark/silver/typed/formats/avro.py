"""Avro schemas: their references, their column types, and the form that Spark reads.

Source: the Avro 1.12 specification. A schema without a type in Delta raises `UnsupportedSchema`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from typing import Any, Self

from tidemark.silver.typed.formats.struct_type import struct_type
from tidemark.spec.fields import (
    UNION_MEMBER,
    Decimal,
    FieldType,
    ListOf,
    MapOf,
    Struct,
    UnsupportedSchema,
    path_prefix,
)
from tidemark.spec.schema_limits import MAX_VALUE_BYTES, SchemaTooLarge, check_size, load_json

_PRIMITIVES = {
    "boolean": "boolean",
    "int": "integer",
    "long": "long",
    "float": "float",
    "double": "double",
    "bytes": "binary",
    "string": "string",
}
_LOGICAL = {
    ("int", "date"): "date",
    ("long", "timestamp-millis"): "timestamp",
    ("long", "timestamp-micros"): "timestamp",
}


class Symbols(str):
    """The type of an enum: a text.

    Attributes:
        symbols: The symbols in the order of the schema.
    """

    symbols: tuple[str, ...]

    @classmethod
    def of(cls, symbols: Iterable[str]) -> Self:
        """Return the type of an enum with these symbols."""
        made = cls("string")
        made.symbols = tuple(symbols)
        return made


_RECORDS = ("record", "error")
_NAMED = {*_RECORDS, "enum", "fixed"}
_WIDEST_DECIMAL = 38
_DIGITS_OF_BITS, _BITS = 30_102_999_566_398_119_521, 10**20
"""Their quotient is the number of decimal digits in a bit: the decimal logarithm of 2."""
_WIDE = {frozenset({"int", "long"}): "long", frozenset({"float", "double"}): "double"}


def with_references(text: str, references: Iterable[str]) -> str:
    """Return a schema that contains the definitions of its references.

    Args:
        text: The schema.
        references: The schemas that it refers to, directly or indirectly.

    Returns:
        The text itself if one of the schemas is not valid Avro. `column_of` raises the reason.

    Raises:
        SchemaTooLarge: One of the schemas exceeds a limit, or references are nested too deep.
    """
    others: dict[str, Any] = {}
    try:
        for each in references:
            _resolved(load_json(each), "", {}, others)
        return json.dumps(_resolved(load_json(text), "", others, {})) if others else text
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError):
        return text
    except RecursionError:
        raise SchemaTooLarge("the references of the schema are nested too deep") from None


def _resolved(schema: Any, space: str, others: Mapping[str, Any], known: dict[str, Any]) -> Any:
    """Return a schema with full names, where the first use of a foreign type is its definition.

    Args:
        schema: The schema.
        space: The namespace around it.
        others: The named types of other schemas, by their full names.
        known: Receives the named types of this schema.
    """
    if isinstance(schema, str):
        if schema in _PRIMITIVES or schema == "null":
            return schema
        # As Java's parser does, which also looks for a name without a namespace.
        for name in (_full_name(schema, space), schema):
            if name in known:
                return name
            if name in others:
                return _resolved(others[name], name.rpartition(".")[0], others, known)
        return schema
    if isinstance(schema, list):
        return [_resolved(each, space, others, known) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") in _NAMED:
        name = _full_name(str(schema.get("name", "")), str(schema.get("namespace", space)))
        space = name.rpartition(".")[0]
        schema = {**schema, "name": name} | ({} if space else {"namespace": ""})
        known[name] = schema
    return _changed(schema, lambda each: _resolved(each, space, others, known))


def _full_name(name: str, space: str) -> str:
    return name if "." in name or not space else f"{space}.{name}"


def _changed(schema: Mapping[str, Any], change: Callable[[Any], Any]) -> Mapping[str, Any]:
    """Return a schema with each schema inside it changed."""
    kind = schema.get("type")
    if kind in _RECORDS and "fields" in schema:
        fields = [{**each, "type": change(each.get("type"))} for each in schema["fields"]]
        return {**schema, "fields": fields}
    if kind in _NAMED:
        return schema
    place = {"array": "items", "map": "values"}.get(str(kind), "type")
    return {**schema, place: change(schema.get(place))}


def is_raw(text: str) -> bool:
    """Return whether records of a schema are plain bytes, which serializers write without a length.

    Confluent's serializers for Java and Python do this for any logical type.
    """
    schema = json.loads(text)
    return bool((schema["type"] if isinstance(schema, dict) else schema) == "bytes")


def column_of(text: str) -> FieldType:
    """Return the type of the column for records of a schema.

    An enum becomes its symbol. A union of several types becomes a struct with a field for each
    type, such as `member_int`. Dates, timestamps and decimals keep their logical type; others are
    ignored.

    Raises:
        SchemaTooLarge: The schema exceeds a limit.
        UnsupportedSchema: The schema has no type in Delta.
    """
    try:
        column = _column(_resolved(load_json(text), "", {}, {}), {})
    except (json.JSONDecodeError, KeyError, TypeError) as wrong:
        raise UnsupportedSchema("the schema is not valid Avro") from wrong
    except RecursionError:
        raise SchemaTooLarge("the schema is nested too deep") from None
    check_size(column)
    return column


def as_spark_reads(text: str) -> str:
    """Return a schema of the same binary form that Avro's Java reader reads without loss.

    Java cuts an `int`, and the index of an enum, down to 32 bits. Their binary form is that of a
    `long`, so they are read as `long`. An enum becomes a record with a number. An `int` in a union
    of several types becomes such a record named `int`, so its field keeps its name. Java reads any
    byte except 1 as false, so a `boolean` is read as a byte. Texts are bytes, also if the schema
    requests Java's strings. Fields of type `null` are left out: they have no bytes.
    """
    return json.dumps(_readable(json.loads(text), count()))


_KEPT = frozenset(("type", "name", "namespace", "fields", "items", "values", "size"))
"""The parts of a schema that a reader needs: no defaults, aliases or properties."""
_OF_DECIMALS = ("logicalType", "precision", "scale")


def _readable(schema: Any, numbers: Iterator[int]) -> Any:
    if isinstance(schema, list):
        several = sum(_type_name(each) != "null" for each in schema) > 1
        return [
            _indexed("int", f"tidemark{next(numbers)}")
            if several and _is_int(each)
            else _readable(each, numbers)
            for each in schema
        ]
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind == "int":
        return "long"
    if kind == "boolean":
        space = f"tidemark{next(numbers)}"
        return {"type": "fixed", "name": "boolean", "namespace": space, "size": 1}
    if not isinstance(schema, dict):
        return schema
    if kind == "enum":
        return _indexed(schema["name"], schema.get("namespace"))
    kept = {
        name: _readable(each, numbers) if name in ("type", "items", "values") else each
        for name, each in schema.items()
        if name in _KEPT
    }
    if kind in _RECORDS:
        kept["fields"] = [
            {"name": each["name"], "type": _readable(each["type"], numbers)}
            for each in _fields_with_bytes(schema)
        ]
    if logical_type(schema) is not None:
        kept |= {name: schema[name] for name in _OF_DECIMALS if name in schema}
    return kept


def _fields_with_bytes(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the fields of a record except type `null`, which has no bytes and no column."""
    return [each for each in schema["fields"] if each["type"] not in ("null", {"type": "null"})]


def _is_int(schema: Any) -> bool:
    while isinstance(schema, dict):
        schema = schema.get("type")
    return bool(schema == "int")


def _indexed(name: str, space: str | None) -> dict[str, Any]:
    """Return a record schema with one number."""
    placed = {"name": name} if space is None else {"name": name, "namespace": space}
    return {"type": "record", **placed, "fields": [{"name": "index", "type": "long"}]}


def logical_type(schema: Mapping[str, Any]) -> FieldType | None:
    """Return the column type of a supported logical type; None for others."""
    kind, logical = schema.get("type"), schema.get("logicalType")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if type(precision) is int and type(scale) is int and 0 <= scale <= precision:
            if kind == "fixed" and not _fits(precision, schema.get("size")):
                # By the specification, such a logical type is ignored.
                return None
            if 1 <= precision <= _WIDEST_DECIMAL:
                return Decimal(precision, scale)
            raise UnsupportedSchema(
                f"a decimal has {precision} digits, and Delta allows {_WIDEST_DECIMAL}"
            )
        return None
    return _LOGICAL.get((str(kind), str(logical)))


def _fits(precision: int, size: Any) -> bool:
    """Return whether `size` bytes can store every number of `precision` digits."""
    # Counts digits, because a hostile precision or size has powers beyond any memory.
    return type(size) is int and precision <= (8 * size - 1) * _DIGITS_OF_BITS // _BITS


def _column(schema: Any, known: dict[str, FieldType | None]) -> FieldType:
    """Return the type of the column for values of a schema.

    Args:
        schema: A resolved schema.
        known: The types of named types by their names; None for a record around this schema.
    """
    if isinstance(schema, list):
        return _union(schema, known)
    if isinstance(schema, str):
        return _by_name(schema, known)
    kind = schema["type"]
    if kind == "fixed":
        _check_fixed(schema["name"], schema["size"])
    if (logical := logical_type(schema)) is not None:
        if kind == "fixed":
            known[schema["name"]] = logical
        return logical
    if kind == "array":
        with path_prefix("[]"):
            return ListOf(_column(schema["items"], known))
    if kind == "map":
        with path_prefix("{}"):
            return MapOf(_column(schema["values"], known))
    return _named(schema, known) if kind in _NAMED else _column(kind, known)


def _named(schema: Mapping[str, Any], known: dict[str, FieldType | None]) -> FieldType:
    name = schema["name"]
    made: FieldType = "binary"
    if schema["type"] in _RECORDS:
        known[name] = None
        fields = [(str(each["name"]), each["type"]) for each in _fields_with_bytes(schema)]
        if not fields:
            raise UnsupportedSchema(f"{name} has no fields")
        made = struct_type(name, fields, lambda each: _column(each, known))
    elif schema["type"] == "enum":
        made = Symbols.of(schema["symbols"])
    known[name] = made
    return made


def _check_fixed(name: str, size: Any) -> None:
    if type(size) is not int or size < 0:
        raise UnsupportedSchema(f"the size of {name} is not a number of bytes")
    if size == 0:
        # A few bytes could claim a list of any number of them.
        raise UnsupportedSchema(f"{name} has no bytes")
    if size > MAX_VALUE_BYTES:
        raise SchemaTooLarge(f"{name} has more than {MAX_VALUE_BYTES:,} bytes")


def _by_name(name: str, known: Mapping[str, FieldType | None]) -> FieldType:
    if name in _PRIMITIVES:
        return _PRIMITIVES[name]
    if name == "null":
        raise UnsupportedSchema("a field has no type but null")
    if name not in known:
        raise UnsupportedSchema(f"the schema does not define {name}")
    if (made := known[name]) is None:
        raise UnsupportedSchema(f"{name} contains itself")
    return made


def _union(members: list[Any], known: dict[str, FieldType | None]) -> FieldType:
    some = [each for each in members if _type_name(each) != "null"]
    kinds = [(_type_name(each), _column(each, known)) for each in some]
    if not kinds:
        raise UnsupportedSchema("a field has no type but null")
    if len(kinds) == 1:
        return kinds[0][1]
    # Spark reads both types into one column.
    if wide := _WIDE.get(frozenset(name for name, _ in kinds)):
        if any(_logical_name(each) for each in some):
            raise UnsupportedSchema(
                f"a union of {_several(some)} makes one column, which does not show the type"
            )
        return wide
    folded = Counter(name.lower() for name, _ in kinds)
    if twice := [each for each in some if folded[_type_name(each).lower()] > 1]:
        raise UnsupportedSchema(
            f"a union of {_several(twice)} makes fields with the same name, "
            f"{UNION_MEMBER}{_type_name(twice[0])}, or of names that differ in case alone"
        )
    return Struct(tuple((f"{UNION_MEMBER}{name}", kind) for name, kind in kinds))


def _several(members: Iterable[Any]) -> str:
    """Return the members of a union as text: full names, and types with their logical types."""
    return " and ".join(map(_described, members))


def _described(schema: Any) -> str:
    if isinstance(schema, str):
        return schema
    if schema.get("type") in _NAMED:
        return str(schema["name"])
    logical = _logical_name(schema)
    return f"{_type_name(schema)} ({logical})" if logical else _type_name(schema)


def _logical_name(schema: Any) -> str | None:
    return schema.get("logicalType") if isinstance(schema, dict) else None


def _type_name(schema: Any) -> str:
    """Return a type's name without its namespace, as Spark names members of unions."""
    while isinstance(schema, dict) and isinstance(schema.get("type"), dict):
        schema = schema["type"]
    if isinstance(schema, dict):
        schema = schema["name"] if schema.get("type") in _NAMED else schema.get("type")
    return str(schema).rpartition(".")[2]
