"""Protobuf messages as Spark columns, each with the schema that it was written with.

Spark's own reader is a jar that does not come with it, so Python reads them, in Arrow batches: the
only format for which executors run Python, with this package.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own docs use
from pyspark.sql.pandas.types import from_arrow_type

from tidemark.adapters.spark import messages

SETTINGS = {"spark.sql.execution.arrow.maxBytesPerBatch": str(16 * 2**20)}
"""Session settings to decode with: a batch is in Python's memory as bytes, messages and columns."""


def with_message(
    rows: DataFrame, payload: Column, schema: str, value: str, reason: str, detail: str
) -> DataFrame:
    """Rows with a payload decoded as the first message of a schema.

    Args:
        rows: The rows.
        payload: The message's index and the message, or null.
        schema: The text of the schema that they were written with.
        value: What the new column is called; null where it cannot be decoded.
        reason: And the one that says why, as `Reason`; null where it can.
        detail: And the one that names the field at fault; null where nobody knows.
    """
    read = f"__read_{value}"

    def decoded(payloads: pa.Array) -> pa.Array:
        return messages.read(payloads, schema)

    decode = F.arrow_udf(decoded, from_arrow_type(messages.read_type(schema)))
    # In a projection of its own, or Spark would read it again for whoever needs it.
    return (
        rows.withColumn(read, decode(payload))
        .withColumns(
            {
                value: F.col(read)["value"],
                reason: F.col(read)["reason"],
                detail: F.col(read)["detail"],
            }
        )
        .drop(read)
    )
