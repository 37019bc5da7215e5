"""`tidemark ingest` when Spark fails: the cause in plain words, and a documented exit code."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import TopicFactory
from tests.support.crashes import Running, Site, wait_until
from tests.support.transactions import produce_values
from tidemark.adapters.broker.embedded import BrokerStatus
from tidemark.errors import ExitCode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.e2e]


def jvms(running: Running) -> list[int]:
    """JVMs of spark-submit, without the launcher that puts their command line together."""
    return [
        pid
        for pid in running.find("org.apache.spark.deploy.SparkSubmit")
        if pid not in running.find("org.apache.spark.launcher.Main")
    ]


def test_a_killed_jvm_is_named_and_ends_in_a_documented_exit_code(
    broker: BrokerStatus, topic: TopicFactory, tmp_path: Path, spark: SparkSession
) -> None:
    """As the out-of-memory killer does it."""
    site = Site(home=tmp_path, bootstrap=broker.bootstrap, topic=topic(), session=spark)
    produce_values(broker.bootstrap, site.topic, 3)
    with site.started(site.tidemark("ingest", "events", "--json")) as running:
        wait_until(lambda: jvms(running))
        (jvm,) = jvms(running)
        os.kill(jvm, signal.SIGKILL)
        code = running.process.wait(60)
        printed = running.log.read_text()
    assert code == ExitCode.TRANSIENT, printed
    (record,) = json.loads(printed[printed.index("\n[") :])
    assert (record["error"], record["retryable"]) == ("EngineStopped", True)
    assert record["what"] == "the Spark process was killed by signal 9, SIGKILL (out of memory?)"
