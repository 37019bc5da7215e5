"""`tidemark ingest` when Spark fails: the cause in plain words, and a documented exit code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from tests.conftest import TopicFactory
from tests.support.crashes import Running, Site, wait_until
from tests.support.transactions import produce_values
from tidemark.core.errors import ExitCode
from tidemark.dev.broker import BrokerStatus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.e2e]


def jvm(running: Running) -> psutil.Process | None:
    """The JVM of spark-submit, which the script becomes; the launcher is a child of the script."""
    children = psutil.Process(running.process.pid).children()
    return next((child for child in children if child.name() == "java"), None)


def ingest(site: Site) -> tuple[dict[str, Any], list[str]]:
    """The record of the one pipeline with a failed landing, and the other output."""
    with site.started(site.tidemark("ingest", "events", "--json")) as running:
        ended = running.wait()
    before, _, document = ended.printed.partition("\n[")
    (record,) = json.loads(f"[{document}")
    assert ended.code == (ExitCode.TRANSIENT if record["retryable"] else ExitCode.REFUSED)
    return record, before.splitlines()


@pytest.mark.faults
def test_a_missing_kafka_source_is_a_setup_error_and_is_not_retried(
    broker: BrokerStatus, topic: TopicFactory, tmp_path: Path, spark: SparkSession
) -> None:
    """The jars are not on the class path."""
    without_jars = "  spark.driver.extraClassPath: /nowhere\n"
    site = Site(
        home=tmp_path,
        bootstrap=broker.bootstrap,
        topic=topic(),
        session=spark,
        more=without_jars,
    )
    produce_values(broker.bootstrap, site.topic, 3)
    record, _ = ingest(site)
    assert (record["error"], record["retryable"]) == ("SetupError", False)
    assert "Failed to find data source: kafka" in str(record)


def test_a_failure_is_printed_without_a_stack_which_is_in_the_file_that_the_error_names(
    broker: BrokerStatus, topic: TopicFactory, tmp_path: Path, spark: SparkSession
) -> None:
    """Every task fails at a setting, and so does the message that has a secret."""
    canary = "correct-horse"
    settings = (
        f"  spark.hadoop.parquet.block.size: {canary}\n  spark.hadoop.fs.s3a.secret.key: {canary}\n"
    )
    site = Site(
        home=tmp_path,
        bootstrap=broker.bootstrap,
        topic=topic(),
        session=spark,
        more=settings,
    )
    produce_values(broker.bootstrap, site.topic, 3)
    record, printed = ingest(site)
    assert (record["error"], record["retryable"]) == ("EngineFailed", True)
    assert "while landing plan 1 of pipeline 'events': " in record["problem"]
    assert 'NumberFormatException: For input string: "***"' in record["problem"]
    assert not [line for line in printed if re.match(r"\s*at [\w.$/]+\(", line)]
    stack = Path(record["log"])
    assert stack.parent == site.app.layout.logs
    assert "org.apache.spark.executor.Executor" in stack.read_text()
    assert canary not in f"{record} {printed} {stack.read_text()}"


def test_a_killed_jvm_is_named_and_ends_in_a_documented_exit_code(
    broker: BrokerStatus, topic: TopicFactory, tmp_path: Path, spark: SparkSession
) -> None:
    """As the out-of-memory killer does it."""
    site = Site(home=tmp_path, bootstrap=broker.bootstrap, topic=topic(), session=spark)
    produce_values(broker.bootstrap, site.topic, 3)
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
