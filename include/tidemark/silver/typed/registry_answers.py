"""Answers of a schema registry about several schema ids, for drafts and for decoded payloads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from tidemark.core.errors import TidemarkError
from tidemark.silver.typed.schemas import SchemaStore
from tidemark.spec.decode import FRAME_BYTES, FRAME_MAGIC, RegisteredSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryAnswers:
    """The answers of a schema registry to the schema ids of sampled records.

    Attributes:
        connection: Connection id of the registry.
        schemas: The schemas by id; unknown ids are left out.
        problem: Why the registry returned not all of them; None if it answered every request.
    """

    connection: str
    schemas: Mapping[int, RegisteredSchema] = field(default_factory=dict)
    problem: TidemarkError | None = None


Registry = Callable[[Collection[int]], RegistryAnswers]
"""Returns the schemas of some ids. Never fails: an error is the `problem` of the answers."""


def leading_schema_ids(data: bytes) -> tuple[int, ...]:
    """Return the schema id that bytes seem to begin with, if any."""
    if len(data) < FRAME_BYTES or not data.startswith(FRAME_MAGIC):
        return ()
    return (int.from_bytes(data[len(FRAME_MAGIC) : FRAME_BYTES]),)


def with_stored_schemas(store: SchemaStore, registry: Registry) -> Registry:
    """Return a registry that answers with stored schemas, and requests only missing ones.

    It requests all schemas if the stored ones cannot be read.
    """

    def answers(ids: Collection[int]) -> RegistryAnswers:
        try:
            stored = store.stored(ids)
        except TidemarkError as unread:
            found = registry(ids)
            return replace(found, problem=found.problem or unread)
        found = registry(set(ids) - stored.keys())
        return replace(found, schemas={**found.schemas, **stored})

    return answers
