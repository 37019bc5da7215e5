"""Settings with which Spark uses tables in object stores, and the class path of their jars.

The store's usual environment variables configure all libraries: delta-rs, PyArrow, obstore and
Spark. No command line and no file of settings contains credentials.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from tidemark.spec.layout import Layout

CLASS_PATH_VARIABLE = "SPARK_DIST_CLASSPATH"
"""The environment variable with jars for the end of a driver's class path."""

BUFFERS = "spark.hadoop.fs.s3a.buffer.dir"
"""Setting with the folder of files before their upload. By default, all users can read them."""

_SCHEMES = ("s3", "s3a", "s3n")

LOG_STORES: Mapping[str, str] = {
    f"spark.delta.logStore.{scheme}.impl": "tidemark.ConditionalS3LogStore" for scheme in _SCHEMES
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


def store_settings(layout: Layout, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings for the object stores that are set up; empty without one.

    They have no effect on other tables.

    Args:
        layout: Folders of the jars, and the place of the tables.
        environ: The environment, with the store's usual variables.
    """
    if not layout.store_jars:
        return {}
    settings = dict(_S3)
    if region := environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION"):
        settings["spark.hadoop.fs.s3a.endpoint.region"] = region
    if endpoint := environ.get("AWS_ENDPOINT_URL"):
        settings["spark.hadoop.fs.s3a.endpoint"] = endpoint
        # Only Amazon's own servers have a host name for each bucket.
        settings["spark.hadoop.fs.s3a.path.style.access"] = "true"
    if log_stores(layout.lakehouse):
        settings.update(_S3_COMMITTER)
    return settings


def log_stores(location: str) -> Mapping[str, str]:
    """Return the settings for conditional commits to a table; empty if none is needed."""
    return LOG_STORES if urlsplit(location).scheme in _SCHEMES else {}


def store_jars(layout: Layout) -> str:
    """Return the class path of the jars of all stores that are set up; empty without any."""
    return os.pathsep.join(f"{folder}/*" for folder in layout.store_jars)


def store_variables(layout: Layout, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variable that appends the stores' jars to a driver's class path.

    Jars at another place would make the class archive invalid.
    """
    paths = filter(None, (environ.get(CLASS_PATH_VARIABLE, ""), store_jars(layout)))
    path = os.pathsep.join(paths)
    return {CLASS_PATH_VARIABLE: path} if path else {}
