"""Row rules, their changes, and quarantine limits, on real Spark and real tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.framed_lake import FramedLake
from tidemark.core.offsets import Span
from tidemark.silver.typed.errors import TooManyQuarantined
from tidemark.spec.decode import DecodeSpec, Format, PayloadSpec
from tidemark.spec.errors import SpecError
from tidemark.spec.fields import Struct

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

_DECODE = DecodeSpec(
    key=PayloadSpec(),
    value=PayloadSpec(format=Format.JSON, schema=Struct((("n", "long"),))),
    target="silver/events",
    max_quarantined=2,
    max_quarantined_percent=0,
)


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession) -> FramedLake:
    """Nine of ten records are decoded; the last one is in quarantine."""
    lake = FramedLake(root=tmp_path, decode=_DECODE, spark=spark)
    lake.land_values([*(b'{"n": %d}' % n for n in range(9)), b"no"])
    assert lake.run() == [1]
    return lake


def test_a_replacement_with_a_bad_rule_cannot_empty_the_typed_table(lake: FramedLake) -> None:
    """The quarantine limit also holds for rows that were decoded before."""
    lake.bronze.land_again((0, 0, 10))
    before, files = sorted(lake.rows()), set((lake.root / "silver").rglob("*.parquet"))
    lake.decode = replace(_DECODE, rules=(("small", "value.n < 3"),))
    with pytest.raises(TooManyQuarantined) as refused:
        lake.run()
    assert (refused.value.quarantined, refused.value.allowed) == (6, 2)
    assert str(refused.value).startswith("Decoding 'events' from plan 2 on would quarantine")
    assert sorted(lake.rows()) == before
    assert set((lake.root / "silver").rglob("*.parquet")) == files
    lake.decode = replace(_DECODE, rules=(("small", "value.n < 7"),))
    lake.run()
    lake.check()
    assert [offset for _, offset in lake.quarantined()] == [7, 8, 9]


def test_a_rule_that_is_always_false_quarantines_every_record(lake: FramedLake) -> None:
    """Spark then removes the query, and the count of its rows."""
    lake.bronze.land_again((0, 0, 10))
    lake.decode = replace(_DECODE, rules=(("never", "false"),), max_quarantined=10)
    lake.run()
    lake.check()
    assert lake.rows() == {}


@pytest.mark.parametrize(
    ("sql", "seen"),
    [
        ("value.nothing > 0", "nothing"),
        ("(", "syntax"),
        ("sum(value.n) > 3", "sum needs several rows"),
        pytest.param(
            "explode(array(true))", "explode makes several rows", marks=pytest.mark.faults
        ),
        pytest.param("value.n", "bigint", marks=pytest.mark.faults),
        pytest.param("vallue.n > 0", "did you mean 'value'?", marks=pytest.mark.faults),
    ],
)
def test_an_invalid_rule_raises_an_error_before_anything_is_written(
    lake: FramedLake, sql: str, seen: str
) -> None:
    """Covers a missing field, another type, invalid SQL, several rows and a misspelled column."""
    lake.bronze.land_again((0, 0, 10))
    before = lake.rows()
    lake.decode = replace(_DECODE, rules=(("wrong", sql),))
    with pytest.raises(SpecError, match="a condition in Spark SQL") as refused:
        lake.run()
    (problem,) = refused.value.problems
    assert (problem.file, problem.key) == ("events.yaml", "decode.rules.wrong")
    assert seen in problem.found.lower()
    assert lake.rows() == before


def test_records_that_fail_again_do_not_count_for_the_limit(lake: FramedLake) -> None:
    """A replay adds no record to the quarantine."""
    lake.decode = replace(_DECODE, max_quarantined=0)
    lake.replay(Span(9, 10))
    lake.check()
    assert lake.quarantined() == [(0, 9)]
