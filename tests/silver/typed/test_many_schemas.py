"""Ranges with records of many schemas: schemas of one form are read once, others in passes."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.framed_lake import FramedLake, bare
from tests.support.protobuf import descriptors, proto_bytes
from tests.support.registry import avro_bytes, framed
from tidemark.silver.typed.errors import TooManyQuarantined
from tidemark.silver.typed.formats.spark_payloads import WriterSchemas, in_passes
from tidemark.spec.decode import DecodeSpec, Format, PayloadSpec, QuarantineReason, RegisteredSchema

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

_FIELDS = [f"field{number:02}" for number in range(11)]


class _Registry:
    """Schemas in memory."""

    def __init__(self, kind: str, texts: Mapping[int, str]) -> None:
        self._kind, self._texts = kind, texts

    def schema(self, schema_id: int) -> RegisteredSchema | None:
        """See `SchemaRegistry.schema`."""
        if schema_id not in self._texts:
            return None
        return RegisteredSchema(id=schema_id, kind=self._kind, text=self._texts[schema_id])


def _avro(*fields: Any, **more: Any) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": list(fields), **more})


def _schema(kind: Format, names: Sequence[str]) -> str:
    """A schema of optional texts."""
    match kind:
        case Format.AVRO:
            return _avro(*({"name": name, "type": ["null", "string"]} for name in names))
        case Format.PROTOBUF:
            return _source(names)
        case _:
            properties = {name: {"type": "string"} for name in names}
            return json.dumps({"type": "object", "properties": properties})


def _source(names: Sequence[str]) -> str:
    # Field numbers differ between messages, so a schema cannot read payloads of another schema.
    fields = (f"optional string {name} = {at};" for at, name in enumerate(names, 1))
    return f'syntax = "proto3"; message R {{ {" ".join(fields)} }}'


def _payload(kind: Format, names: Sequence[str], values: Mapping[str, str]) -> bytes:
    match kind:
        case Format.AVRO:
            return avro_bytes(json.loads(_schema(kind, names)), values)
        case Format.PROTOBUF:
            return proto_bytes(_source(names), "R", dict(values))
        case _:
            return json.dumps(values).encode()


def _lake(
    root: Path, spark: SparkSession, kind: Format, texts: Mapping[int, str], **more: Any
) -> FramedLake:
    decode = DecodeSpec(
        key=PayloadSpec(format=Format.STRING),
        value=PayloadSpec(format=kind),
        target="silver/events",
        max_quarantined_percent=0.0,
        **more,
    )
    if kind is Format.PROTOBUF:
        texts = {number: descriptors(text) for number, text in texts.items()}
    return FramedLake(root=root, decode=decode, registry=_Registry(kind.kind, texts), spark=spark)


@pytest.mark.spark
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(Format.AVRO, marks=pytest.mark.faults),
        Format.JSON_SCHEMA,
        pytest.param(Format.PROTOBUF, marks=pytest.mark.faults),
    ],
)
def test_passes_decode_each_record_once(tmp_path: Path, spark: SparkSession, kind: Format) -> None:
    """There are five forms, two in each pass, all faults, and one limit for all passes."""
    forms = dict(enumerate(islice(combinations(_FIELDS, 2), 5), 1))
    # Schemas 6 and 1 decode in the same way.
    forms[6] = forms[1]
    lake = _lake(
        tmp_path,
        spark,
        kind,
        {number: _schema(kind, names) for number, names in forms.items()},
        max_quarantined=5,
        refused_schemas=(9,),
    )
    lake.forms_at_once = 2
    values = {number: {names[1]: f"text {number}"} for number, names in forms.items()}
    good = [framed(number, _payload(kind, forms[number], values[number])) for number in forms]
    wrong = [framed(number, b"\xff") for number in forms]
    rest = [framed(77, b"unknown"), framed(9, b"refused"), b"no frame", None]
    lake.land_values([*good, *wrong, *rest])
    with pytest.raises(TooManyQuarantined) as refused:
        lake.run()
    # The record of the refused schema does not count.
    assert (refused.value.quarantined, refused.value.records) == (8, 15)
    lake.decode = replace(lake.decode, max_quarantined=8)
    lake.run()
    found = {place[1]: bare(row["value"]) for place, row in lake.rows().items()}
    assert found == {**dict(enumerate(values.values())), 15: None}
    reasons = [lake.reasons()[0, offset] for offset in range(6, 15)]
    assert [number for _, number in reasons] == [*forms, 77, 9, None]
    assert [why for why, _ in reasons[6:]] == [
        QuarantineReason.UNKNOWN_SCHEMA,
        QuarantineReason.REFUSED_SCHEMA,
        QuarantineReason.NOT_FRAMED,
    ]
    assert {why for why, _ in reasons[:6]} <= {
        QuarantineReason.MALFORMED,
        QuarantineReason.NOT_UTF8,
    }
    lake.check()


@pytest.mark.spark
@pytest.mark.faults
@pytest.mark.parametrize("kind", [Format.AVRO, Format.JSON_SCHEMA, Format.PROTOBUF])
def test_a_range_of_300_forms_is_decoded(tmp_path: Path, spark: SparkSession, kind: Format) -> None:
    """Nested projections for each schema overflowed the stack of Spark's analysis."""
    forms = dict(enumerate(islice(combinations(_FIELDS, 4), 300), 1001))
    texts = {number: _schema(kind, names) for number, names in forms.items()}
    values = {n: {name: f"{name} {n}" for name in names} for n, names in forms.items()}
    payloads = [framed(n, _payload(kind, forms[n], values[n])) for n in forms]
    rest = [framed(1001, b"\xff"), framed(1300, b"\xff"), framed(1, b""), b"no frame"]
    lake = _lake(tmp_path / "all", spark, kind, texts)
    lake.land_values([*payloads, *rest])
    lake.run()
    rows = lake.rows()
    found = {place[1]: bare(row["value"]) for place, row in rows.items()}
    assert found == dict(enumerate(values.values()))
    assert [row["value_schema_id"] for _, row in sorted(rows.items())] == list(forms)
    lake.check()
    # A range with only one form has the same results.
    for at, number in ((0, 1001), (299, 1300)):
        alone = _lake(tmp_path / str(number), spark, kind, {number: texts[number]})
        alone.land_values([payloads[at], framed(number, b"\xff")])
        alone.run()
        assert bare(alone.rows()[0, 0]["value"]) == values[number]
        assert alone.reasons()[0, 1] == lake.reasons()[0, 300 + bool(at)]


def _passes(kind: Format, *texts: str, at_once: int = 1, widens: bool = True) -> list[list[int]]:
    """Return the schema ids of each pass."""
    written = WriterSchemas(
        schemas=[
            RegisteredSchema(id=number, kind=kind.kind, text=text)
            for number, text in enumerate(texts, 1)
        ],
        widens=widens,
    )
    return [[each.id for each in one.schemas] for one in in_passes(kind, written, at_once)]


def test_schemas_that_decode_in_the_same_way_share_a_pass() -> None:
    """Documentation, defaults, aliases and layout do not affect payloads."""
    first = {"name": "side", "type": {"type": "enum", "name": "S", "symbols": ["BUY", "SELL"]}}
    documented = {**first, "doc": "of the trade", "default": "BUY", "aliases": ["way"]}
    swapped = {"name": "side", "type": {"type": "enum", "name": "S", "symbols": ["SELL", "BUY"]}}
    texts = [_avro(first), _avro(documented, doc="a trade"), _avro(swapped)]
    assert _passes(Format.AVRO, *texts) == [[1, 2], [3]]
    described = json.dumps({**json.loads(_schema(Format.JSON_SCHEMA, ["a"])), "title": "A"})
    texts = [_schema(Format.JSON_SCHEMA, ["a"]), _schema(Format.JSON_SCHEMA, ["b"]), described]
    assert _passes(Format.JSON_SCHEMA, *texts) == [[1, 3], [2]]
    sources = [_source(["a", "b"]), _source(["b", "a"]), "// A.\n" + _source(["a", "b"])]
    assert _passes(Format.PROTOBUF, *map(descriptors, sources)) == [[1, 3], [2]]


def test_schemas_with_other_number_types_have_other_forms() -> None:
    """A date is not a number; without widening, a number has 32 bits."""
    kinds = ("int", "long", {"type": "int", "logicalType": "date"})
    texts = [_avro({"name": "n", "type": kind}) for kind in kinds]
    assert _passes(Format.AVRO, *texts, widens=True) == [[1, 2], [3]]
    assert _passes(Format.AVRO, *texts, widens=False) == [[1], [2], [3]]


def test_a_pass_has_at_most_the_given_number_of_forms() -> None:
    """Each form has all its schemas. A range without schemas has one pass."""
    texts = [_schema(Format.JSON_SCHEMA, [name]) for name in (*_FIELDS[:5], *_FIELDS[:2])]
    assert _passes(Format.JSON_SCHEMA, *texts, at_once=2) == [[1, 6, 2, 7], [3, 4], [5]]
    assert _passes(Format.JSON_SCHEMA, *texts, at_once=5) == [[1, 6, 2, 7, 3, 4, 5]]
    assert _passes(Format.JSON_SCHEMA) == [[]]
