"""Spark decodes into tables that follow the ledger."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from tests.silver.typed.test_following import check
from tests.support.file_lake import Payload
from tests.support.follow_lake import Follower
from tests.support.framed_lake import FramedLake
from tidemark.spec.decode import DecodeSpec, Format, PayloadSpec
from tidemark.spec.fields import Struct

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_spark_decodes_into_tables_that_follow(tmp_path: Path, spark: SparkSession) -> None:
    """Of some records, one is no JSON; a replacement has its fix."""
    value = PayloadSpec(format=Format.JSON, schema=Struct((("n", "long"),)))
    decode = DecodeSpec(key=PayloadSpec(), value=value, target="silver/events")
    lake = FramedLake(root=tmp_path, decode=replace(decode, max_quarantined=9), spark=spark)

    follower = Follower(lake, lake.decoder)
    lake.land_values([*(b'{"n": %d}' % n for n in range(3)), b"no"])
    lake.land_values([b'{"n": 7}'])
    follower.decode()
    check(follower)
    assert follower.entries() == [(1, 0, 3)]
    (entry,) = DeltaTable(follower.index_uri).to_pyarrow_table().to_pylist()
    assert (entry["reason"], entry["part"]) == ("not_json", "value")
    lake.bronze.payloads[0, 3] = Payload(b"k", b'{"n": 3}')
    lake.bronze.land_again((0, 2, 4))
    follower.decode()
    check(follower)
    assert follower.entries() == []
    rows = {row["offset"]: row for row in lake.rows().values()}
    assert {offset: row["value"] for offset, row in rows.items()} == {
        **{n: {"n": n} for n in range(4)},
        4: {"n": 7},
    }
    assert {offset: row["plan_sequence"] for offset, row in rows.items()} == {
        0: 1,
        1: 1,
        2: 3,
        3: 3,
        4: 2,
    }
