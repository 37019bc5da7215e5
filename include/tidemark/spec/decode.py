"""The spec of a typed table: formats of keys and values, schemas, and quarantine reasons."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self, assert_never

from tidemark.core.publication import PublishRule
from tidemark.spec.fields import FieldType, Struct, plain_type
from tidemark.spec.upsert import Envelope, UpsertSpec

DEFAULT_REGISTRY = "schema_registry_default"
"""Connection id of the schema registry, unless a spec names another one."""
FRAME_MAGIC = b"\x00"
"""First byte of a payload with a schema id; source: Confluent's wire format."""
FRAME_BYTES = 5
"""Length of the frame: the first byte, and a schema id of four bytes."""
DEFAULT_QUARANTINE_PERCENT = 10.0
"""The percentage of the records of a decode's round that may go to the quarantine."""
REST = "_rest"
"""Field with the JSON of all fields that the schema does not name; null if there are none."""


class Format(StrEnum):
    """The format of a key or a value."""

    BINARY = "binary"
    """Any bytes. The column contains them unchanged."""
    STRING = "string"
    """UTF-8 text."""
    JSON = "json"
    """One JSON object. The spec defines the types of its fields."""
    AVRO = "avro"
    """A schema id of a registry, then one Avro record."""
    JSON_SCHEMA = "json_schema"
    """A schema id of a registry, then one JSON object."""
    PROTOBUF = "protobuf"
    """A schema id of a registry, then one Protobuf message: the first one of the schema."""

    @property
    def has_fields(self) -> bool:
        """Whether the spec defines the fields of a payload."""
        return self is Format.JSON

    @property
    def has_schema_ids(self) -> bool:
        """Whether each payload begins with the schema id of a registry."""
        return self in (Format.AVRO, Format.JSON_SCHEMA, Format.PROTOBUF)

    @property
    def uses_python(self) -> bool:
        """Whether Spark's Python workers decode payloads."""
        return self in (Format.JSON, Format.JSON_SCHEMA, Format.PROTOBUF)

    @property
    def kind(self) -> str:
        """The registry's name for schemas of this format."""
        return "JSON" if self is Format.JSON_SCHEMA else self.value.upper()


class Part(StrEnum):
    """The key or the value of a record."""

    KEY = "key"
    VALUE = "value"

    @property
    def schema_id(self) -> str:
        """Name of the column with the schema id of the key or value."""
        return f"{self.value}_schema_id"

    @property
    def schema_id_header(self) -> str:
        """Name of the record header for a schema id; source: Confluent's header serializer."""
        return f"__{self.value}_schema_id"


class QuarantineReason(StrEnum):
    """The reason why a record is in quarantine."""

    NOT_UTF8 = "not_utf8"
    """The bytes are not UTF-8."""
    MALFORMED = "malformed"
    """The payload does not match its format or schema: truncated, too long, or another type."""
    NOT_JSON = "not_json"
    """The text is not exactly one JSON object."""
    NOT_FRAMED = "not_framed"
    """The payload does not begin with a schema id: a zero byte, then four bytes."""
    SCHEMA_IN_HEADER = "schema_in_header"
    """A record header contains the schema id, which is not supported yet."""
    UNKNOWN_SCHEMA = "unknown_schema"
    """The registry has no schema with the id of the payload."""
    SCHEMA_TOO_LARGE = "schema_too_large"
    """The schema exceeds a limit, or the column with its fields would exceed it."""
    REFUSED_SCHEMA = "refused_schema"
    """The schema id is listed in `decode.quarantine.schemas` of the spec."""
    NO_OPERATION = "no_operation"
    """The spec has an envelope, and the value does not have its operation."""
    RULE_BROKEN = "rule_broken"
    """The record is decoded, and breaks a row rule."""
    DECODABLE = "decodable"
    """The record can be decoded now. A decode that was killed has not recorded why it failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadSpec:
    """How keys or values are decoded.

    Attributes:
        format: The format of the bytes.
        schema: The fields; None for a format without fields in the spec.
        keeps_rest: Whether a field `REST` has the fields that the schema does not name.
    """

    format: Format = Format.BINARY
    schema: Struct | None = None
    keeps_rest: bool = False

    @property
    def column(self) -> FieldType | None:
        """The type of the column; None if the schemas of the records define it."""
        match self.format:
            case Format.BINARY | Format.STRING:
                return self.format.value
            case Format.JSON:
                if self.schema is None or not self.keeps_rest:
                    return self.schema
                return Struct((*self.schema.fields, (REST, "string")))
            case Format.AVRO | Format.JSON_SCHEMA | Format.PROTOBUF:
                return None
            case _:
                assert_never(self.format)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredSchema:
    """A schema of a registry.

    Attributes:
        id: Schema id in the registry. Each payload of the schema begins with it.
        kind: The registry's name for the schema language, such as `AVRO`.
        text: The schema, with the schemas that it refers to.
        excess: The limit that the schema exceeds; empty within the limits. Then `text` is empty.
    """

    id: int
    kind: str
    text: str
    excess: str = ""

    def is_same(self, other: Self) -> bool:
        """Return whether another schema is equal, apart from its layout."""
        return self.kind == other.kind and _loaded(self.text) == _loaded(other.text)

    @property
    def is_final(self) -> bool:
        """Whether the text is final.

        It is not for a Protobuf schema that did not compile: a later compiler may accept it. The
        text of a schema that exceeds a limit is unknown.
        """
        if self.excess:
            return False
        return self.kind != Format.PROTOBUF.kind or _loaded(self.text) != self.text


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSpec:
    """The typed table of a pipeline: its path, the formats, and the quarantine.

    Attributes:
        key: How keys are decoded.
        value: How values are decoded.
        target: Path of the typed table, in the form of a pipeline's `target`.
        publish: Which landed records are decoded.
        registry: Connection of the schema registry. Formats without schema ids do not use it.
        widens: Whether `int` and `float` of a registry's schemas become `long` and `double`
            columns, so that a later schema may widen its fields.
        refused_schemas: Ids of schemas whose records go to the quarantine.
        rules: Conditions in Spark SQL over the decoded columns, by name. A row goes to the
            quarantine if a condition is false, but not if it is null.
        max_quarantined: The number of records of a decode's round that may always go to the
            quarantine.
        max_quarantined_percent: The percentage of a round's records that may go to the quarantine,
            if that is more than `max_quarantined`.
        upsert: The upsert table of the typed table; None if the pipeline has none.
        flattens: Whether the top-level fields of values are columns of the typed table.
    """

    key: PayloadSpec
    value: PayloadSpec
    target: str
    publish: PublishRule = PublishRule.CHECKED
    registry: str = DEFAULT_REGISTRY
    widens: bool = True
    refused_schemas: tuple[int, ...] = ()
    rules: tuple[tuple[str, str], ...] = ()
    max_quarantined: int = 100
    max_quarantined_percent: float = DEFAULT_QUARANTINE_PERCENT
    upsert: UpsertSpec | None = None
    flattens: bool = False

    @property
    def parts(self) -> Mapping[Part, PayloadSpec]:
        """How the key and the value of a record are decoded."""
        return {Part.KEY: self.key, Part.VALUE: self.value}

    @property
    def framed_parts(self) -> tuple[Part, ...]:
        """The parts of a record that begin with the schema id of a registry."""
        return tuple(part for part, spec in self.parts.items() if spec.format.has_schema_ids)

    @property
    def uses_python(self) -> bool:
        """Whether Spark's Python workers decode keys or values."""
        return any(spec.format.uses_python for spec in self.parts.values())

    @property
    def has_unions(self) -> bool:
        """Whether fields that begin with `UNION_MEMBER` are members of an Avro union."""
        return any(part.format is Format.AVRO for part in self.parts.values())

    @property
    def envelope(self) -> Envelope:
        """The structure around the content of a value."""
        return self.upsert.envelope if self.upsert else Envelope.NONE

    @property
    def quarantine_target(self) -> str:
        """Path of the quarantine table, beside the typed table."""
        return f"{self.target.rstrip('/')}_quarantine"

    @property
    def fingerprint(self) -> str:
        """Twelve hexadecimal digits over all settings that affect the decoded rows."""
        identity = {
            part: [
                str(spec.format),
                plain_type(spec.schema) if spec.schema else None,
                *(["rest"] if spec.keeps_rest else []),
            ]
            for part, spec in self.parts.items()
        }
        by_id = [self.registry, self.widens, self.refused_schemas] if self.framed_parts else []
        layout = ["flatten"] if self.flattens else []
        layout += [str(self.envelope)] if self.envelope is not Envelope.NONE else []
        text = json.dumps([identity, self.rules, *by_id, *layout], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def quarantine_limit(self, records: int) -> int:
        """Return how many records of a decode's round may go to the quarantine.

        Args:
            records: Number of records of the round.
        """
        return max(self.max_quarantined, int(records * self.max_quarantined_percent / 100))
