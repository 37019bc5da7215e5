"""Airflow's connections, handed on as the environment variables that Tidemark reads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from tidemark.errors import UnknownConnection
from tidemark.wiring import App, connection_variable

if TYPE_CHECKING:
    from airflow.sdk import Connection


def connection(conn_id: str) -> Connection:
    """A connection, from wherever this Airflow keeps its connections.

    Raises:
        UnknownConnection: No backend has it.
    """
    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        raise UnknownConnection(connection=conn_id) from None


def kafka_environment(*pipelines: str) -> dict[str, str]:
    """The pipelines' Kafka connections as environment variables. Holds secrets: never log it.

    One of several that no backend has is left out: only the pipelines that need it are refused.

    Raises:
        UnknownPipeline, SpecError
        UnknownConnection: No backend has any of them.
    """
    app = App.from_environment()
    variables = {}
    missing: UnknownConnection | None = None
    specs = [app.spec(pipeline) for pipeline in pipelines]
    # What has landed is decoded without Kafka.
    for conn_id in sorted({spec.connection for spec in specs if spec.reads_kafka}):
        try:
            variables[connection_variable(conn_id)] = connection(conn_id).as_json()
        except UnknownConnection as unknown:
            missing = unknown
    if missing and not variables:
        raise missing
    return variables


def registry_environment(pipeline: str) -> dict[str, str]:
    """The connection of the registry that a pipeline's records are written with, if they are.

    It holds secrets: never log it.

    Raises:
        UnknownPipeline, SpecError
        UnknownConnection: No backend has it.
    """
    decode = App.from_environment().spec(pipeline).decode
    if decode is None or not decode.framed:
        return {}
    return {connection_variable(decode.registry): connection(decode.registry).as_json()}


def connected_app(*pipelines: str) -> App:
    """Tidemark with the pipelines' Kafka connections from Airflow.

    Raises:
        UnknownPipeline, SpecError, UnknownConnection
    """
    return App.from_environment(extra=kafka_environment(*pipelines))


@contextmanager
def exported(variables: Mapping[str, str]) -> Iterator[None]:
    """Give the processes that start in this block more environment variables."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
