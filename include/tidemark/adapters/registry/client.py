"""Schemas by their ids, from a registry with Confluent's API: its own, Apicurio's, Karapace.

A connection keeps everything in its `extra`, in the names of confluent-kafka's client. Values
never appear in an error: some are secrets, and a URL may hold one.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import httpx2
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import OAuthTokenError, SchemaRegistryError

from tidemark.core.avro import with_references
from tidemark.core.decoding import RegisteredSchema
from tidemark.errors import InvalidConnection, RegistryRefused, RegistryUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

_RULE = (
    "extra with `url`, and what else confluent-kafka's SchemaRegistryClient takes, such as "
    "basic.auth.user.info or ssl.ca.location"
)
_DEFAULTS = {"timeout": 10}
_AVRO = "AVRO"
_BUSY = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}


class ConfluentRegistry:
    """One registry. The client asks once for each schema that it is asked for.

    Args:
        connection: The connection's id, for errors.
        extra: Its `extra`.

    Raises:
        InvalidConnection: The client cannot use it.
    """

    def __init__(self, connection: str, extra: Mapping[str, Any]) -> None:
        self._connection = connection
        try:
            self._client = SchemaRegistryClient({**_DEFAULTS, **extra})
        except (ValueError, TypeError, OSError):
            # Some of the client's own words quote the URL.
            raise InvalidConnection(
                connection=connection, rule=_RULE, problem=f"extra with {', '.join(sorted(extra))}"
            ) from None

    def schema(self, schema_id: int) -> RegisteredSchema | None:
        """A schema with all that it refers to; None if there is none of this id.

        Raises:
            RegistryUnavailable, RegistryRefused
        """
        try:
            found = self._client.get_schema(schema_id)
            kind = found.schema_type or _AVRO
            text = found.schema_str or ""
            if found.references and kind == _AVRO:
                text = with_references(text, self._references(found, set()))
        except SchemaRegistryError as answer:
            if answer.http_status_code == HTTPStatus.NOT_FOUND:
                return None
            self._fail(schema_id, answer)
        except (httpx2.HTTPError, httpx2.InvalidURL, OAuthTokenError, OSError) as failure:
            raise RegistryUnavailable(
                connection=self._connection, schema_id=schema_id, reason=type(failure).__name__
            ) from None
        except (ValueError, TypeError, KeyError, AttributeError):
            raise RegistryRefused(
                connection=self._connection,
                schema_id=schema_id,
                reason="an answer that is none of a schema registry's",
            ) from None
        return RegisteredSchema(id=schema_id, kind=kind, text=text)

    def _references(self, schema: Schema, seen: set[tuple[str, int]]) -> Iterator[str]:
        """The schemas that one refers to, and those that they refer to."""
        for each in schema.references or ():
            place = (str(each.subject), int(each.version))
            if place in seen:
                continue
            seen.add(place)
            other = self._client.get_version(*place, deleted=True).schema
            yield other.schema_str or ""
            yield from self._references(other, seen)

    def _fail(self, schema_id: int, answer: SchemaRegistryError) -> None:
        status = answer.http_status_code
        reason = f"HTTP {status}"
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _BUSY:
            raise RegistryUnavailable(
                connection=self._connection, schema_id=schema_id, reason=reason
            ) from None
        raise RegistryRefused(
            connection=self._connection, schema_id=schema_id, reason=reason
        ) from None
