"""One Spark Connect server for all tests of a run that do not stop or configure it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tidemark.adapters.spark.settings import submit_settings
from tidemark.core.layout import Layout
from tidemark.spark.engine import Server
from tidemark.spark.server import SparkServer


@pytest.fixture(scope="session")
def connect_server(layout: Layout, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of this test process."""
    settings = submit_settings(
        layout,
        {
            "spark.master": "local[2]",
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": "2",
        },
    )
    running = SparkServer(tmp_path_factory.mktemp("spark"), {}, settings)
    try:
        running.start(lambda _: None)
        found = running.running()
        assert found is not None
        yield found
    finally:
        running.stop()
