"""Tests of decoding rows of several bronze plans with Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from tests.support.framed_lake import FramedLake
from tests.support.json_cases import GOOD, json_spec
from tests.support.services import NOW
from tidemark.core.datafile import DataFile
from tidemark.core.decode_work import DecodeRequest
from tidemark.core.following import Batch
from tidemark.core.offsets import Span, SpanSet
from tidemark.silver.typed.errors import TooManyQuarantined
from tidemark.spec.decode import DecodeSpec, Format, PayloadSpec
from tidemark.spec.fields import Struct

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

_DECODE = DecodeSpec(
    key=PayloadSpec(),
    value=PayloadSpec(format=Format.JSON, schema=Struct((("n", "long"),))),
    target="silver/events",
    max_quarantined=1,
    max_quarantined_percent=0,
)
TOPIC = "id-1"


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession) -> FramedLake:
    """Plans 1 to 3 have four records each. One record of plan 1 and one of plan 3 are malformed."""
    lake = FramedLake(root=tmp_path, decode=_DECODE, spark=spark)
    for first in (0, 4, 8):
        values = [b"no" if n in (1, 9) else b'{"n": %d}' % n for n in range(first, first + 4)]
        lake.land_values(values)
    lake.tables.prepare({})
    return lake


def request(lake: FramedLake, spans: dict[int, list[Span]], **options: Any) -> DecodeRequest:
    """Return a request of offsets by plan, by default at the bronze table's newest version."""
    return DecodeRequest(
        pipeline=lake.spec.name,
        version=options.pop("version", lake.bronze.table.version()),
        offsets={Batch(plan, TOPIC): {0: SpanSet.of(some)} for plan, some in spans.items()},
        schemas={},
        oversized={},
        **options,
    )


def rows(lake: FramedLake, files: list[DataFile], *, quarantined: bool) -> list[dict[str, Any]]:
    """Return the rows of the written files of one table, sorted by offset."""
    table = lake.quarantine_uri if quarantined else lake.typed_uri
    own = [file for file in files if file.quarantined == quarantined]
    found = [row for file in own for row in pq.read_table(table / file.path).to_pylist()]
    assert len(found) == sum(file.records for file in own)
    return sorted(found, key=lambda row: int(row["offset"]))


def test_decoded_rows_keep_their_bronze_plans_and_failed_rows_have_no_payload(
    lake: FramedLake,
) -> None:
    files = lake.decoder.decode(request(lake, {1: [Span(0, 4)], 2: [Span(5, 7)]}))
    typed = rows(lake, files, quarantined=False)
    assert [(row["plan_sequence"], row["offset"], row["value"]["n"]) for row in typed] == [
        *((1, 0, 0), (1, 2, 2), (1, 3, 3)),
        *((2, 5, 5), (2, 6, 6)),
    ]
    (failed,) = rows(lake, files, quarantined=True)
    assert failed == {
        "topic_id": TOPIC,
        "partition": 0,
        "offset": 1,
        "plan_sequence": 1,
        "reason": "not_json",
        "part": "value",
        "detail": failed["detail"],
        "schema_id": None,
    }
    # The columns are those of the bronze table, with decoded keys and values.
    names = {*lake.bronze_rows()[0]} | {"key", "value"}
    assert {*typed[0]} == names


def test_only_rows_of_the_given_version_plans_and_offsets_are_decoded(lake: FramedLake) -> None:
    before = lake.bronze.table.version()
    lake.bronze.land_again((0, 4, 6))
    newest = rows(lake, lake.decoder.decode(request(lake, {2: [Span(4, 8)]})), quarantined=False)
    assert [row["offset"] for row in newest] == [6, 7]
    earlier = lake.decoder.decode(request(lake, {2: [Span(4, 8)]}, version=before))
    assert [row["offset"] for row in rows(lake, earlier, quarantined=False)] == [4, 5, 6, 7]


def test_records_that_are_in_quarantine_already_do_not_count_for_its_limit(
    lake: FramedLake,
) -> None:
    both = {1: [Span(0, 4)], 3: [Span(8, 12)]}
    with pytest.raises(TooManyQuarantined) as refused:
        lake.decoder.decode(request(lake, both))
    assert (refused.value.quarantined, refused.value.records, refused.value.allowed) == (2, 8, 1)
    assert not list(lake.quarantine_uri.rglob("plan-*"))
    assert not list(lake.typed_uri.rglob("plan-*"))
    files = lake.decoder.decode(request(lake, both, quarantined=1))
    assert [row["offset"] for row in rows(lake, files, quarantined=True)] == [1, 9]


def test_the_current_time_of_a_rule_is_the_same_in_all_queries(lake: FramedLake) -> None:
    """It comes from the decoder's clock. A query of Spark would read a later time."""
    began = int(NOW.timestamp())
    rule = f"value.n < 5 + unix_timestamp() - {began} AND current_date() = date'{NOW:%Y-%m-%d}'"
    lake.decode = replace(_DECODE, max_quarantined=100, rules=(("recent", rule),))
    spans = {1: [Span(0, 4)], 2: [Span(4, 8)], 3: [Span(8, 12)]}
    files = lake.decoder.decode(request(lake, spans))
    typed, quarantined = (rows(lake, files, quarantined=each) for each in (False, True))
    assert [each["offset"] for each in typed] == [0, 2, 3, 4]
    assert [each["offset"] for each in quarantined] == [1, *range(5, 12)]


@pytest.mark.slow
def test_decoded_columns_equal_the_values_of_a_decode_without_spark(
    tmp_path: Path, spark: SparkSession
) -> None:
    """Covers JSON in columns of their own; the tests of other formats use the same comparison."""
    schema = json_spec().schema
    assert schema is not None
    value = PayloadSpec(
        format=Format.JSON,
        schema=Struct((*schema.fields, ("offset", "string"))),
        keeps_rest=True,
    )
    decode = DecodeSpec(
        key=PayloadSpec(format=Format.STRING), value=value, target="silver/events", flattens=True
    )
    lake = FramedLake(root=tmp_path, decode=decode, spark=spark)
    hard = ["1.00000005960464477539062500001", "-0.0", "16777217", "1e-46", "5e-324", "0.1"]
    payloads = [
        *(payload for payload, _ in GOOD),
        *(b'{"ratio": %s}' % each.encode() for each in hard),
        b'{"offset": "x", "n": {"a": [1, 2.50]}, "\\u00fc": 1e2}',
        None,
    ]
    lake.land_values(payloads)
    lake.run()
    found = lake.verifier.verify()
    found.check()
    (counts,) = found.partitions
    assert (counts.typed, found.unjudged) == (len(payloads), {})
    assert found.other_columns == ()
