"""Protobuf messages as Spark columns, each with the schema that it was written with.

Spark's own reader is a jar that does not come with it, so Python reads them, in Arrow batches: the
only format for which executors run Python, with this package.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own docs use
from pyspark.sql.pandas.types import from_arrow_type

from tidemark.typed.formats import messages
from tidemark.typed.spark_frames import Read, Steps

SETTINGS = {"spark.sql.execution.arrow.maxBytesPerBatch": str(16 * 2**20)}
"""Session settings to decode with: a batch is in Python's memory as bytes, messages and columns."""


def reading(payload: Column, schema: str, place: Read) -> Steps:
    """Projections that decode a payload as the first message of a schema.

    Args:
        payload: The message's index and the message, or null.
        schema: The text of the schema that they were written with.
        place: Name of the new columns.
    """
    read = f"__read_{place.value}"

    def decoded(payloads: pa.Array) -> pa.Array:
        return messages.read(payloads, schema)

    decode = F.arrow_udf(decoded, from_arrow_type(messages.read_type(schema)))
    yield {read: decode(payload)}
    yield {name: F.col(read)[field] for field, name in place._asdict().items()}
