"""Types of columns for records with named fields."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar

from tidemark.spec.fields import FieldType, Struct, UnsupportedSchema, path_prefix, size_of_type
from tidemark.spec.schema_limits import MAX_COLUMNS, SchemaTooLarge, check_size

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
        SchemaTooLarge: The columns exceed a limit. The error comes before the next field is read.
    """
    fields = list(fields)
    folded = Counter(name.lower() for name, _ in fields)
    if twice := sorted(name for name, times in folded.items() if times > 1):
        raise UnsupportedSchema(f"{owner} has fields whose names differ only in case: {twice[0]}")
    types, columns = [], 0
    for name, each in fields:
        with path_prefix(name):
            kind = type_of(each)
        types.append((name, kind))
        columns += size_of_type(kind)[0]
        if columns > MAX_COLUMNS:
            raise SchemaTooLarge(f"{owner} has more than {MAX_COLUMNS:,} columns")
    struct = Struct(tuple(types))
    check_size(struct, owner)
    return struct
