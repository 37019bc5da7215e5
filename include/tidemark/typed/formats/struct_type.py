"""Types of columns for records with named fields."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar

from tidemark.spec.fields import FieldType, Struct, UnsupportedSchema, path_prefix

_Field = TypeVar("_Field")


def struct_type(
    owner: str, fields: Iterable[tuple[str, _Field]], type_of: Callable[[_Field], FieldType]
) -> Struct:
    """Return the type of a column for records with these fields.

    Args:
        owner: The name of the record in errors.
        fields: The names and definitions of the fields.
        type_of: Returns the type of a field.

    Raises:
        UnsupportedSchema: Two names differ only in case, or a field has no type in Delta.
    """
    fields = list(fields)
    folded = Counter(name.lower() for name, _ in fields)
    if twice := sorted(name for name, times in folded.items() if times > 1):
        raise UnsupportedSchema(f"{owner} has fields whose names differ only in case: {twice[0]}")
    types = []
    for name, each in fields:
        with path_prefix(name):
            types.append((name, type_of(each)))
    return Struct(tuple(types))
