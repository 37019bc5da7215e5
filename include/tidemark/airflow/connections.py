"""Airflow's connections: to Kafka, to schema registries and to Spark."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from tidemark.app.app import App
from tidemark.app.connections import SPARK_CONNECTION
from tidemark.core.errors import SetupError
from tidemark.kafka.errors import InvalidConnection
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
    """Return a connection from the secrets backends of this Airflow, or raise InvalidConnection."""
    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        raise InvalidConnection.of_undefined(conn_id) from None


def airflow_app() -> App:
    """Return the app of a task, with the connections of this Airflow, each read once."""

    @cache
    def find(conn_id: str) -> str:
        return connection(conn_id).as_json()

    return App(environ=dict(os.environ), find_connection=find)


def check_connections(app: App, pipelines: Iterable[str]) -> None:
    """Raise InvalidConnection if none of the Kafka connections of some tables is defined.

    An undefined connection beside a defined one refuses only the pipelines that need it.
    """
    # Landed records are decoded without Kafka.
    specs = [spec for spec in app.valid_specs(pipelines) if spec.reads_kafka]
    needed = {spec.connection for spec in specs}
    if needed and not app.connections.variables(needed):
        raise InvalidConnection.of_undefined(max(needed))


def checked_engine(
    app: App, pipelines: Iterable[str], spark_connection: str = SPARK_CONNECTION
) -> Engine:
    """Return the engine of a Spark connection; check a server for the pipelines.

    Tasks call this function before they record a plan. A plan for an unusable server would stay
    open. Raises the errors of `spark_engine` and `Engines.check`.
    """
    engine = spark_engine(app, spark_connection)
    if isinstance(engine, Server):
        app.engines.check(engine, app.valid_specs(pipelines))
    return engine


def spark_engine(app: App, conn_id: str) -> Engine:
    """Return the engine of a connection: type `spark` is spark-submit, `spark_connect` a server.

    A connection to the server of this home needs no token.

    Raises:
        SetupError: Another version of this package started the server of this home.
        InvalidConnection: No backend defines it. Airflow's own hook would submit to YARN instead.
        SetupError: The address is invalid, or the connection's program is not spark-submit.
    """
    conn = connection(conn_id)
    if conn.conn_type == "spark_connect":
        server = Server.parse(SparkConnectHook(conn_id).get_connection_url())
        return app.engines.with_own_token(server)
    # This is how Airflow's hook reads a connection. The host of a connection from a form may be a
    # whole master URL. The type of a connection from a URI is the scheme.
    whole = conn.conn_type == "spark" and ("://" in (conn.host or "") or not conn.port)
    master = conn.host or "" if whole else f"{conn.conn_type}://{conn.host or ''}"
    extra = conn.extra_dejson
    binary = extra.get("spark-binary", "spark-submit")
    if not _BINARY.fullmatch(binary):
        raise SetupError(
            finding=f"Connection {conn_id!r} names a program other than spark-submit.",
            needed="spark-binary such as spark-submit or spark3-submit",
            seen=repr(binary),
            advice="Correct spark-binary in the connection's extra field.",
        )
    return Submit(
        master=f"{master}:{conn.port}" if conn.port else master,
        binary=binary,
        settings={setting: extra[name] for name, setting in _SETTINGS.items() if extra.get(name)},
    )
