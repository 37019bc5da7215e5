"""Airflow's connections as the environment variables that Tidemark reads."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from tidemark.app.app import App
from tidemark.app.connections import SPARK_CONNECTION, connection_variable
from tidemark.core.errors import SetupError
from tidemark.kafka.errors import UnknownConnection
from tidemark.spark.engine import Engine, Server, Submit

if TYPE_CHECKING:
    from airflow.sdk import Connection

_BINARY = re.compile(r"spark\d?-submit")
_SETTINGS = {
    "queue": "spark.yarn.queue",
    "namespace": "spark.kubernetes.namespace",
    "principal": "spark.kerberos.principal",
}
"""Fields of a connection's extra, and the Spark setting of each field."""


def connection(conn_id: str) -> Connection:
    """Return a connection from the secrets backends of this Airflow, or raise UnknownConnection."""
    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        raise UnknownConnection(connection=conn_id) from None


def kafka_environment(*pipelines: str) -> dict[str, str]:
    """Return the pipelines' Kafka connections as environment variables, with secrets.

    The result omits an undefined connection: only the pipelines that need it are refused. If no
    connection is defined, the function raises UnknownConnection.
    """
    specs = App.from_environment().valid_specs(pipelines)
    # Landed records are decoded without Kafka.
    variables, missing = _variables({spec.connection for spec in specs if spec.reads_kafka})
    if missing and not variables:
        raise missing[-1]
    return variables


def connected_app(*pipelines: str) -> App:
    """Return the app with the connections of some tables: to Kafka, or to a schema registry.

    Raises UnknownConnection if none of the Kafka connections is defined.
    """
    typed = [spec for spec in App.from_environment().valid_specs(pipelines) if spec.is_typed]
    registries = {spec.registry for spec in typed if spec.registry}
    return App.from_environment(kafka_environment(*pipelines) | _variables(registries)[0])


def _variables(conn_ids: Iterable[str]) -> tuple[dict[str, str], list[UnknownConnection]]:
    """Return the defined connections as environment variables, and errors of the others."""
    variables, missing = {}, []
    for conn_id in sorted(conn_ids):
        try:
            variables[connection_variable(conn_id)] = connection(conn_id).as_json()
        except UnknownConnection as unknown:
            missing.append(unknown)
    return variables, missing


def checked_engine(*pipelines: str, spark_connection: str = SPARK_CONNECTION) -> Engine:
    """Return the engine of a Spark connection; check a server for the pipelines.

    Tasks call this function before they record a plan. A plan for an unusable server would stay
    open. Raises the errors of `spark_engine` and `Engines.check`.
    """
    engine = spark_engine(spark_connection)
    if isinstance(engine, Server):
        app = App.from_environment()
        app.engines.check(engine, app.valid_specs(pipelines))
    return engine


def spark_engine(conn_id: str) -> Engine:
    """Return the engine of a connection: type `spark` is spark-submit, `spark_connect` a server.

    A connection to the server of this home needs no token.

    Raises:
        EngineUnsuitable: Another version of this package started the server of this home.
        UnknownConnection: No backend defines it. Airflow's own hook would submit to YARN instead.
        SetupError: The address is invalid, or the connection's program is not spark-submit.
    """
    conn = connection(conn_id)
    if conn.conn_type == "spark_connect":
        server = Server.parse(SparkConnectHook(conn_id).get_connection_url())
        return App.from_environment().engines.with_own_token(server)
    # This is how Airflow's hook reads a connection. The host of a connection from a form may be a
    # whole master URL. The type of a connection from a URI is the scheme.
    whole = conn.conn_type == "spark" and ("://" in (conn.host or "") or not conn.port)
    master = conn.host or "" if whole else f"{conn.conn_type}://{conn.host or ''}"
    extra = conn.extra_dejson
    binary = extra.get("spark-binary", "spark-submit")
    if not _BINARY.fullmatch(binary):
        raise SetupError(
            subject=f"Connection {conn_id!r} names a program other than spark-submit.",
            needed="spark-binary such as spark-submit or spark3-submit",
            seen=repr(binary),
            advice="Correct spark-binary in the connection's extra field.",
        )
    return Submit(
        master=f"{master}:{conn.port}" if conn.port else master,
        binary=binary,
        settings={setting: extra[name] for name, setting in _SETTINGS.items() if extra.get(name)},
    )
