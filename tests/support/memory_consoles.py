"""A console over a log in memory and tables in files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

from fastapi import FastAPI
from starlette.testclient import TestClient

from tests.support.consoles import Admits, SomeRights, app_of
from tests.support.file_lake import FileLake
from tidemark.app.app import App
from tidemark.bronze.ingest.protocols import TopicReader
from tidemark.console.guard import Viewer
from tidemark.console.server import build_app
from tidemark.ops.report.cluster import ClusterReader, ClusterReport

_Part = TypeVar("_Part")
_ADDRESS = "127.0.0.1:1"
"""Address of the connection, which the log in memory replaces."""


@dataclass(frozen=True)
class MemoryApp(App):
    """An app whose pipelines read a log in memory.

    Attributes:
        lake: The log and its payloads.
        watermarks: Reads watermarks; None to read those of the lake.
        cluster_reader: Describes the cluster of each connection; None to read Kafka.
    """

    lake: FileLake | None = None
    watermarks: TopicReader | None = None
    cluster_reader: ClusterReader | None = None

    def cluster(self, connection: str, timeout_seconds: float = 30.0) -> ClusterReport:
        if self.cluster_reader is None:
            return super().cluster(connection, timeout_seconds)
        specs = tuple(self.specs.values())
        return ClusterReport(connection, self.cluster_reader, specs, lambda _: frozenset())

    def wrap_adapter(self, name: str, part: _Part, /) -> _Part:
        if self.lake is not None and name == "watermarks":
            return cast("_Part", self.watermarks or self.lake.watermarks)
        if self.lake is not None and name == "log_reader":
            return cast("_Part", self.lake.log_reader)
        return part


def memory_app(
    home: Path,
    lake: FileLake,
    project: Path | None = None,
    watermarks: TopicReader | None = None,
) -> Callable[[], MemoryApp]:
    """Return a loader of the app of a home.

    Args:
        home: The home.
        lake: Its log.
        project: Folder with `include/expectations`; None for the folder of this repository.
        watermarks: As in `MemoryApp`.
    """
    environ = {**app_of(home, _ADDRESS)().environ}
    if project:
        environ["TIDEMARK_PROJECT"] = str(project)
    return lambda: MemoryApp(environ=environ, lake=lake, watermarks=watermarks)


def memory_web(
    load: Callable[[], App], viewer: Viewer | None = None, airflow: str | None = None
) -> FastAPI:
    """Return a console whose requests have one viewer, by default with all rights.

    `airflow` is as in `build_app`.
    """
    return build_app(load, Admits(viewer or SomeRights()), airflow=airflow)


def memory_console(
    home: Path, lake: FileLake, viewer: Viewer | None = None, project: Path | None = None
) -> TestClient:
    """Return a client of a console; see `memory_app` and `memory_web`."""
    return TestClient(memory_web(memory_app(home, lake, project), viewer))
