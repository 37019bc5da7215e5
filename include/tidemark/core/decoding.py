"""How the bytes of a record become columns: formats, the types of fields, and why one does not."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self, TypeAlias


class Format(StrEnum):
    """What the bytes of a key or a value are."""

    BINARY = "binary"
    """Anything: the column has the bytes as they are."""
    STRING = "string"
    """Text in UTF-8."""
    JSON = "json"
    """One JSON object, whose fields have the types of a schema."""


class Part(StrEnum):
    """Which half of a record."""

    KEY = "key"
    VALUE = "value"


class Reason(StrEnum):
    """Why a record is in quarantine."""

    NOT_UTF8 = "not_utf8"
    """Its bytes are no text."""
    MALFORMED = "malformed"
    """It is not one JSON object, or a field has a value that is not of its type."""
    RULE_BROKEN = "rule_broken"
    """It can be decoded, and breaks a row rule."""


PRIMITIVES = ("string", "boolean", "integer", "long", "double", "date", "timestamp")
"""Types of fields that are one word, in Delta's own; `decimal(p,s)` is the other one."""

_DECIMAL = re.compile(r"decimal\((\d{1,2}),\s*(\d{1,2})\)")
_WIDEST = 28
"""Ten digits less than Delta's widest decimal: what a value has too many shows in these."""


@dataclass(frozen=True, slots=True)
class Decimal:
    """A number with so many digits, and so many of them behind the point."""

    precision: int
    scale: int

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})"


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list whose elements have one type."""

    element: FieldType


@dataclass(frozen=True, slots=True)
class Struct:
    """Fields by name, in their order."""

    fields: tuple[tuple[str, FieldType], ...]


FieldType: TypeAlias = str | Decimal | ListOf | Struct
"""A type of `PRIMITIVES`, or one of the others."""


def parse_type(raw: Any) -> FieldType:
    """A type as a spec says it: a word, a mapping of fields, or a list with the element's type.

    Raises:
        ValueError: With what is expected instead.
    """
    if isinstance(raw, dict):
        return _struct(raw)
    if isinstance(raw, list):
        if len(raw) != 1:
            raise ValueError(f"a list with one type, that of its elements, not {raw!r}")
        return ListOf(parse_type(raw[0]))
    if raw in PRIMITIVES:
        return str(raw)
    if isinstance(raw, str) and (found := _DECIMAL.fullmatch(raw)):
        precision, scale = int(found[1]), int(found[2])
        if 1 <= precision <= _WIDEST and scale <= precision:
            return Decimal(precision, scale)
        raise ValueError(f"decimal(p,s) with s <= p <= {_WIDEST}, not {raw!r}")
    raise ValueError(
        f"one of {', '.join(PRIMITIVES)}, decimal(p,s), a mapping of fields, or a list with one "
        f"type, not {raw!r}"
    )


def _struct(raw: dict[Any, Any]) -> Struct:
    if not raw:
        raise ValueError("at least one field")
    for name in raw:
        if isinstance(name, bool):
            raise ValueError('quotes around names that YAML takes for yes or no, such as "on"')
        if not isinstance(name, str) or not re.fullmatch(r"[^\s,;{}()=`]+", name):
            raise ValueError(f"names of fields without spaces and any of ,;{{}}()=`, not {name!r}")
    folded = [name.lower() for name in raw]
    if twice := sorted({name for name in folded if folded.count(name) > 1}):
        raise ValueError(f"names that differ in more than upper and lower case, not {twice[0]!r}")
    return Struct(tuple((name, parse_type(kind)) for name, kind in raw.items()))


def plain(kind: FieldType) -> Any:
    """A type as `parse_type` takes it."""
    match kind:
        case Struct():
            return {name: plain(each) for name, each in kind.fields}
        case ListOf():
            return [plain(kind.element)]
        case _:
            return str(kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadSpec:
    """How a key, or a value, is decoded.

    Attributes:
        format: What its bytes are.
        schema: The fields; None unless the format needs them.
    """

    format: Format = Format.BINARY
    schema: Struct | None = None

    @property
    def column(self) -> FieldType:
        """The type of its column; "binary" is no field's, and only here."""
        return self.schema or str(self.format)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSpec:
    """A pipeline's typed table: where it is, how it is made, what of it goes into quarantine.

    Attributes:
        key: How keys are decoded.
        value: How values are decoded.
        target: The typed table's path, as of a pipeline's `target`.
        rules: Conditions in Spark SQL over the decoded columns, by name. A row for which one is
            false is quarantined; one for which it is null is not.
        most_records: So many records of a plan may be quarantined, whatever share they are.
        most_percent: Of more records, this share of a plan at most.
    """

    key: PayloadSpec
    value: PayloadSpec
    target: str
    rules: tuple[tuple[str, str], ...] = ()
    most_records: int = 100
    most_percent: float = 10.0

    @property
    def quarantine_target(self) -> str:
        """Where the records are that could not be decoded: beside the typed table."""
        return f"{self.target.rstrip('/')}_quarantine"

    @property
    def fingerprint(self) -> str:
        """Twelve hexadecimal digits over all that decides what a record decodes to."""
        identity = {
            part: [str(spec.format), plain(spec.schema) if spec.schema else None]
            for part, spec in ((Part.KEY, self.key), (Part.VALUE, self.value))
        }
        text = json.dumps([identity, self.rules], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def allowed(self, records: int) -> int:
        """How many of so many records of one plan may be quarantined."""
        return max(self.most_records, int(records * self.most_percent / 100))


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedFrom:
    """What a typed plan decodes, and with what; its text is the plan's requester.

    Attributes:
        epoch: Epoch of the bronze pipeline.
        version: Version of the bronze table when the plan was made. What has landed there later,
            at the plan's offsets, it has not decoded.
        fingerprint: Of the decoder.
        pipeline: The bronze pipeline.
    """

    epoch: int
    version: int
    fingerprint: str
    pipeline: str

    def __str__(self) -> str:
        return f"decode:{self.pipeline}:{self.epoch}:{self.version}:{self.fingerprint}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """What a requester's text says; None if it is somebody else's."""
        found = re.fullmatch(r"decode:([^:]+):(\d+):(-?\d+):([0-9a-f]+)", text)
        if found is None:
            return None
        return cls(
            pipeline=found[1], epoch=int(found[2]), version=int(found[3]), fingerprint=found[4]
        )
