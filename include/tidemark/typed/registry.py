"""Schemas by their ids, from a registry with Confluent's API: its own, Apicurio's, Karapace.

A connection keeps everything in its `extra`, in the names of confluent-kafka's client. Values
never appear in an error: some are secrets, and a URL may hold one.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import httpx2
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import OAuthTokenError, SchemaRegistryError

from tidemark.kafka.errors import InvalidConnection
from tidemark.spec.decode import RegisteredSchema
from tidemark.typed.errors import RegistryRefused, RegistryUnavailable
from tidemark.typed.formats.avro import with_references
from tidemark.typed.registry_protobuf import compiled

if TYPE_CHECKING:
    from collections.abc import Iterator

_RULE = (
    "extra with `url`, and what else confluent-kafka's SchemaRegistryClient takes, such as "
    "basic.auth.user.info or ssl.ca.location"
)
_DEFAULTS = {"timeout": 10, "max.retries": 2}
_NO_SUCH_SCHEMA = 40403
"""The API's own code: any other 404 is of something that is no registry, or of another place."""
_ID_END = 2**31
"""Ids are positive numbers of four bytes."""
_AVRO = "AVRO"
_IN_JSON = (_AVRO, "JSON")
_PROTOBUF = "PROTOBUF"
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
        # It tells whole URLs, and a URL may hold a password.
        logging.getLogger("httpx2").setLevel(logging.WARNING)
        try:
            _check_numbers(extra)
            self._client = SchemaRegistryClient({**_DEFAULTS, **extra})
        except (ValueError, TypeError, OSError):
            # Some of the client's own words quote the URL.
            raise InvalidConnection(
                connection=connection, rule=_RULE, seen=f"extra with {', '.join(sorted(extra))}"
            ) from None

    def schema(self, schema_id: int) -> RegisteredSchema | None:
        """A schema with all that it refers to; None if there is none of this id.

        Raises:
            RegistryUnavailable, RegistryRefused
        """
        if schema_id >= _ID_END:
            return None
        try:
            found = self._client.get_schema(schema_id)
            kind = found.schema_type or _AVRO
            text = str(found.schema_str)
            if kind in _IN_JSON:
                json.loads(text)
            if found.references and kind == _AVRO:
                others = (each for _, each in self._references(found, set()))
                text = with_references(text, others)
            if kind == _PROTOBUF:
                text = compiled(text, dict(self._references(found, set())))
        except SchemaRegistryError as answer:
            if answer.error_code == _NO_SUCH_SCHEMA:
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

    def _references(self, schema: Schema, seen: set[str]) -> Iterator[tuple[str, str]]:
        """The schemas that one refers to, by their names there, before those that they refer to.

        Of two with one name it is the first that counts: another may still refer to an older one.
        """
        found = []
        for each in schema.references or ():
            name = str(each.name)
            if name in seen:
                continue
            seen.add(name)
            place = (str(each.subject), int(each.version))
            other = self._client.get_version(*place, deleted=True).schema
            yield name, other.schema_str or ""
            found.append(other)
        for other in found:
            yield from self._references(other, seen)

    def _fail(self, schema_id: int, answer: SchemaRegistryError) -> None:
        status = answer.http_status_code
        reason = f"HTTP {status}"
        if status == HTTPStatus.NOT_FOUND:
            reason += ": the url may lack a part, such as /apis/ccompat/v7 of Apicurio"
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _BUSY:
            raise RegistryUnavailable(
                connection=self._connection, schema_id=schema_id, reason=reason
            ) from None
        raise RegistryRefused(
            connection=self._connection, schema_id=schema_id, reason=reason
        ) from None


def _check_numbers(extra: Mapping[str, Any]) -> None:
    """What the client would stumble over at the first request."""
    for name, least in (("timeout", 1), ("max.retries", 0)):
        number = extra.get(name, least)
        if not isinstance(number, int) or isinstance(number, bool) or number < least:
            raise ValueError(f"{name}: a whole number from {least} on")
