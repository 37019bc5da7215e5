"""How the bytes of a record become columns: formats, where schemas are from, why one does not."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self, assert_never

from tidemark.spec.fields import FieldType, Struct, plain
from tidemark.spec.upsert import UpsertSpec

FRAME_MAGIC = b"\x00"
"""What a payload with the id of its schema begins with; source: Confluent's wire format."""
FRAME_BYTES = 5
"""The zero byte and the four of the id."""


class Format(StrEnum):
    """What the bytes of a key or a value are."""

    BINARY = "binary"
    """Anything: the column has the bytes as they are."""
    STRING = "string"
    """Text in UTF-8."""
    JSON = "json"
    """One JSON object, whose fields have the types of a schema in the spec."""
    AVRO = "avro"
    """Avro behind the id of the schema that it was written with, which a registry knows."""

    JSON_SCHEMA = "json_schema"
    """One JSON object behind the id of its schema, which a registry knows."""
    PROTOBUF = "protobuf"
    """The first message of a schema, behind the id of it, which a registry knows."""

    @property
    def has_fields(self) -> bool:
        """Whether a spec names the fields of each payload, with their types."""
        return self is Format.JSON

    @property
    def has_schema_ids(self) -> bool:
        """Whether each payload says which schema of a registry it is written with."""
        return self in (Format.AVRO, Format.JSON_SCHEMA, Format.PROTOBUF)

    @property
    def kind(self) -> str:
        """What a registry calls schemas of such payloads."""
        return "JSON" if self is Format.JSON_SCHEMA else self.value.upper()


class Part(StrEnum):
    """Which half of a record."""

    KEY = "key"
    VALUE = "value"

    @property
    def schema_id(self) -> str:
        """The column that has the id of its schema, where it begins with one."""
        return f"{self.value}_schema_id"

    @property
    def schema_id_header(self) -> str:
        """The record header with the id of its schema; source: Confluent's header serializer."""
        return f"__{self.value}_schema_id"


class Reason(StrEnum):
    """Why a record is in quarantine."""

    NOT_UTF8 = "not_utf8"
    """Its bytes are no text."""
    MALFORMED = "malformed"
    """It is not what its format and its schema say: cut short, too long, of another type."""
    NOT_JSON = "not_json"
    """The text is not one JSON object: it is cut off, too long, or something else."""
    NOT_FRAMED = "not_framed"
    """It does not begin with the id of a schema: a zero byte, then four bytes."""
    SCHEMA_IN_HEADER = "schema_in_header"
    """A record header contains the schema id, which is not supported yet."""
    UNKNOWN_SCHEMA = "unknown_schema"
    """The registry has no schema of the id that it begins with."""
    REFUSED_SCHEMA = "refused_schema"
    """The spec has the id of its schema in `decode.quarantine.schemas`."""
    RULE_BROKEN = "rule_broken"
    """It can be decoded, and breaks a row rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadSpec:
    """How a key, or a value, is decoded.

    Attributes:
        format: What its bytes are.
        schema: The fields; None for a format that has none in the spec.
    """

    format: Format = Format.BINARY
    schema: Struct | None = None

    @property
    def column(self) -> FieldType | None:
        """The type of its column; None if the schemas decide that its records are written with."""
        match self.format:
            case Format.BINARY | Format.STRING:
                return self.format.value
            case Format.JSON:
                return self.schema
            case Format.AVRO | Format.JSON_SCHEMA | Format.PROTOBUF:
                return None
            case _:
                assert_never(self.format)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredSchema:
    """A schema as a registry has it.

    Attributes:
        id: Its number in that registry, which every payload written with it begins with.
        kind: `AVRO`, or another word of the registry for a language of schemas.
        text: The schema, with all that it refers to.
    """

    id: int
    kind: str
    text: str

    def is_same(self, other: Self) -> bool:
        """Whether another answer says the same, however it is laid out."""
        return self.kind == other.kind and _loaded(self.text) == _loaded(other.text)

    @property
    def is_settled(self) -> bool:
        """Whether it will always say the same: what a compiler refuses may please the next one."""
        return self.kind != Format.PROTOBUF.kind or _loaded(self.text) != self.text


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSpec:
    """A pipeline's typed table: where it is, how it is made, what of it goes into quarantine.

    Attributes:
        key: How keys are decoded.
        value: How values are decoded.
        target: The typed table's path, as of a pipeline's `target`.
        registry: The connection of the schema registry; what needs none does not ask for it.
        widens: Whether `int` and `float` of a registry's schemas are `long` and `double` here, so
            that they may become so there.
        refused_schemas: Ids of schemas whose records are quarantined, whatever they are.
        rules: Conditions in Spark SQL over the decoded columns, by name. A row for which one is
            false is quarantined; one for which it is null is not.
        most_records: So many records of a plan may be quarantined, whatever share they are.
        most_percent: Of more records, this share of a plan at most.
        upsert: The table of latest rows that is made of the typed table; None = there is none.
    """

    key: PayloadSpec
    value: PayloadSpec
    target: str
    registry: str = "schema_registry_default"
    widens: bool = True
    refused_schemas: tuple[int, ...] = ()
    rules: tuple[tuple[str, str], ...] = ()
    most_records: int = 100
    most_percent: float = 10.0
    upsert: UpsertSpec | None = None

    @property
    def parts(self) -> Mapping[Part, PayloadSpec]:
        """How each half of a record is decoded."""
        return {Part.KEY: self.key, Part.VALUE: self.value}

    @property
    def framed(self) -> tuple[Part, ...]:
        """The halves that begin with the id of a registry's schema."""
        return tuple(part for part, spec in self.parts.items() if spec.format.has_schema_ids)

    @property
    def has_unions(self) -> bool:
        """Whether fields that begin with `UNION_MEMBER` are members of a union, as Avro's are."""
        return any(part.format is Format.AVRO for part in self.parts.values())

    @property
    def quarantine_target(self) -> str:
        """Where the records are that could not be decoded: beside the typed table."""
        return f"{self.target.rstrip('/')}_quarantine"

    @property
    def fingerprint(self) -> str:
        """Twelve hexadecimal digits over all that decides what a record decodes to."""
        identity = {
            part: [str(spec.format), plain(spec.schema) if spec.schema else None]
            for part, spec in self.parts.items()
        }
        by_id = [self.registry, self.widens, self.refused_schemas] if self.framed else []
        text = json.dumps([identity, self.rules, *by_id], separators=(",", ":"))
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
        schemas: Ids of the schemas that its records are written with, ascending, by half; none of
            a half that has none.
    """

    epoch: int
    version: int
    fingerprint: str
    pipeline: str
    schemas: Mapping[Part, tuple[int, ...]] = field(default_factory=dict)

    def __str__(self) -> str:
        ids = "".join(
            f":{part}={','.join(map(str, some))}" for part, some in sorted(self.schemas.items())
        )
        return f"decode:{self.pipeline}:{self.epoch}:{self.version}:{self.fingerprint}{ids}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """What a requester's text says; None if it is somebody else's."""
        found = re.fullmatch(
            r"decode:([^:]+):(\d+):(-?\d+):([0-9a-f]+)(?::key=([\d,]+))?(?::value=([\d,]+))?", text
        )
        if found is None:
            return None
        ids = {Part.KEY: found[5], Part.VALUE: found[6]}
        return cls(
            pipeline=found[1],
            epoch=int(found[2]),
            version=int(found[3]),
            fingerprint=found[4],
            schemas={part: tuple(map(int, some.split(","))) for part, some in ids.items() if some},
        )
