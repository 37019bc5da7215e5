"""Payloads decoded with the schemas of a registry, for commands that show records of a topic."""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from tidemark.core.errors import TidemarkError
from tidemark.core.plain import payload_value
from tidemark.core.record import LogRecord
from tidemark.silver.typed.payload_values import MalformedPayload, decoded_value
from tidemark.silver.typed.registry_answers import Registry, leading_schema_ids
from tidemark.spec.decode import RegisteredSchema
from tidemark.spec.fields import UnsupportedSchema

_MOST_SCHEMAS = 50
"""Maximum number of schemas to request: bytes of another format can look like many ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedPayload:
    """A payload whose schema the registry has.

    Attributes:
        schema: The schema.
        value: The decoded value as JSON; None for a malformed payload.
        is_malformed: Whether the bytes do not match the schema.
    """

    schema: RegisteredSchema
    value: Any
    is_malformed: bool

    @property
    def title(self) -> str:
        """The format and the schema, such as `AVRO of schema 7`."""
        return f"{self.schema.kind} of schema {self.schema.id}"

    def as_record(self) -> dict[str, Any]:
        """Return the payload as plain values, for `--json`."""
        return {
            "schema_id": self.schema.id,
            "format": self.schema.kind,
            "malformed": self.is_malformed,
            "value": self.value,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadDecoder:
    """Decodes payloads that begin with the id of a known schema.

    Attributes:
        schemas: The schemas by id.
        problem: Why the registry did not return all schemas; None if it answered every request.
    """

    schemas: Mapping[int, RegisteredSchema]
    problem: TidemarkError | None

    @classmethod
    def of(cls, records: Iterable[LogRecord], registry: Registry) -> Self:
        """Return a decoder for the keys and values of some records."""
        payloads = (each for record in records for each in (record.key, record.value))
        ids = Counter(found for each in payloads for found in leading_schema_ids(each or b""))
        answers = registry([each for each, _ in ids.most_common(_MOST_SCHEMAS)])
        return cls(schemas=answers.schemas, problem=answers.problem)

    def decode(self, payload: bytes | None) -> DecodedPayload | None:
        """Return a decoded payload; None without a known schema that has a column."""
        for each in leading_schema_ids(payload or b""):
            schema = self.schemas.get(each)
            if schema is None:
                return None
            try:
                value = payload_value(decoded_value(payload or b"", schema), _base64)
            except UnsupportedSchema:
                return None
            except MalformedPayload:
                return DecodedPayload(schema=schema, value=None, is_malformed=True)
            return DecodedPayload(schema=schema, value=value, is_malformed=False)
        return None


def _base64(payload: bytes) -> str:
    return b64encode(payload).decode()
