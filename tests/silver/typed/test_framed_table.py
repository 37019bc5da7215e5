"""Tests of the schema ids at the beginning of payloads, on real tables."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.support.registry import framed
from tidemark.core.offsets import Span, SpanSet
from tidemark.silver.typed.framed_table import FramedBronzeTable
from tidemark.spec.decode import Part

COLUMNS = ("partition", "offset", "value")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def spans(*bounds: tuple[int, int]) -> SpanSet:
    return SpanSet.of(Span(*each) for each in bounds)


@pytest.mark.parametrize(
    ("values", "ids"),
    [
        ([framed(7, b"\xff"), framed(7, b""), None, framed(7, b"\0")], {(0, 7): 0}),
        ([None, framed(7, b""), framed(8, b""), framed(7, b"")], {(0, 7): 1, (0, 8): 2}),
        (
            [framed(7, b""), framed(2**31, b""), framed(255, b"\xff")],
            {(0, 7): 0, (0, 255): 2, (0, 2**31): 1},
        ),
        ([b"\0", framed(7, b""), b"", b"\1" + framed(7, b"")], {(0, 7): 1}),
        ([b"\0\0\0\0"] * 2, {}),
        ([b"\1\0\0\0\7"] * 2, {}),
        ([None, None], {}),
    ],
    ids=["one", "two", "any order", "no frame among them", "short", "other frame", "nothing"],
)
def test_schema_ids_have_the_first_offset_of_each_partition(
    tmp_path: Path, values: list[bytes | None], ids: dict[tuple[int, int], int]
) -> None:
    rows = [(0, offset, value) for offset, value in enumerate(values)]
    rows += [(0, 99, framed(1, b"")), (1, 5, framed(9, b"")), (1, 4, framed(9, b""))]
    columns = zip(*rows, strict=True)
    table = {name: pa.array(each) for name, each in zip(COLUMNS, columns, strict=True)}
    none = pa.nulls(len(rows), HEADERS)
    write_deltalake(
        str(tmp_path), pa.table({**table, "headers": none, "topic_id": ["id-1"] * len(rows)})
    )
    bronze, part = FramedBronzeTable(str(tmp_path)), Part.VALUE
    assert bronze.schema_ids("id-1", {0: spans((0, 9))}, part) == ids
    both = {0: spans((0, 9)), 1: spans((0, 9))}
    assert bronze.schema_ids("id-1", both, part) == {**ids, (1, 9): 4}
    assert bronze.schema_ids("id-2", both, part) == {}


def test_values_with_a_schema_id_header_have_no_schema_id_prefix(tmp_path: Path) -> None:
    """A header of the key does not affect the value."""
    of_value, of_key = ("__value_schema_id", b"\1"), ("__key_schema_id", b"\1")
    some: list[list[tuple[str, bytes]] | None] = [
        [("other", b""), of_value],
        [of_key],
        None,
        [of_value, of_value],
        [],
    ]
    headers = [
        None if each is None else [dict(zip(("key", "value"), h, strict=True)) for h in each]
        for each in some
    ]
    values = [framed(each, b"") for each in (7, 8, 9, 10, 8)]
    table = {
        "partition": pa.array([0] * 5),
        "offset": pa.array(range(5)),
        "key": pa.array(values),
        "value": pa.array(values),
        "headers": pa.array(headers, HEADERS),
        "topic_id": pa.array(["id-1"] * 5),
    }
    write_deltalake(str(tmp_path), pa.table(table))
    bronze, wanted = FramedBronzeTable(str(tmp_path)), {0: spans((0, 9))}
    assert bronze.schema_ids("id-1", wanted, Part.VALUE) == {(0, 8): 1, (0, 9): 2}
    assert bronze.schema_ids("id-1", wanted, Part.KEY) == {
        (0, 7): 0, (0, 8): 4, (0, 9): 2, (0, 10): 3
    }  # fmt: skip
