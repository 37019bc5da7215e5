"""A Spark session for tests, with the settings and the jars that every job gets."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidemark.spark.sessions import open_application
from tidemark.spark.settings import LOCAL_SETTINGS, submit_settings
from tidemark.spec.layout import Layout

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.lake import Lake
    from tidemark.local.broker import BrokerStatus


@pytest.fixture(scope="session")
def spark(layout: Layout) -> Iterator[SparkSession]:
    """One local session of two threads for all tests of a run."""
    settings = submit_settings(
        layout,
        {
            "spark.master": "local[2]",
            **LOCAL_SETTINGS,
            "spark.driver.memory": "1g",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": "2",
            # The tests run many different queries over a few rows. Generating and compiling Java
            # code for each takes a third of the session's CPU time. The Spark Connect server of the
            # tests and all jobs by spark-submit do generate code.
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        },
    )
    from pyspark.sql import SparkSession

    assert SparkSession.getActiveSession() is None, "a test opened Spark without this fixture"
    # Settings from before the JVM's start become command-line options, even the class path.
    session = open_application("tidemark-tests", settings)
    yield session
    session.stop()
    # At the end of the interpreter, py4j would log closed connections to a closed stream.
    logging.getLogger("py4j").setLevel(logging.ERROR)


@pytest.fixture
def lake(spark: SparkSession, broker: BrokerStatus, tmp_path: Path) -> Lake:
    """A lake of this test's own; `lake.of(topic)` is a pipeline over a topic."""
    from tests.support.lake import Lake

    connection = {"bootstrap.servers": broker.bootstrap}
    return Lake(session=spark, root=tmp_path, connection=connection)
