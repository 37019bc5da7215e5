"""Settings with which Spark uses tables in object stores, and the class path of their jars.

The store's usual environment variables configure all libraries: delta-rs, PyArrow, obstore and
Spark. No command line and no file of settings contains credentials.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from tidemark.core.errors import SetupError
from tidemark.spec.layout import Layout
from tidemark.spec.targets import S3_ENDPOINTS

CLASS_PATH_VARIABLE = "SPARK_DIST_CLASSPATH"
"""The environment variable with jars for the end of a driver's class path."""

S3A_BUFFER_FOLDER = "spark.hadoop.fs.s3a.buffer.dir"
"""Setting of the folder in which files wait for their upload. All users can read Hadoop's default
folder."""

LOG_STORES: Mapping[str, str] = {
    f"spark.delta.logStore.{scheme}.impl": "tidemark.ConditionalS3LogStore"
    for scheme in ("s3", "s3a")
}
"""The log store of each scheme. If two drivers commit one version, S3 refuses the second."""

_S3: Mapping[str, str] = {
    **LOG_STORES,
    # `s3://` is the scheme that all other programs use.
    "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.s3.impl": "org.apache.hadoop.fs.s3a.S3A",
    # Environment, profile, web identity, role of the container or machine.
    "spark.hadoop.fs.s3a.aws.credentials.provider": "tidemark.AwsCredentials",
    "spark.hadoop.mapreduce.outputcommitter.factory.scheme.s3": "org.apache.hadoop.fs.s3a.commit."
    "S3ACommitterFactory",
    "spark.hadoop.fs.s3a.committer.name": "magic",
}

_S3_COMMITTER: Mapping[str, str] = {
    "spark.sql.sources.commitProtocolClass": "org.apache.spark.internal.io.cloud."
    "PathOutputCommitProtocol",
    "spark.sql.parquet.output.committer.class": "org.apache.spark.internal.io.cloud."
    "BindingParquetOutputCommitter",
}
"""Executors write each file once, to its final name. By default Spark moves a finished file twice,
and on S3 each move is a copy."""


def store_settings(layout: Layout) -> dict[str, str]:
    """Return the settings for tables in S3; empty without its jars.

    Except the commit protocol, they have no effect on tables elsewhere.

    Args:
        layout: Folders of the jars, and the place of the tables.
    """
    if not layout.store_jars:
        return {}
    return {**_S3, **(_S3_COMMITTER if log_store(layout.lakehouse) else {})}


def endpoint_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings for the server that the environment of S3's libraries names."""
    settings = {}
    if region := environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION"):
        settings["spark.hadoop.fs.s3a.endpoint.region"] = region
    if endpoint := next(filter(None, map(environ.get, S3_ENDPOINTS)), None):
        settings["spark.hadoop.fs.s3a.endpoint"] = endpoint
        # Many other servers have no host name for each bucket.
        settings["spark.hadoop.fs.s3a.path.style.access"] = "true"
    return settings


def log_store(location: str) -> tuple[str, str] | None:
    """Return the setting for conditional commits to a table; None if it needs none."""
    key = f"spark.delta.logStore.{urlsplit(location).scheme}.impl"
    return (key, LOG_STORES[key]) if key in LOG_STORES else None


def check_log_stores(locations: Iterable[str], settings: Mapping[str, str]) -> None:
    """Raise SetupError if Spark would commit to some tables without a condition."""
    for location in locations:
        needed = log_store(location)
        if needed and needed[0] not in settings:
            raise SetupError(
                finding="The jars for tables in S3 are not set up.",
                needed=f"the jars of `make setup STORE=s3`, for the table {location}",
                advice="Run `make setup STORE=s3`. See docs/how-to/storage.md.",
            )


def store_class_path(layout: Layout) -> str:
    """Return the class path of the jars of all stores that are set up; empty without any."""
    return os.pathsep.join(f"{folder}/*" for folder in layout.store_jars)


def class_path_variable(layout: Layout, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variable that appends the stores' jars to a driver's class path.

    Jars at another place would make the class archive invalid.
    """
    paths = filter(None, (environ.get(CLASS_PATH_VARIABLE, ""), store_class_path(layout)))
    path = os.pathsep.join(paths)
    return {CLASS_PATH_VARIABLE: path} if path else {}
