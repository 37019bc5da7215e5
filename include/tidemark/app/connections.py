"""Connections to Kafka, schema registries and Spark, in Airflow's JSON format."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemark.core.errors import SetupError, TidemarkError
from tidemark.kafka.errors import EmbeddedBrokerStopped, InvalidConnection
from tidemark.spark.engine import Server

if TYPE_CHECKING:
    from tidemark.silver.typed.registry_answers import Registry, RegistryAnswers
    from tidemark.spec.model import PipelineSpec

LOCAL_CONNECTION = "kafka_default"
"""Connection id of the embedded broker, unless the environment defines it."""

_KAFKA_PORT = 9092
"""Port of a bootstrap server without one, as in librdkafka."""

SPARK_CONNECTION = "spark_default"
"""Connection id of Spark in Airflow."""


@dataclass(frozen=True)
class Connections:
    """The connections of a home. Definitions contain secrets: never log them.

    Attributes:
        find: Returns the definition of a connection as JSON; None if the connection is undefined.
            If it raises InvalidConnection instead, the embedded broker is not used.
        local_bootstrap: Returns the address of the embedded broker; None while it does not run.
    """

    find: Callable[[str], str | None]
    local_bootstrap: Callable[[], str | None]

    def definition(self, connection: str) -> str:
        """Return the definition of a connection.

        Raises:
            InvalidConnection: The connection is undefined.
            EmbeddedBrokerStopped: The embedded broker, the default, does not run.
        """
        text = self.find(connection)
        if text is not None:
            return text
        if connection != LOCAL_CONNECTION:
            raise InvalidConnection.of_undefined(connection)
        bootstrap = self.local_bootstrap()
        if bootstrap is None:
            raise EmbeddedBrokerStopped.of_default(connection)
        return kafka_connection(bootstrap)

    def kafka_config(self, connection: str) -> dict[str, Any]:
        """Return a Kafka connection as librdkafka configuration; raises the errors of `extra`."""
        from tidemark.kafka.options import client_config

        return client_config(connection, self.extra(connection, "bootstrap.servers"))

    def embedded_broker_config(self) -> dict[str, Any]:
        """Return the configuration of this home's embedded broker, for programs that write samples.

        Raises:
            EmbeddedBrokerStopped: The embedded broker does not run.
            SetupError: The environment defines the broker's connection as another cluster.
        """
        config = self.kafka_config(LOCAL_CONNECTION)
        if self.find(LOCAL_CONNECTION) is None:
            return config
        bootstrap = self.local_bootstrap()
        own = frozenset(bootstrap.split(",")) if bootstrap else frozenset()
        addresses = self.addresses(LOCAL_CONNECTION)
        if addresses != own:
            raise SetupError(
                finding=f"Connection {LOCAL_CONNECTION} is not the embedded broker of this home.",
                needed=f"{bootstrap}, the broker of this home"
                if bootstrap
                else "the embedded broker of this home, which is not running",
                seen=", ".join(sorted(addresses)),
                advice=f"Unset {connection_variable(LOCAL_CONNECTION)}, and start the embedded "
                "broker: `tidemark broker start`. To write samples to that cluster, name the "
                f"connection: `tidemark sample produce NAME --connection {LOCAL_CONNECTION}`.",
            )
        return config

    def addresses(self, connection: str) -> frozenset[str]:
        """Return the bootstrap servers of a Kafka connection as a set."""
        return frozenset(self.bootstrap_servers(connection))

    def bootstrap_servers(self, connection: str) -> tuple[str, ...]:
        """Return the bootstrap servers of a Kafka connection in its order, as `host:port`.

        Raises:
            InvalidConnection: As `kafka_config`.
        """
        entries = str(self.kafka_config(connection)["bootstrap.servers"]).split(",")
        hosts = (entry.strip().rpartition("://")[2].lower() for entry in entries)
        return tuple(host if ":" in host else f"{host}:{_KAFKA_PORT}" for host in hosts)

    def extra(self, connection: str, key: str) -> Mapping[str, Any]:
        """Return the field `extra` of a connection.

        Args:
            connection: Connection id.
            key: A key that the field should have, for the message of InvalidConnection.
        """
        text = self.definition(connection)
        try:
            extra = json.loads(text)["extra"]
            parsed = json.loads(extra) if isinstance(extra, str) else extra
            if not isinstance(parsed, dict):
                raise TypeError("extra is not a mapping")
        except (ValueError, KeyError, TypeError):
            # The original error would quote the value, which may contain a password.
            raise InvalidConnection.of_definition(
                connection=connection,
                rule=f'JSON such as {{"conn_type": "generic", "extra": {{"{key}": "…"}}}}',
                seen="a definition in another form",
            ) from None
        return parsed

    def problems(self, spec: PipelineSpec) -> list[TidemarkError]:
        """Return an error for each connection of a pipeline that is undefined or malformed.

        A stopped embedded broker does not count.
        """
        wanted = {spec.connection: "bootstrap.servers"}
        if spec.registry:
            wanted[spec.registry] = "url"
        found: list[TidemarkError] = []
        for connection, key in wanted.items():
            try:
                self.extra(connection, key)
            except EmbeddedBrokerStopped:
                continue
            except InvalidConnection as problem:
                found.append(problem)
        return found

    def registry_answers(self, connection: str) -> Registry:
        """Return a function that requests schemas from a registry, for drafts of specs."""

        def request(ids: Collection[int]) -> RegistryAnswers:
            from tidemark.silver.typed.registry import registry_answers

            return registry_answers(connection, lambda: self.extra(connection, "url"), ids)

        return request

    def variables(self, connections: Iterable[str]) -> dict[str, str]:
        """Return the environment variables of those connections that are defined."""
        found = {}
        for connection in sorted(set(connections)):
            with suppress(InvalidConnection):
                found[connection_variable(connection)] = self.definition(connection)
        return found


def connection_variable(connection: str) -> str:
    """Return the environment variable that defines a connection, as Airflow names it."""
    return f"AIRFLOW_CONN_{connection.upper()}"


def kafka_connection(bootstrap: str) -> str:
    """Return a Kafka connection without security, in Airflow's JSON format."""
    return json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": bootstrap}})


def spark_connection(server: Server) -> str:
    """Return a connection to the Spark Connect server of a home, in Airflow's JSON format.

    The connection contains no token: tasks read the token file of the home.
    """
    return json.dumps({"conn_type": "spark_connect", "host": server.host, "port": server.port})
