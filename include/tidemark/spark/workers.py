"""Version of this package in Spark's Python workers, which decode JSON and Protobuf."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PACKAGE = Path(__file__).resolve().parents[1]
_RUN_BY_WORKERS = (
    "core/payload_text.py",
    "silver/typed/formats/json_reader.py",
    "silver/typed/formats/protobuf_reader.py",
    "silver/typed/formats/arrow_results.py",
    "silver/typed/formats/value_limits.py",
    "spec/decode.py",
    "spec/fields.py",
    "spec/schema_limits.py",
    "silver/typed/formats/protobuf.py",
    "silver/typed/formats/struct_type.py",
)


def _digest() -> str:
    digest = hashlib.sha256()
    for name in _RUN_BY_WORKERS:
        digest.update((_PACKAGE / name).read_bytes())
    return digest.hexdigest()[:16]


CODE_DIGEST = _digest()
"""Digest of the modules that workers run, as of the start of this process."""


def worker_code_digest(session: SparkSession) -> str:
    """Return `CODE_DIGEST` of a session's Python workers; empty if they lack this package."""
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own docs use

    # PySpark would use type hints to select the type of the function.
    def code(_):  # type: ignore[no-untyped-def]
        return CODE_DIGEST

    code_udf = F.udf(code, "string")
    try:
        row = session.range(1).select(code_udf("id")).first()
    except PySparkException as failure:
        if "ModuleNotFoundError" in str(failure) or "ImportError" in str(failure):
            return ""
        raise
    return "" if row is None else str(row[0])
