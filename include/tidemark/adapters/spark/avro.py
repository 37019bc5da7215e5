"""Avro records as Spark columns, each with the schema that it was written with.

Spark's own reader is lenient where a record is longer than its schema, and cannot tell a record
that it failed on from one whose fields are all null: so bytes of our own are put behind each
record, which its schema ends with as well.
"""

from __future__ import annotations

import json
import secrets

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own docs use
from pyspark.sql.avro.functions import from_avro

from tidemark.core.avro import as_spark_reads
from tidemark.core.decoding import Reason
from tidemark.core.fields import UNION_MEMBER

_END = secrets.token_bytes(16)
"""What is put behind each record: no record ends with it by itself."""
_END_TYPE = {"type": "fixed", "name": "tidemark_end", "size": len(_END)}
_OPTIONS = {
    "mode": "PERMISSIVE",
    # Days before 1582 are those of the calendar that Avro's specification means.
    "datetimeRebaseMode": "CORRECTED",
    # Members of unions by the names of their types, wherever they stand.
    "enableStableIdentifiersForUnionType": "true",
    "stableIdentifierPrefixForUnionType": UNION_MEMBER,
}


def with_record(
    rows: DataFrame, payload: Column, schema: str, value: str, reason: str, detail: str
) -> DataFrame:
    """Rows with a payload decoded as one Avro record.

    Args:
        rows: The rows.
        payload: One record each, or null.
        schema: The schema that they were written with, in JSON.
        value: What the new column is called; null where it cannot be decoded.
        reason: And the one that says why, as `Reason`; null where it can.
        detail: And one that is null: nobody knows which field it was.
    """
    read = f"__read_{value}"
    ended = from_avro(F.concat(payload, F.lit(_END)), _ended(schema), _OPTIONS)
    is_whole = F.coalesce(F.col(read)["end"] == F.lit(_END), F.lit(False))
    why = F.when(payload.isNotNull() & ~is_whole, Reason.MALFORMED.value)
    # In a projection of its own, or Spark would read it again for whoever needs it.
    return (
        rows.withColumn(read, ended)
        .withColumns({value: F.col(read)["value"], reason: why, detail: F.lit(None).cast("string")})
        .drop(read)
    )


def _ended(text: str) -> str:
    """The schema of what is read: the record, and the bytes behind it."""
    fields = [
        {"name": "value", "type": json.loads(as_spark_reads(text))},
        {"name": "end", "type": _END_TYPE},
    ]
    return json.dumps({"type": "record", "name": "tidemark_record", "fields": fields})
