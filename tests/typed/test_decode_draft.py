"""Tests of drafts of the section `decode`, from landed records."""

from __future__ import annotations

import json
from datetime import date, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.core.record import LogRecord, TimestampType
from tidemark.spec.fields import parse_type
from tidemark.typed.decode_draft import MAX_FIELDS, DecodeDraft, draft_decode
from tidemark.typed.profile import Profile


def record(value: bytes | None, key: bytes | None = b"k") -> LogRecord:
    """Return a record at offset 0 of partition 0."""
    return LogRecord(
        partition=0,
        offset=0,
        key=key,
        value=value,
        headers=(),
        timestamp_ms=0,
        timestamp_type=TimestampType.CREATE,
    )


def draft_of_records(records: list[LogRecord]) -> DecodeDraft:
    """Return the draft for some records."""
    return draft_decode(Profile.of(records))


def draft_of_values(*values: Any) -> DecodeDraft:
    """Return the draft for records with these values in JSON."""
    return draft_of_records([record(json.dumps(value).encode()) for value in values])


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
        ([b'{"a": 1}'] * 99 + [b"\xff"], b"k", ("string", "json")),
        ([b'{"a": 1}'] * 98 + [b"x", b"y"], b"k", ("string", "string")),
        ([None], b"k", ("string", "binary")),
        ([b"\0\0\0\0\x03text"], b"k", ("string", "binary")),
        ([b'\0\0\0\0\x07{"a":1}'], b"\0\0\0\0\x01k", ("binary", "binary")),
    ],
)
def test_nearly_all_values_decide_the_format(
    values: list[bytes | None], key: bytes | None, formats: tuple[str, str]
) -> None:
    """A few broken values go to the quarantine; other bytes stay binary."""
    found = draft_of_records([record(value, key) for value in values]).as_section()
    assert (found["key"]["format"], found["value"]["format"]) == formats


def test_values_with_schema_ids_are_reported() -> None:
    """Their bytes could also be text."""
    frames = [record(b"\0\0\0\0\x03text")] * 99
    assert draft_of_records([*frames, record(b"other")]).is_framed
    assert not draft_of_records([*frames, record(b"other"), record(b"\0")]).is_framed
    assert not draft_of_records([record(None)]).is_framed


def test_a_deeply_nested_value_does_not_stop_the_draft() -> None:
    """One such record may be among thousands."""
    deep = b'{"a":' * 600 + b"1" + b"}" * 600
    found = draft_of_records([record(deep), record(b'{"b": 1}')])
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


@settings(deadline=None, derandomize=True)
@given(st.lists(st.dictionaries(st.text(max_size=3), _JSON, max_size=4), max_size=4))
def test_any_sample_drafts_a_valid_schema(values: list[Any]) -> None:
    """Each field is in the schema or reported as left out."""
    found = draft_of_values(*values)
    schema = found.as_section()["value"].get("schema")
    if schema is not None:
        assert parse_type(schema) == found.schema
        for name in (name for value in values for name in value):
            assert name in schema or any(path.startswith(name) for path, _ in found.left_out)


def test_only_dates_of_the_calendar_are_dates() -> None:
    """Other texts of the same form stay text."""
    value = {"day": date(2026, 2, 28).isoformat(), "at": datetime(2026, 2, 28, 12).isoformat()}
    assert draft_of_values(value).as_section()["value"]["schema"] == {
        "day": "date",
        "at": "timestamp",
    }
