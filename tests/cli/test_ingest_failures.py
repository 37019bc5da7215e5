"""Failures of Spark in `tidemark ingest`: the cause and the exit code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from tests.conftest import TopicFactory
from tests.support.crashes import Running, Site
from tests.support.transactions import produce_values
from tests.support.waiting import wait_until
from tidemark.core.errors import ExitCode
from tidemark.local.broker import BrokerStatus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.e2e]


def jvm(running: Running) -> psutil.Process | None:
    """Return the JVM of spark-submit, which replaces the script; None before that."""
    children = psutil.Process(running.process.pid).children()
    return next((child for child in children if child.name() == "java"), None)


@pytest.fixture
def site(broker: BrokerStatus, topic: TopicFactory, tmp_path: Path, spark: SparkSession) -> Site:
    """A home with pipeline `events` and three records."""
    site = Site(home=tmp_path, bootstrap=broker.bootstrap, topic=topic(), session=spark)
    produce_values(broker.bootstrap, site.topic, 3)
    return site


def ingest(site: Site, settings: str) -> tuple[dict[str, Any], list[str]]:
    """Run the command with further Spark settings; return its record and the other output."""
    with (site.specs / "events.yaml").open("a") as spec:
        spec.write(settings)
    with site.started(site.tidemark("ingest", "events", "--json")) as running:
        ended = running.wait()
    before, _, document = ended.printed.partition("\n[")
    (record,) = json.loads(f"[{document}")
    assert ended.code == (ExitCode.TRANSIENT if record["retryable"] else ExitCode.REFUSED)
    return record, before.splitlines()


@pytest.mark.faults
def test_a_missing_kafka_source_is_a_setup_error_and_is_not_retried(site: Site) -> None:
    """The jars are not on the class path."""
    record, _ = ingest(site, "  spark.driver.extraClassPath: /nowhere\n")
    assert (record["error"], record["retryable"]) == ("SetupError", False)
    assert "Failed to find data source: kafka" in str(record)


def test_the_error_of_a_failure_names_the_file_with_the_stack(site: Site) -> None:
    """Every task fails at an invalid setting. No output contains the secret of another setting."""
    canary = "correct-horse"
    settings = (
        f"  spark.hadoop.parquet.block.size: {canary}\n  spark.hadoop.fs.s3a.secret.key: {canary}\n"
    )
    record, printed = ingest(site, settings)
    assert (record["error"], record["retryable"]) == ("EngineFailed", True)
    assert "while landing plan 1 of pipeline 'events': " in record["problem"]
    assert 'NumberFormatException: For input string: "***"' in record["problem"]
    assert not [line for line in printed if re.match(r"\s*at [\w.$/]+\(", line)]
    stack = Path(record["log"])
    assert stack.parent == site.app.layout.logs
    assert "org.apache.spark.executor.Executor" in stack.read_text()
    assert canary not in f"{record} {printed} {stack.read_text()}"


def test_a_killed_jvm_is_a_transient_error(site: Site) -> None:
    """The out-of-memory killer sends the same signal."""
    with site.started(site.tidemark("ingest", "events", "--json")) as running:
        wait_until(lambda: jvm(running))
        killed = jvm(running)
        assert killed is not None
        killed.kill()
        code = running.process.wait(60)
        printed = running.log.read_text()
    assert code == ExitCode.TRANSIENT, printed
    (record,) = json.loads(printed[printed.index("\n[") :])
    assert (record["error"], record["retryable"]) == ("EngineStopped", True)
    assert "he Spark process was killed by signal 9, SIGKILL (out of memory?)" in record["problem"]
