"""Settings of jobs: their dependence on the size of a run, and their acceptance by all parts."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from tidemark.kafka.options import READER_DEFAULTS
from tidemark.spark.settings import (
    AVRO_LIMITS,
    SHORT_RUN_RECORDS,
    local_environment,
    server_settings,
    submit_settings,
)
from tidemark.spec.layout import Layout

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JVM_OPTIONS = "spark.driver.extraJavaOptions"
SHORT_ONLY = {"-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"}


def jvm_options(layout: Layout, records: int | None) -> list[str]:
    """Return the Java options of the driver for a job of this size."""
    return submit_settings(layout, {}, records)[JVM_OPTIONS].split()


@pytest.mark.parametrize(
    ("records", "short"),
    [
        (0, True),
        (SHORT_RUN_RECORDS, True),
        (SHORT_RUN_RECORDS + 1, False),
        (None, False),
    ],
)
def test_a_short_run_gets_the_quick_compiler_and_the_small_collector(
    layout: Layout, records: int | None, short: bool
) -> None:
    """A run of unknown size may be a long one."""
    server = server_settings(layout, records=records)[JVM_OPTIONS].split()
    for options in (jvm_options(layout, records), server):
        assert SHORT_ONLY & set(options) == (SHORT_ONLY if short else set())


def test_the_size_of_a_run_changes_only_jvm_options(layout: Layout) -> None:
    """The landed rows and the class archive are the same."""
    short, long = submit_settings(layout, {}, 1), submit_settings(layout, {}, None)
    extra = set(short.pop(JVM_OPTIONS).split()) ^ set(long.pop(JVM_OPTIONS).split())
    assert extra == SHORT_ONLY
    assert short == long
    assert f"-XX:SharedArchiveFile={layout.class_archive}" in jvm_options(layout, None)


def test_settings_of_the_spec_override_all_others(layout: Layout) -> None:
    """They also override options that depend on the size of a run."""
    own = {JVM_OPTIONS: "-XX:+UseZGC", "spark.driver.memory": "6g", "spark.mine": "yes"}
    found = submit_settings(layout, own, 1)
    # Avro's limits stay, because they protect the JVM from records.
    limits = " ".join(f"-D{key}={value}" for key, value in AVRO_LIMITS.items())
    limited = {**own, JVM_OPTIONS: f"{limits} -XX:+UseZGC"}
    assert {key: found[key] for key in own} == limited


@pytest.mark.parametrize("records", [1, None])
def test_the_jvm_accepts_its_options(layout: Layout, records: int | None) -> None:
    """A JVM refuses to start with an unknown option."""
    command = ["java", *jvm_options(layout, records), "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.spark
def test_the_java_client_accepts_the_readers_defaults(spark: SparkSession) -> None:
    """The client ignores unknown names, so the test compares names and values."""
    config = spark._jvm.org.apache.kafka.clients.consumer.ConsumerConfig
    assert set(READER_DEFAULTS) <= set(config.configNames())
    properties = spark._jvm.java.util.Properties()
    deserializer = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
    for name in ("key.deserializer", "value.deserializer"):
        properties.put(name, deserializer)
    for name, value in READER_DEFAULTS.items():
        properties.put(name, value)
    assert config(properties).getInt("fetch.max.wait.ms") == int(
        READER_DEFAULTS["fetch.max.wait.ms"]
    )


@pytest.mark.spark
def test_files_have_no_dictionary_of_payloads_and_no_int96(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The file is written with the settings of every job.

    Its footer has null counts, so a check need not read values without nulls.
    """
    rows = spark.sql(
        "SELECT CAST(hex(id) AS BINARY) AS key, CAST(hex(id) AS BINARY) AS value, id AS offset,"
        " 'prices' AS topic, timestamp_millis(id) AS timestamp FROM range(0, 1000, 1, 1)"
    )
    rows.write.parquet(str(tmp_path / "rows"))
    [file] = (tmp_path / "rows").glob("*.parquet")
    footer = pq.ParquetFile(file).metadata.row_group(0)
    columns = {
        column.path_in_schema: column for column in map(footer.column, range(footer.num_columns))
    }
    assert columns["timestamp"].physical_type == "INT64"
    with_dictionary = {name for name, column in columns.items() if column.has_dictionary_page}
    assert with_dictionary & {"key", "value", "offset"} == set()
    assert "topic" in with_dictionary
    assert {columns[name].statistics.null_count for name in ("key", "value", "offset")} == {0}


def test_spills_of_a_local_spark_are_in_folders_of_its_user_alone(tmp_path: Path) -> None:
    """The folders are on the chosen disks, and exist as long as Spark."""
    first, second = (tmp_path / "first", tmp_path / "second")
    for place in (first, second):
        place.mkdir()
    chosen = {"SPARK_LOCAL_DIRS": f"{first},{second}"}
    with local_environment("local[2]", chosen, {"spark.local.dir": "/overridden"}) as variables:
        folders = [Path(each) for each in variables["SPARK_LOCAL_DIRS"].split(",")]
        assert [each.parent for each in folders] == [first, second]
        assert [each.stat().st_mode & 0o777 for each in folders] == [0o700, 0o700]
        (folders[0] / "shuffle").write_text("a record")
    assert not any(folders[0].parent.iterdir())
    with local_environment("local", {}, {"spark.local.dir": str(second)}) as variables:
        assert Path(variables["SPARK_LOCAL_DIRS"]).parent == second


def test_a_cluster_chooses_the_folders_of_its_executors() -> None:
    with local_environment("spark://host:7077", {}, {}) as variables:
        assert variables == {}
