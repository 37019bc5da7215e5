"""Schemas from a registry with Confluent's API, such as Confluent's, Apicurio's and Karapace.

A connection stores all settings in its `extra`, under the names of confluent-kafka's client. Errors
never contain values: some are secrets, and a URL may contain one.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import httpx2
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import OAuthTokenError, SchemaRegistryError

from tidemark.core.errors import TidemarkError
from tidemark.kafka.errors import InvalidConnection
from tidemark.silver.typed.errors import RegistryFailure, RegistryRefused, RegistryUnavailable
from tidemark.silver.typed.formats.avro import with_references
from tidemark.silver.typed.registry_answers import RegistryAnswers
from tidemark.silver.typed.registry_protobuf import compiled
from tidemark.spec.decode import RegisteredSchema
from tidemark.spec.schema_limits import (
    MAX_CHARACTERS,
    MAX_REFERENCES,
    SchemaTooLarge,
    check_text,
    load_json,
)

_RULE = (
    "extra with `url` and other settings of confluent-kafka's SchemaRegistryClient, such as "
    "basic.auth.user.info or ssl.ca.location"
)
_DEFAULTS = {"timeout": 10, "max.retries": 2}
_NO_SUCH_SCHEMA = 40403
"""The API's code for an unknown id. Another 404 means another path, or another kind of server."""
_ID_END = 2**31
"""Ids are positive signed numbers of four bytes."""
_AVRO = "AVRO"
_IN_JSON = (_AVRO, "JSON")
_PROTOBUF = "PROTOBUF"
_BUSY = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}


class ConfluentRegistry:
    """One registry. The client requests each schema once.

    Args:
        connection: Id of the connection, for errors.
        extra: The `extra` of the connection.

    Raises:
        InvalidConnection: The client rejects the settings.
    """

    def __init__(self, connection: str, extra: Mapping[str, Any]) -> None:
        self._connection = connection
        # httpx2 logs whole URLs, and a URL may contain a password.
        logging.getLogger("httpx2").setLevel(logging.WARNING)
        try:
            _check_numbers(extra)
            # Host and port alone: a URL may contain a password.
            self._address = urlsplit(str(extra.get("url"))).netloc.rpartition("@")[2]
            self._client = SchemaRegistryClient({**_DEFAULTS, **extra})
        except (ValueError, TypeError, OSError):
            # Some messages of the client quote the URL.
            raise InvalidConnection.of_definition(
                connection=connection, rule=_RULE, seen=f"extra with {', '.join(sorted(extra))}"
            ) from None

    def schema(self, schema_id: int) -> RegisteredSchema | None:
        """See `SchemaRegistry.schema`."""
        if schema_id >= _ID_END:
            return None
        error: type[RegistryFailure]
        try:
            found = self._client.get_schema(schema_id)
            kind = found.schema_type or _AVRO
            text = self._text_of(found, kind)
        except SchemaTooLarge as large:
            return RegisteredSchema(id=schema_id, kind=kind, text="", excess=large.problem)
        except SchemaRegistryError as answer:
            if answer.error_code == _NO_SUCH_SCHEMA:
                return None
            error, reason = _failure(answer.http_status_code)
        except (httpx2.HTTPError, httpx2.InvalidURL, OAuthTokenError, OSError) as failure:
            error, reason = RegistryUnavailable, f"{type(failure).__name__} at {self._address}"
        except (ValueError, TypeError, KeyError, AttributeError):
            error, reason = RegistryRefused, "its answer is not a schema registry's"
        else:
            return RegisteredSchema(id=schema_id, kind=kind, text=text)
        raise error(connection=self._connection, schema_id=schema_id, reason=reason)

    def _text_of(self, schema: Schema, kind: str) -> str:
        """Return the text of a schema, with the schemas that it refers to.

        Raises:
            SchemaTooLarge: The schema exceeds a limit.
        """
        text = _storable(schema.schema_str)
        check_text(text)
        if kind in _IN_JSON:
            load_json(text)
        if schema.references and kind == _AVRO:
            return with_references(text, self._references(schema).values())
        return compiled(text, self._references(schema)) if kind == _PROTOBUF else text

    def _references(self, schema: Schema) -> Mapping[str, str]:
        """Return the texts of all schemas that a schema refers to by name, direct ones first.

        The first schema of a name counts: a later one may be an older version.

        Raises:
            SchemaTooLarge: The schemas are too many, or too large together.
        """
        texts: dict[str, str] = {}
        waiting, size = deque([schema]), len(str(schema.schema_str))
        while waiting:
            for each in waiting.popleft().references or ():
                name = _storable(each.name)
                if name in texts:
                    continue
                if len(texts) == MAX_REFERENCES:
                    raise SchemaTooLarge(
                        f"the schema refers to more than {MAX_REFERENCES:,} schemas"
                    )
                place = (str(each.subject), int(each.version))
                other = self._client.get_version(*place, deleted=True).schema
                texts[name] = _storable(other.schema_str or "")
                size += len(texts[name])
                if size > MAX_CHARACTERS:
                    raise SchemaTooLarge(
                        f"the schema and its references have more than "
                        f"{MAX_CHARACTERS:,} characters"
                    )
                waiting.append(other)
        return texts


def _storable(text: object) -> str:
    """Return a text of an answer; unpaired surrogates, which no file stores, become `?`."""
    return str(text).encode(errors="replace").decode()


def registry_answers(
    connection: str, settings: Callable[[], Mapping[str, Any]], ids: Collection[int]
) -> RegistryAnswers:
    """Return the schemas of some ids. An error ends the requests, and is part of the answers.

    Args:
        connection: Id of the connection.
        settings: Returns the `extra` of the connection.
        ids: Schema ids.
    """
    found: dict[int, RegisteredSchema] = {}
    if not ids:
        return RegistryAnswers(connection=connection)
    try:
        registry = ConfluentRegistry(connection, settings())
        for schema_id in sorted(ids):
            schema = registry.schema(schema_id)
            if schema is not None:
                found[schema_id] = schema
    except TidemarkError as problem:
        return RegistryAnswers(connection=connection, schemas=found, problem=problem)
    return RegistryAnswers(connection=connection, schemas=found)


def _failure(status: int) -> tuple[type[RegistryFailure], str]:
    """Return the error and the reason for a status of HTTP."""
    reason = f"HTTP {status}"
    if status == HTTPStatus.NOT_FOUND:
        reason += ": the url may lack a path, such as /apis/ccompat/v7 of Apicurio"
    is_passing = status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _BUSY
    return RegistryUnavailable if is_passing else RegistryRefused, reason


def _check_numbers(extra: Mapping[str, Any]) -> None:
    """Check numbers that the client would use without a check at the first request."""
    for name, least in (("timeout", 1), ("max.retries", 0)):
        number = extra.get(name, least)
        if not isinstance(number, int) or isinstance(number, bool) or number < least:
            raise ValueError(f"{name} is not a whole number of at least {least}")
