"""A draft of a spec's section `decode`, from a profile of landed records.

A person edits the draft and stores it in the spec. A schema inferred in each run would change under
its readers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tidemark.spec.decode import Format
from tidemark.spec.fields import FieldType, ListOf, Struct, parse_type, plain_type
from tidemark.typed.json_types import UNKNOWN
from tidemark.typed.profile import Profile

MAX_FIELDS = 200
"""Maximum fields of a nested object. A larger object is treated as a map, and becomes JSON text."""
_NEARLY_ALL = 0.99
"""The share of values that decides the format; the other values go to the quarantine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeDraft:
    """A draft of the section `decode`.

    Attributes:
        records: Number of records in the sample.
        key: Format of the keys.
        value: Format of the values.
        schema: Fields of the values; None if they are not JSON.
        left_out: Paths of fields that the schema leaves out, each with the reason.
        is_framed: Whether nearly all values begin like payloads with a schema id.
    """

    records: int
    key: Format
    value: Format
    schema: Struct | None
    left_out: Sequence[tuple[str, str]]
    is_framed: bool

    def as_section(self) -> dict[str, Any]:
        """Return the section `decode` of a spec as plain values."""
        value: dict[str, Any] = {"format": str(self.value)}
        if self.schema:
            value["schema"] = plain_type(self.schema)
        return {"key": {"format": str(self.key)}, "value": value}


def draft_decode(profile: Profile) -> DecodeDraft:
    """Return a draft for sampled records.

    The value format is JSON if nearly all values are JSON objects, string if all are text, and
    binary otherwise.
    """
    left_out: list[tuple[str, str]] = []
    fields = Struct(tuple((each.name, each.type) for each in profile.fields.values()))
    is_json = profile.objects >= _NEARLY_ALL * profile.values
    schema = _struct_without_unknown(fields, "", left_out) if is_json else None
    is_text = 0 < profile.values == profile.text_values
    kind = Format.JSON if schema else Format.STRING if is_text else Format.BINARY
    return DecodeDraft(
        records=profile.records,
        key=Format.BINARY if profile.binary_keys else Format.STRING,
        value=kind,
        schema=schema if isinstance(schema, Struct) else None,
        left_out=left_out,
        is_framed=0 < _NEARLY_ALL * profile.values <= profile.framed_values,
    )


def _without_unknown(
    kind: FieldType, path: str, left_out: list[tuple[str, str]]
) -> FieldType | None:
    """Return a type without unknown parts, and append those to `left_out`; None if none is left."""
    match kind:
        case str() if kind == UNKNOWN:
            left_out.append((path, "only null values or empty lists"))
            return None
        case ListOf():
            element = _without_unknown(kind.element, f"{path}[]", left_out)
            return None if element is None else ListOf(element)
        case Struct():
            return _struct_without_unknown(kind, path, left_out)
        case _:
            return kind


def _struct_without_unknown(
    kind: Struct, path: str, left_out: list[tuple[str, str]]
) -> FieldType | None:
    if len(kind.fields) > MAX_FIELDS and path:
        return "string"
    fields: dict[str, tuple[str, FieldType]] = {}
    for name, each in kind.fields:
        field_path = f"{path}.{name}" if path else name
        try:
            parse_type({name: "string"})
        except ValueError as error:
            left_out.append((field_path, str(error)))
            continue
        if name.lower() in fields:
            left_out.append((field_path, "the name of another field differs only in case"))
            continue
        known = _without_unknown(each, field_path, left_out)
        if known is not None:
            fields[name.lower()] = (name, known)
    if not fields and path:
        left_out.append((path, "an object without usable fields"))
    return Struct(tuple(fields.values())) if fields else None
