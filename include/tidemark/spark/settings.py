"""Settings of Spark applications and servers, each with its reason.

docs/adr/0005-settings.md has the measurements and the rejected settings.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from tempfile import TemporaryDirectory, gettempdir
from types import MappingProxyType

from tidemark.spark.sessions import SQL_SETTINGS
from tidemark.spark.stores import S3A_BUFFER_FOLDER, store_class_path, store_settings
from tidemark.spec.layout import LOG_FOLDER, Layout
from tidemark.spec.schema_limits import MAX_VALUE_BYTES

SHORT_RUN_RECORDS = 1_000_000
"""Records up to which the JVM's optimising compiler costs a job more time than it saves."""

SHORT_RUN_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Options of the JVM for such a job."""

WRITE_OPTIONS: Mapping[str, str] = {
    # Spark writes blocks of 32 MiB faster than blocks of 16, 64 or 128 MiB (Parquet's default).
    "parquet.block.size": str(32 * 2**20),
    # Keys, values and offsets rarely repeat, so Parquet would build a dictionary and discard it.
    "parquet.enable.dictionary#key": "false",
    "parquet.enable.dictionary#value": "false",
    "parquet.enable.dictionary#offset": "false",
    "parquet.page.write-checksum.enabled": "false",
    # Parquet's default of 100 rows keeps 100 large records in memory before it checks the size. The
    # later checks follow from the sizes of the rows, so that small records cost no more checks.
    "parquet.page.size.row.check.min": "1",
    "parquet.block.size.row.check.min": "1",
    # The commit marks the folder as complete.
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}
"""Options for writing Parquet files. An application sets them as Hadoop's settings; on a Spark
Connect server they are options of each write."""

_STATIC: Mapping[str, str] = {
    **SQL_SETTINGS,
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Plans of one application share the executors, instead of running one after the other.
    "spark.scheduler.mode": "FAIR",
    # The web UI of a short batch has no readers, and it costs start-up time.
    "spark.ui.enabled": "false",
    # In local mode the driver runs all tasks, and each core fills a Parquet row group.
    "spark.driver.memory": "2g",
    # By default Spark keeps each consumer with its fetched records for five minutes. A batch never
    # uses a consumer again, so over many partitions useless records would fill the heap.
    "spark.kafka.consumer.cache.timeout": "10s",
    "spark.kafka.consumer.cache.evictorThreadRunInterval": "5s",
    "spark.kafka.consumer.fetchedData.cache.timeout": "10s",
    "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "5s",
    **{f"spark.hadoop.{key}": value for key, value in WRITE_OPTIONS.items()},
}

LOOPBACK = "127.0.0.1"
"""The address on which a Spark of this machine alone listens."""

_LOCAL_FOLDERS = "SPARK_LOCAL_DIRS"
"""Variable with the folders for shuffles and spills; overrides the setting `spark.local.dir`."""

LOCAL_SETTINGS: Mapping[str, str] = {
    # Every user of the machine can connect to the driver's ports. A client of Spark's protocols
    # could fetch blocks with records and with the options of the Kafka source. In local mode Spark
    # creates the secret itself, in the memory of its process.
    "spark.authenticate": "true",
    # By default the ports of RPC and blocks listen on the machine's address in its network.
    "spark.driver.bindAddress": LOOPBACK,
    "spark.driver.host": LOOPBACK,
    # A task without memory fails alone. By default it would end the process, and on a server the
    # runs of all other pipelines. A cluster replaces such an executor.
    "spark.executor.killOnFatalError.depth": "0",
    # Files that wait for their upload contain records, as spills do.
    S3A_BUFFER_FOLDER: f"${{env.{_LOCAL_FOLDERS}}}",
}
"""Settings of a Spark without executors on other machines. They override all other settings."""

LOCAL_ENVIRONMENT: Mapping[str, str] = {
    # The address of Spark's pages, if a pipeline enables them. No setting has this effect.
    "SPARK_LOCAL_IP": LOOPBACK,
}
"""Environment variables of a Spark without executors on other machines."""

_LOCAL_MASTER = re.compile(r"local(\[(\d+|\*)(\s*,\s*\d+)?\])?")
"""The masters for which Spark creates a secret; all others need one (Spark's `SecurityManager`)."""


def local_settings(master: str) -> Mapping[str, str]:
    """Return `LOCAL_SETTINGS` for a master that runs all tasks in its own process, else nothing."""
    return LOCAL_SETTINGS if _LOCAL_MASTER.fullmatch(master) else {}


@contextmanager
def local_environment(
    master: str, environ: Mapping[str, str], settings: Mapping[str, str]
) -> Iterator[Mapping[str, str]]:
    """Yield the environment variables of a Spark whose master runs all tasks in its own process.

    Spark writes records of shuffles and spills to folders that every user may enter. So these
    folders are in new ones of this user alone, which are removed at the end.

    Args:
        master: The master. For all others, the environment is empty.
        environ: The environment of the driver.
        settings: The settings of the application. `spark.local.dir` is the place of the folders,
            unless `SPARK_LOCAL_DIRS` of the environment names it.
    """
    if not _LOCAL_MASTER.fullmatch(master):
        yield {}
        return
    places = environ.get(_LOCAL_FOLDERS) or settings.get("spark.local.dir") or gettempdir()
    with ExitStack() as stack:
        folders = [
            stack.enter_context(
                TemporaryDirectory(prefix="tidemark-spark-", dir=place, ignore_cleanup_errors=True)
            )
            for place in places.split(",")
        ]
        yield {**LOCAL_ENVIRONMENT, _LOCAL_FOLDERS: ",".join(folders)}


AVRO_LIMITS: Mapping[str, str] = {
    "org.apache.avro.limits.string.maxLength": str(MAX_VALUE_BYTES),
    "org.apache.avro.limits.bytes.maxLength": str(MAX_VALUE_BYTES),
    "org.apache.avro.limits.collectionItems.maxLength": str(8 * 2**20),
}
"""Java properties that limit the memory for one record, in bytes and elements.

Avro allocates the memory for a text or a list before it checks the length of the record. So one
broken record of ten bytes can request gigabytes. Records beyond the limits count as malformed.
`formats.avro` limits the size of a `fixed`, for which Avro has no limit."""


def submit_settings(
    layout: Layout, overrides: Mapping[str, str], records: int | None = None
) -> dict[str, str]:
    """Return the settings for `spark-submit --conf`, for every job of Tidemark.

    Args:
        layout: Folders of the jars and of the class archive.
        overrides: Settings of the spec's `spark` section, which override these settings.
        records: Largest possible number of records of the job; None if unknown, which counts as
            many.
    """
    jars = f"{layout.spark_jars}/*"
    java_options = [
        f"-Dlog4j2.configurationFile={_log4j(layout, 'spark')}",
        # JDK 17 ignores an archive of another class path or JVM.
        f"-XX:SharedArchiveFile={layout.class_archive}",
        "-Xshare:auto",
        "-Xlog:cds=off",
        "-Xlog:cds+dynamic=off",
        *(SHORT_RUN_OPTIONS if records is not None and records <= SHORT_RUN_RECORDS else ()),
    ]
    return {
        **_STATIC,
        **store_settings(layout),
        # Not `--jars`, which copies the jars for each application.
        "spark.driver.extraClassPath": jars,
        # The driver has the stores' jars after Spark's own (`class_path_variable`).
        "spark.executor.extraClassPath": os.pathsep.join(
            filter(None, (jars, store_class_path(layout)))
        ),
        "spark.pyspark.python": sys.executable,
        "spark.sql.warehouse.dir": str(layout.spark_warehouse),
        LOG_FOLDER: str(layout.logs),
        **overrides,
        "spark.driver.extraJavaOptions": _with_limits(overrides, "driver", java_options),
        "spark.executor.extraJavaOptions": _with_limits(overrides, "executor", ()),
    }


def server_settings(
    layout: Layout,
    overrides: Mapping[str, str] = MappingProxyType({}),
    *,
    records: int | None = None,
    log_to_file: bool = True,
) -> dict[str, str]:
    """Return settings of the Spark Connect server of a home, which uses every core of its machine.

    Args:
        layout: Folders of the jars and of the class archive.
        overrides: Settings that override the settings of every job.
        records: Largest possible number of records of one job; None if unknown.
        log_to_file: Whether the server logs to a file of its folder, else to standard error.
    """
    settings = {"spark.master": "local[*]", **submit_settings(layout, overrides, records)}
    if not log_to_file:
        return settings
    # Log4j reads both files; the second file overrides the first.
    log = f"-Dlog4j2.configurationFile={_log4j(layout, 'spark')},{_log4j(layout, 'server')}"
    options = "spark.driver.extraJavaOptions"
    return {**settings, options: f"{settings[options]} {log}"}


def _log4j(layout: Layout, name: str) -> str:
    return f"file:{layout.project}/include/jvm/log4j2-{name}.properties"


def _with_limits(overrides: Mapping[str, str], process: str, defaults: Iterable[str]) -> str:
    """Return Java options: Avro's limits, then the options of the spec or else the defaults."""
    own = overrides.get(f"spark.{process}.extraJavaOptions")
    limits = (f"-D{key}={value}" for key, value in AVRO_LIMITS.items())
    return " ".join((*limits, *(defaults if own is None else (own,))))
