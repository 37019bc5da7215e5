"""Limits of schemas, for all formats: registries, specs and suites.

A registry lets any producer register a schema. A small text can describe a huge type, because two
fields can refer to one definition. So the readers of schemas check the limits while they read, and
the time to read a schema stays below a few seconds.
"""

from __future__ import annotations

import json
import re
from typing import Any

from tidemark.spec.fields import FieldType, UnsupportedSchema, size_of_type

MAX_CHARACTERS = 4_000_000
"""Maximum characters of a schema's text, with the schemas that it refers to."""
MAX_REFERENCES = 1_000
"""Maximum number of schemas that a schema refers to in a registry, directly or indirectly."""
MAX_TEXT_LEVELS = 250
"""Maximum levels of objects and lists in a JSON text. Readers take two stack frames for each."""
MAX_PARTS = 50_000
"""Maximum number of parts of a JSON Schema. A part counts at each reference to it."""
MAX_LEVELS = 50
"""Maximum levels of structs, lists and maps in a column."""
MAX_COLUMNS = 2_000
"""Maximum fields of a type that are not structs; a type counts at each use. Spark's time and memory
for a plan grow with the columns. A plan takes a minute at this limit."""
MAX_VALUE_BYTES = 64 * 2**20
"""Maximum bytes of a text and of a `fixed` in Avro. Avro allocates them before it reads them, so a
record of a few bytes could request gigabytes."""
MAX_DIGITS = 4_300
"""Maximum digits of a whole number in a JSON text. Python parses no longer ones."""
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)


class SchemaTooLarge(UnsupportedSchema):
    """A schema exceeds a limit of this module."""


def check_size(kind: FieldType, owner: str = "the schema") -> None:
    """Check the columns and the levels of a type.

    Args:
        kind: The type.
        owner: Its name in the error.

    Raises:
        SchemaTooLarge: The type exceeds a limit.
    """
    columns, levels = size_of_type(kind)
    if columns > MAX_COLUMNS:
        raise SchemaTooLarge(f"{owner} has more than {MAX_COLUMNS:,} columns")
    if levels > MAX_LEVELS:
        raise SchemaTooLarge(f"{owner} has more than {MAX_LEVELS} levels")


def check_text(text: str, owner: str = "the schema") -> None:
    """Check the size of a text.

    Raises:
        SchemaTooLarge: The text is too large.
    """
    if len(text) > MAX_CHARACTERS:
        raise SchemaTooLarge(f"{owner} has more than {MAX_CHARACTERS:,} characters")


def load_json(text: str, owner: str = "the schema") -> Any:
    """Parse JSON within the limits of its size, its levels and its numbers.

    Args:
        text: The JSON.
        owner: Its name in the error.

    Raises:
        SchemaTooLarge: The text exceeds a limit.
        json.JSONDecodeError: The text is not JSON.
    """
    check_text(text, owner)
    levels = 0
    for token in _TOKEN.finditer(text):
        first = token[0][0]
        if first != '"':
            levels += 1 if first in "[{" else -1
        if levels > MAX_TEXT_LEVELS:
            raise SchemaTooLarge(f"{owner} has more than {MAX_TEXT_LEVELS} levels in its text")

    def whole(digits: str) -> int:
        if len(digits.lstrip("-")) > MAX_DIGITS:
            raise SchemaTooLarge(f"{owner} has a number of more than {MAX_DIGITS:,} digits")
        return int(digits)

    return json.loads(text, parse_int=whole)
