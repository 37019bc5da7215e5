"""Types of decoded fields, and rules for their comparison and merging."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

FIELD_NAME = r"[^\s,;{}()=`\ud800-\udfff]+"
"""Pattern for the name of a field in a Delta table."""
UNION_MEMBER = "member_"
"""Prefix of the fields of a union, of which one has a value; the type's name follows."""


@dataclass(frozen=True, slots=True)
class Decimal:
    """A decimal number with `precision` digits, `scale` of them after the point."""

    precision: int
    scale: int

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})"


@dataclass(frozen=True, slots=True)
class _Nested:
    """A type with other types inside it.

    Attributes:
        columns: Number of fields inside that are not structs; a list or a map counts as its
            elements. Types share their parts, so the number can exceed the memory of the type.
        levels: Number of levels of structs, lists and maps, with this one.
    """

    columns: int = field(init=False, repr=False, compare=False)
    levels: int = field(init=False, repr=False, compare=False)

    def _measure(self, inner: Iterable[FieldType]) -> None:
        sizes = [size_of_type(each) for each in inner]
        object.__setattr__(self, "columns", sum(columns for columns, _ in sizes))
        object.__setattr__(self, "levels", 1 + max((levels for _, levels in sizes), default=0))


@dataclass(frozen=True, slots=True)
class ListOf(_Nested):
    """A list whose elements have one type."""

    element: FieldType

    def __post_init__(self) -> None:
        self._measure([self.element])


@dataclass(frozen=True, slots=True)
class Struct(_Nested):
    """Fields with their types, in order."""

    fields: tuple[tuple[str, FieldType], ...]

    def __post_init__(self) -> None:
        self._measure(kind for _, kind in self.fields)


@dataclass(frozen=True, slots=True)
class MapOf(_Nested):
    """A map from strings to values of one type."""

    value: FieldType

    def __post_init__(self) -> None:
        self._measure([self.value])


FieldType: TypeAlias = str | Decimal | ListOf | MapOf | Struct
"""A type: a string is the name of a scalar type in Delta."""


def size_of_type(kind: FieldType) -> tuple[int, int]:
    """Return the numbers of columns and of levels of a type."""
    return (kind.columns, kind.levels) if isinstance(kind, _Nested) else (1, 0)


class UnsupportedSchema(ValueError):
    """Tidemark cannot create a column for a schema.

    Args:
        problem: The part without a column.
        path: Its field, such as `legs[].price`; empty for the whole schema.
    """

    def __init__(self, problem: str, path: str = "") -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.problem = problem
        self.path = path


@contextmanager
def path_prefix(place: str) -> Iterator[None]:
    """Put a field's name, `[]` or `{}` before the path of a `UnsupportedSchema`."""
    try:
        yield
    except UnsupportedSchema as wrong:
        dot = "." if place and wrong.path and wrong.path[0] not in "[{" else ""
        raise type(wrong)(wrong.problem, f"{place}{dot}{wrong.path}") from None


def inner_names(kind: FieldType | None) -> Mapping[str, Sequence[str]]:
    """Return the names of the fields of a type, each with the names of the fields inside."""
    fields = kind.fields if isinstance(kind, Struct) else ()
    return {
        name: [inner for inner, _ in each.fields] if isinstance(each, Struct) else []
        for name, each in fields
    }


def plain_type(kind: FieldType) -> Any:
    """Return a type as plain values, in the form of a spec; maps have a form of their own."""
    match kind:
        case Struct():
            return {name: plain_type(each) for name, each in kind.fields}
        case ListOf():
            return [plain_type(kind.element)]
        case MapOf():
            return {"map": plain_type(kind.value)}
        case _:
            return str(kind)


def type_conflicts(
    present: FieldType, wanted: FieldType, path: str, *, has_unions: bool
) -> Iterator[str]:
    """Yield descriptions of the conflicts between a column and new values.

    A field that only one type has is not a conflict: it is null in the other rows.

    Args:
        present: Type of the column.
        wanted: Type of the values.
        path: Name of the column.
        has_unions: Whether fields that begin with `UNION_MEMBER` form a union, as in Avro.
    """
    match present, wanted:
        case Struct(), Struct() if has_unions and _is_union(present) != _is_union(wanted):
            yield f"{path} is a union either in the table or in the schema, but not in both"
        case Struct(), Struct():
            there = {name.lower(): (name, each) for name, each in present.fields}
            for name, each in wanted.fields:
                if other := there.get(name.lower()):
                    if other[0] != name:
                        yield f"{path}.{other[0]} of the table is {name} in the schema"
                    yield from type_conflicts(
                        other[1], each, f"{path}.{name}", has_unions=has_unions
                    )
        case ListOf(), ListOf():
            yield from type_conflicts(
                present.element, wanted.element, f"{path}[]", has_unions=has_unions
            )
        case MapOf(), MapOf():
            yield from type_conflicts(
                present.value, wanted.value, f"{path}{{}}", has_unions=has_unions
            )
        case _:
            if present != wanted:
                yield f"{path} is {_named(present)} in the table, not {_named(wanted)}"


def _is_union(kind: Struct) -> bool:
    return all(name.startswith(UNION_MEMBER) for name, _ in kind.fields)


def added_fields(present: FieldType, wanted: FieldType, path: str) -> Iterator[str]:
    """Yield the paths of fields of `wanted` that the column lacks."""
    match present, wanted:
        case Struct(), Struct():
            there = dict(present.fields)
            for name, each in wanted.fields:
                if name in there:
                    yield from added_fields(there[name], each, f"{path}.{name}")
                else:
                    yield f"{path}.{name}"
        case ListOf(), ListOf():
            yield from added_fields(present.element, wanted.element, f"{path}[]")
        case MapOf(), MapOf():
            yield from added_fields(present.value, wanted.value, f"{path}{{}}")


def merged_type(present: FieldType, wanted: FieldType) -> FieldType:
    """Return a type with the fields of both types, which must have no `type_conflicts`."""
    match present, wanted:
        case Struct(), Struct():
            there, new = dict(present.fields), dict(wanted.fields)
            both = {
                name: merged_type(each, new[name]) if name in new else each
                for name, each in there.items()
            }
            # Existing fields keep their positions.
            return Struct(tuple({**both, **{n: new[n] for n in new if n not in both}}.items()))
        case ListOf(), ListOf():
            return ListOf(merged_type(present.element, wanted.element))
        case MapOf(), MapOf():
            return MapOf(merged_type(present.value, wanted.value))
        case _:
            return present


def _named(kind: FieldType) -> str:
    return str(kind) if isinstance(kind, str | Decimal) else json.dumps(plain_type(kind))


def widened_type(kind: FieldType) -> FieldType:
    """Return a type with `long` and `double` in place of `integer` and `float`."""
    match kind:
        case Struct():
            return Struct(tuple((name, widened_type(each)) for name, each in kind.fields))
        case ListOf():
            return ListOf(widened_type(kind.element))
        case MapOf():
            return MapOf(widened_type(kind.value))
        case _:
            return {"integer": "long", "float": "double"}.get(str(kind), kind)
