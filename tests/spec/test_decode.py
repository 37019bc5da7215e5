"""Types of fields, and fingerprints of decoders."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from tidemark.core.publication import PublishRule
from tidemark.spec.decode import DecodeSpec, Format, PayloadSpec
from tidemark.spec.fields import Decimal, ListOf, Struct, plain_type
from tidemark.spec.type_parsing import InvalidType, parse_type
from tidemark.spec.upsert import UpsertSpec


def test_types_survive_parsing_and_printing() -> None:
    """Covers names, mappings and lists."""
    raw = {"a": "long", "price": "decimal(18,4)", "legs": [{"on": "date"}], "tags": ["string"]}
    parsed = parse_type(raw)
    assert parsed == Struct(
        (
            ("a", "long"),
            ("price", Decimal(18, 4)),
            ("legs", ListOf(Struct((("on", "date"),)))),
            ("tags", ListOf("string")),
        )
    )
    assert plain_type(parsed) == raw


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        ("text", "one of string, boolean"),
        ("decimal(2,10)", "s <= p <= 28"),
        ("decimal(29,1)", "s <= p <= 28"),
        (["long", "long"], "a list with one type"),
        ({}, "at least one field"),
        ({"a b": "long"}, "field names without spaces"),
        ({"a": "long", "A": "long"}, "differ in more than case"),
        ({True: "long"}, "quotes around names"),
        ({"a": {"b": "json"}}, "one of string, boolean"),
    ],
)
def test_an_invalid_type_raises_with_the_valid_ones(raw: Any, problem: str) -> None:
    """The message contains the expected form."""
    with pytest.raises(ValueError, match=problem):
        parse_type(raw)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("bigint", "long"), ("BIGINT", "long"), ("int8", "long"), ("unsigned", "long")),
        *(("int", "integer"), ("smallint", "integer"), ("integr", "integer"), ("Long", "long")),
        *(("doubel", "double"), ("float", "double"), ("double precision", "double")),
        *(("varchar", "string"), ("varchar(20)", "string"), ("text", "string"), ("uuid", "string")),
        *(("datetime", "timestamp"), ("timestamp_ntz", "timestamp"), ("timestamp(6)", "timestamp")),
        *(("timestamp with time zone", "timestamp"), ("bool", "boolean"), ("string(10)", "string")),
        *(("numeric", "decimal(18,2)"), ("numeric(10, 2)", "decimal(10,2)")),
        *(("decimal", "decimal(18,2)"), ("numeric(38,30)", "decimal(28,28)")),
        *(("decimal(10)", "decimal(10,0)"), ("numeric()", "decimal(18,2)")),
    ],
)
def test_a_type_of_another_system_suggests_the_type_of_a_spec(name: str, kind: str) -> None:
    """The suggestion is a valid type."""
    with pytest.raises(InvalidType) as refused:
        parse_type({"a": name})
    (problem,) = refused.value.problems
    assert (problem.path, problem.suggestion) == ("a", f" (did you mean {kind!r}?)")
    assert str(parse_type(kind)) == kind


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("struct<a: long>", "a mapping of fields"),
        ("map", "a mapping of fields"),
        ("array<string>", "a list with one type, such as [string]"),
        ("long[]", "a list with one type, such as [string]"),
    ],
)
def test_a_nested_type_as_text_suggests_its_form_in_a_spec(name: str, meant: str) -> None:
    with pytest.raises(InvalidType) as refused:
        parse_type({"a": name})
    assert [each.suggestion for each in refused.value.problems] == [f" (did you mean {meant}?)"]


@pytest.mark.parametrize("name", ["geography", "", 7, None, True, "decimal(29,1)"])
def test_a_type_that_resembles_none_has_no_suggestion(name: object) -> None:
    with pytest.raises(InvalidType) as refused:
        parse_type({"a": name})
    assert [each.suggestion for each in refused.value.problems] == [""]


def decode_spec(**changes: Any) -> DecodeSpec:
    """Text keys, and values with one number field."""
    value = PayloadSpec(format=Format.JSON, schema=Struct((("n", "long"),)))
    spec = DecodeSpec(key=PayloadSpec(format=Format.STRING), value=value, target="silver/events")
    return replace(spec, **changes)


def test_the_fingerprint_covers_all_settings_that_affect_rows() -> None:
    """It covers formats, schemas, and rules in their order, but no targets or limits."""
    spec = decode_spec()
    others = [
        decode_spec(key=PayloadSpec()),
        decode_spec(value=PayloadSpec(format=Format.JSON, schema=Struct((("n", "integer"),)))),
        decode_spec(rules=(("positive", "value.n > 0"),)),
    ]
    assert len({each.fingerprint for each in (spec, *others)}) == 4
    same = decode_spec(target="elsewhere", max_quarantined=5, max_quarantined_percent=1.0)
    assert same.fingerprint == spec.fingerprint


def test_fingerprints_do_not_change_with_an_upgrade() -> None:
    """Bookmarks store it. After a change, `verify` takes all rows for those of an earlier spec."""
    spec = decode_spec()
    assert spec.fingerprint == "8a09b262a01d"
    framed = replace(spec, key=PayloadSpec(format=Format.AVRO))
    assert framed.fingerprint == "f5ba8e9ba868"


NOT_IN_THE_FINGERPRINT = {
    "target": "a record decodes to the same row in every table",
    "publish": "selects records, and not how they are decoded",
    "max_quarantined": "is a number of records",
    "max_quarantined_percent": "as max_quarantined",
    "upsert": "is made of decoded rows",
}
"""Fields of a decoder that its fingerprint omits, and the reasons."""


def test_every_field_is_in_the_fingerprint_or_has_a_reason_for_its_absence() -> None:
    """Registry settings count only for formats with schema ids."""
    spec = decode_spec(key=PayloadSpec(format=Format.AVRO))
    payloads: dict[str, Any] = {"format": Format.BINARY, "schema": Struct((("n", "integer"),))}
    payloads["keeps_rest"] = True
    others: dict[str, Any] = {
        "key": PayloadSpec(format=Format.PROTOBUF),
        "value": PayloadSpec(),
        "target": "elsewhere",
        "publish": PublishRule.ALWAYS,
        "registry": "another",
        "widens": False,
        "refused_schemas": (7,),
        "rules": (("positive", "value.n > 0"),),
        "max_quarantined": 5,
        "max_quarantined_percent": 1.0,
        "upsert": UpsertSpec(target="silver/newest"),
        "flattens": True,
    }
    assert set(payloads) == {each.name for each in fields(PayloadSpec)}
    assert set(others) == {each.name for each in fields(DecodeSpec)}
    values = {name: replace(spec.value, **{name: payloads[name]}) for name in payloads}
    changed = {name: replace(spec, value=value) for name, value in values.items()}
    changed |= {name: replace(spec, **{name: others[name]}) for name in others}
    same = {name for name, each in changed.items() if each.fingerprint == spec.fingerprint}
    assert same == set(NOT_IN_THE_FINGERPRINT)


def test_the_quarantine_limit_is_the_larger_of_number_and_percentage() -> None:
    """The percentage is larger for many records."""
    spec = decode_spec(max_quarantined=10, max_quarantined_percent=5.0)
    assert [spec.quarantine_limit(records) for records in (0, 200, 201, 1_000)] == [10, 10, 10, 50]
