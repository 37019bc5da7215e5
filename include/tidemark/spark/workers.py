"""Spark's Python workers, which decode JSON and Protobuf: start, and version of this package."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PACKAGE = Path(__file__).resolve().parents[1]
_RUN_BY_WORKERS = (
    "core/payload_text.py",
    "silver/typed/formats/json_reader.py",
    "silver/typed/formats/protobuf_reader.py",
    "silver/typed/formats/arrow_results.py",
    "spec/decode.py",
    "spec/fields.py",
    "silver/typed/formats/protobuf.py",
    "silver/typed/formats/struct_type.py",
)

# PyArrow imports pandas when it first converts a list.
_IMPORTED_AHEAD = ("pandas", "tidemark.silver.typed.formats.json_reader")
_WORKERS = 2
"""Number of workers that `start_ahead` starts; others follow when a decode needs them."""


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


def start_ahead(open_session: Callable[[], SparkSession]) -> Thread:
    """Start a session's Python workers in a new thread, while the caller waits for other work.

    The first query with Python starts a process for the session, and each worker imports PySpark,
    Arrow, pandas and this package. The function imports PySpark itself, for the reason that
    `import_ahead` of the quality checks gives.

    Args:
        open_session: Returns the session. The thread ignores all errors, because the first decode
            raises them as well.

    Returns:
        The thread.
    """
    from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own docs use

    # PySpark would use type hints to select the type of the function.
    def imports(_):  # type: ignore[no-untyped-def]
        for module in _IMPORTED_AHEAD:
            import_module(module)

    def start() -> None:
        with suppress(Exception):
            ids = open_session().range(0, _WORKERS, 1, _WORKERS)
            ids.select(F.udf(imports, "string")("id")).collect()

    thread = Thread(target=start)
    thread.start()
    return thread
