"""Tests of drafts of the section `decode`, from landed records."""

from __future__ import annotations

import json
import re
from datetime import date, datetime
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.plans import make_record
from tests.support.registry import avro_bytes
from tidemark.core.record import LogRecord
from tidemark.draft.decode import DecodeDraft, NoUsableField, draft_decode
from tidemark.draft.profile import Profile
from tidemark.silver.typed.errors import RegistryUnavailable
from tidemark.silver.typed.json_types import MAX_FIELDS
from tidemark.silver.typed.registry_answers import RegistryAnswers
from tidemark.spec.decode import Format, RegisteredSchema
from tidemark.spec.type_parsing import parse_type


def draft_of_records(records: list[LogRecord]) -> DecodeDraft:
    """Return the draft for some records."""
    return draft_decode(Profile.of(records))


def draft_of_values(*values: Any) -> DecodeDraft:
    """Return the draft for records with these values in JSON."""
    return draft_of_records([make_record(json.dumps(value).encode()) for value in values])


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2], "long"),
        ([1, 2.5], "double"),
        ([1, 2**63], "decimal(28,0)"),
        ([-(2**63)], "long"),
        ([10**28], "string"),
        ([True, None], "boolean"),
        ([True, 1], "string"),
        (["a", 1], "string"),
        ([{"a": 1}, "a"], "string"),
        ([{"a": 1}, [1]], "string"),
        (["2026-02-28"], "date"),
        (["2026-02-30"], "string"),
        (["2026-02-28", "2026-02-28T12:00:00Z"], "string"),
        (["2026-02-28T12:00:00.5Z", "2026-02-28 12:00:00+01:00"], "timestamp"),
        (["2026-02-28T25:00:00Z"], "string"),
        (["2026-02-28T12:00:00+18:00"], "timestamp"),
        (["2026-02-28T12:00:00+18:30"], "string"),
        (["2026-02-28T12:00:00+01:75"], "string"),
        ([{"a": 1}, {"b": "x"}], {"a": "long", "b": "string"}),
        ([[], [1], [2.5]], ["double"]),
        ([[{"a": 1}], [{"b": None}, {"a": 2.5}]], [{"a": "double"}]),
        ([{str(n): n for n in range(MAX_FIELDS + 1)}], "string"),
    ],
)
def test_the_drafted_type_stores_all_sampled_values(values: list[Any], kind: Any) -> None:
    """The order of the values does not matter."""
    for some in (values, values[::-1]):
        found = draft_of_values(*({"field": value} for value in some)).as_section()["value"]
        if isinstance(kind, dict):
            assert dict(found["schema"]["field"]) == kind
        else:
            assert found == {"format": "json", "schema": {"field": kind}}


def test_fields_of_unknown_type_are_reported_as_left_out() -> None:
    """A guessed type could reject later values."""
    found = draft_of_values(
        {"a": None, "b": [], "c": {}, "d": {"e": None}, "f": [[None]], "g": 1, "x y": 2}
    )
    assert found.as_section()["value"]["schema"] == {"g": "long"}
    assert [path for path, _ in found.left_out] == ["a", "b[]", "c", "d.e", "d", "f[][]", "x y"]
    assert [path for path, _ in draft_of_values({"a": 1, "A": 2}).left_out] == ["A"]


@pytest.mark.parametrize(
    ("values", "key", "formats"),
    [
        ([b"{}"], b"\xff", ("binary", "string")),
        ([b"text", b"more"], None, ("string", "string")),
        ([b"\xff", b"text"], b"k", ("string", "binary")),
        ([b'{"a": 1}'] * 95 + [b"\xff"] * 5, b"k", ("string", "json")),
        ([b'{"a": 1}'] * 94 + [b"x"] * 6, b"k", ("string", "string")),
        ([None], b"k", ("string", "binary")),
        ([b"\0\0\0\0\x03text"], b"k", ("string", "binary")),
        ([b'\0\0\0\0\x07{"a":1}'], b"\0\0\0\0\x01k", ("binary", "binary")),
    ],
)
def test_nearly_all_values_decide_the_format(
    values: list[bytes | None], key: bytes | None, formats: tuple[str, str]
) -> None:
    """A few broken values go to the quarantine; other bytes stay binary."""
    found = draft_of_records([make_record(value, key) for value in values]).as_section()
    assert (found["key"]["format"], found["value"]["format"]) == formats


@pytest.mark.parametrize(
    ("chosen", "value", "unfit", "percent"),
    [
        (None, {"format": "string"}, 0, None),
        (Format.JSON, {"format": "json", "schema": {"a": "long"}}, 12, 18),
        (Format.BINARY, {"format": "binary"}, 0, None),
        (Format.AVRO, {"format": "avro"}, 100, 100),
    ],
)
def test_a_chosen_format_is_drafted_with_the_records_that_do_not_fit(
    chosen: Format | None, value: dict[str, Any], unfit: int, percent: int | None
) -> None:
    """The evidence has the share of JSON objects, and the share that a format needs."""
    values = [b'{"a": 1}'] * 88 + [b"oops"] * 12
    found = draft_decode(Profile.of([make_record(each) for each in values]), chosen)
    section = found.as_section()
    assert (section["value"], found.unfit) == (value, unfit)
    assert section.get("quarantine") == (percent and {"percent": percent})
    assert yaml.safe_load("\n".join(found.yaml_lines())) == {"decode": section}
    evidence = {each.key: each.evidence for each in found.assumptions}["decode.value.format"]
    json_values = "88 of 100 values are JSON objects (88.0%, and a format needs 95%)"
    found_values = f"all 100 values are text; {json_values}"
    assert evidence == (f"chosen; {found_values}" if chosen else found_values)


def test_json_is_refused_for_values_without_a_usable_field() -> None:
    with pytest.raises(NoUsableField, match="all 1 values are text"):
        draft_decode(Profile.of([make_record(b"text")]), Format.JSON)


def framed(schema_id: int, count: int) -> list[LogRecord]:
    """Return records whose value begins with a schema id."""
    return [make_record(b"\0" + schema_id.to_bytes(4, "big") + b"x")] * count


@pytest.mark.parametrize(
    ("kind", "value"),
    [("AVRO", "avro"), ("JSON", "json_schema"), ("PROTOBUF", "protobuf"), ("OTHER", "binary")],
)
def test_the_registry_decides_the_format_of_values_with_a_schema_id(kind: str, value: str) -> None:
    asked: list[set[int]] = []

    def registry(ids: Any) -> RegistryAnswers:
        asked.append(set(ids))
        schemas = {each: RegisteredSchema(id=each, kind=kind, text="{}") for each in ids}
        return RegistryAnswers(connection="registry", schemas=schemas)

    records = [*framed(3, 60), *framed(4, 36), *framed(5, 0)]
    found = draft_decode(Profile.of_sample(lambda: records, registry))
    assert (asked, found.as_section()["value"]) == ([{3, 4}], {"format": value})


def test_the_draft_counts_values_that_do_not_match_their_schema_as_unfit() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "string"}]}
    answers = RegistryAnswers(
        connection="registry",
        schemas={3: RegisteredSchema(id=3, kind="AVRO", text=json.dumps(schema))},
    )
    whole = b"\0\0\0\0\x03" + avro_bytes(schema, {"n": "five"})
    values = [whole] * 96 + [whole[:-1], whole + b"x", b"oops", b"\x01" + whole[1:]]
    records = [make_record(each) for each in values]
    found = draft_decode(Profile.of_sample(lambda: records, lambda _: answers))
    assert found.as_section()["value"] == {"format": "avro"}
    assert found.unfit == 4
    assert "2 do not match their schema" in "\n".join(found.yaml_lines())


def test_values_with_a_schema_id_stay_bytes_without_an_answer_of_the_registry() -> None:
    """The draft contains the reason and the possible formats."""
    problem = RegistryUnavailable(connection="registry", schema_id=3, reason="ConnectError")
    answers = RegistryAnswers(connection="registry", problem=problem)
    records = framed(3, 20)
    asked = Profile.of_sample(lambda: records, lambda _: answers)
    for profile, why in (
        (Profile.of(records), "no registry was read"),
        (asked, "ConnectError"),
    ):
        found = draft_decode(profile)
        assert found.as_section()["value"] == {"format": "binary"}
        text = "\n".join(found.yaml_lines())
        assert "avro, json_schema, protobuf" in text
        assert why in text


def test_two_of_508_values_do_not_decide_the_type_of_a_field() -> None:
    """The draft has the type of the others, and counts the records for quarantine."""
    found = draft_of_values(*({"price": n / 4} for n in range(506)), *([{"price": "n/a"}] * 2))
    assert found.as_section()["value"]["schema"] == {"price": "double"}
    assert found.unfit == 2
    text = "\n".join(found.yaml_lines())
    assert "price: double  # 506 of 508 values; quarantine: 2 string" in text
    assert "At most 2 of 508 sampled records (0.4%) do not fit" in text


def test_a_field_of_several_frequent_types_is_text_and_names_them() -> None:
    """A narrower type would send more than a twentieth of the records to quarantine."""
    found = draft_of_values(*({"id": n} for n in range(94)), *([{"id": "x"}] * 6))
    assert found.as_section()["value"]["schema"] == {"id": "string"}
    assert found.unfit == 0
    assert "of several types: 94 long, 6 string" in "\n".join(found.yaml_lines())


def test_the_lines_of_a_draft_are_the_section_as_yaml() -> None:
    """Comments and quotes do not change the content for any names of fields."""
    names = ["plain", "with space", "yes", "1", "a.b", "ü", "Null", "#x"]
    value = {name: [{"in": n, "list": [[n]]}] for n, name in enumerate(names)}
    found = draft_of_values(value, {"plain": [{"in": 0.5}]})
    assert yaml.safe_load("\n".join(found.yaml_lines())) == {"decode": found.as_section()}


def test_a_deeply_nested_value_does_not_stop_the_draft() -> None:
    """One such record may be among thousands."""
    deep = b'{"a":' * 600 + b"1" + b"}" * 600
    found = draft_of_records([make_record(deep), make_record(b'{"b": 1}')])
    assert found.schema is not None
    assert dict(found.schema.fields)["b"] == "long"


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=12,
)


_QUOTED = re.compile(r'"([^"\\]|\\.)*"')


@pytest.mark.slow
@settings(deadline=None, derandomize=True)
@given(st.lists(st.dictionaries(st.text(max_size=3), _JSON, max_size=4), max_size=4))
def test_any_sample_drafts_a_valid_schema(values: list[Any]) -> None:
    """Each field is in the schema or reported as left out."""
    found = draft_of_values(*values)
    schema = found.as_section()["value"].get("schema")
    if schema is not None:
        assert parse_type(schema) == found.schema
        left_out = [path for path, _ in found.left_out]
        # A path begins with a name, in quotes if the name has a separator of paths.
        left_out += [json.JSONDecoder().raw_decode(p)[0] for p in left_out if _QUOTED.match(p)]
        for name in (name for value in values for name in value):
            assert name in schema or any(path.startswith(name) for path in left_out)


def test_only_dates_of_the_calendar_are_dates() -> None:
    """Other texts of the same form stay text."""
    value = {"day": date(2026, 2, 28).isoformat(), "at": datetime(2026, 2, 28, 12).isoformat()}
    assert draft_of_values(value).as_section()["value"]["schema"] == {
        "day": "date",
        "at": "timestamp",
    }
