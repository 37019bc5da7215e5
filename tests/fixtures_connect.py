"""One Spark Connect server for all tests of a process that do not stop or configure it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemark.adapters.spark.settings import submit_settings
from tidemark.core.layout import Layout
from tidemark.spark.engine import Server
from tidemark.spark.server import SparkServer


@pytest.fixture(scope="session")
def connect_home(layout: Layout, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a server that runs."""
    home = tmp_path_factory.mktemp("spark")
    try:
        _server(layout, home).start(lambda _: None)
        yield home
    finally:
        _server(layout, home).stop()


@pytest.fixture(scope="session")
def connect_server(layout: Layout, connect_home: Path) -> Server:
    """Its address and token."""
    found = _server(layout, connect_home).running()
    assert found is not None
    return found


def _server(layout: Layout, home: Path) -> SparkServer:
    settings = {
        "spark.master": "local[2]",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
    }
    return SparkServer(home, {}, submit_settings(layout, settings))
