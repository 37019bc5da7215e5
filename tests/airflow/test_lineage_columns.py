"""Lineage of the columns of typed tables and upsert tables in both layouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from openlineage.client.facet_v2 import column_lineage_dataset

from tidemark.airflow.lineage.columns import typed_lineage, upsert_lineage
from tidemark.airflow.lineage.places import Place
from tidemark.delta.columns import BRONZE_SCHEMA
from tidemark.delta.table_checks import field_types
from tidemark.silver.typed.columns import typed_schema
from tidemark.spec.decode import DecodeSpec, Format, PayloadSpec
from tidemark.spec.fields import Struct
from tidemark.spec.flattening import flattened
from tidemark.spec.upsert import Envelope, UpsertSpec

SOURCE = Place("file", "/table")
VALUE = Struct((("n", "long"), ("timestamp", "string")))
DECODE = DecodeSpec(
    key=PayloadSpec(format=Format.STRING),
    value=PayloadSpec(format=Format.JSON, schema=VALUE, keeps_rest=True),
    target="silver/events",
)
UPSERT = UpsertSpec(target="gold/events")


def sources_of(facet: column_lineage_dataset.ColumnLineageDatasetFacet) -> Mapping[str, list[str]]:
    """Return the source columns of each column."""
    return {
        name: [each.field for each in sources.inputFields] for name, sources in facet.fields.items()
    }


@pytest.mark.parametrize("flattens", [False, True])
def test_each_column_of_a_typed_table_comes_from_a_bronze_column(*, flattens: bool) -> None:
    """Only the plan number has no source. All fields of a flattened value come from the value."""
    decode = replace(DECODE, flattens=flattens)
    columns = field_types(typed_schema(decode))
    found = sources_of(typed_lineage(SOURCE, columns, decode))
    assert set(found) == set(columns) - {"plan_sequence"}
    assert {name for sources in found.values() for name in sources} <= {
        field.name for field in BRONZE_SCHEMA.fields
    }
    of_value = {name for name, sources in found.items() if sources == ["value"]}
    fields = {"n", "value_timestamp", "_rest", "tombstone"}
    assert of_value == (fields if flattens else {"value"})
    assert found["timestamp"] == ["timestamp"]


_CHANGE = Struct((("after", VALUE), ("op", "string")))


@pytest.mark.parametrize("flattens", [False, True])
@pytest.mark.parametrize(
    ("envelope", "value", "holder"),
    [
        (Envelope.NONE, VALUE, None),
        (Envelope.DEBEZIUM, _CHANGE, "after"),
        (Envelope.DEBEZIUM, Struct((("payload", _CHANGE),)), "payload"),
    ],
)
def test_each_column_of_an_upsert_table_comes_from_a_typed_column(
    envelope: Envelope, value: Struct, holder: str | None, *, flattens: bool
) -> None:
    """Changes of a database have the row in a field, which is a column if flattened."""
    payload = replace(DECODE.value, schema=value, keeps_rest=False)
    typed = field_types(typed_schema(replace(DECODE, value=payload, flattens=flattens)))
    contents = flattened(VALUE) if flattens else {"value": VALUE}
    own = ("key", "topic_id", "partition", "offset", "timestamp", "plan_sequence", "deleted")
    columns = {**dict.fromkeys(own, "string"), **contents}
    upsert = replace(UPSERT, envelope=envelope, flattens=flattens)
    found = sources_of(upsert_lineage(SOURCE, typed, columns, upsert))
    assert set(found) == set(columns)
    assert {name for sources in found.values() for name in sources} <= set(typed)
    for name in contents:
        assert found[name] == ([holder] if flattens and holder else [name])
