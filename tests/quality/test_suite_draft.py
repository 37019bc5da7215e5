"""Drafts of suites: their rules describe the sampled records."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.core.record import LogRecord, TimestampType
from tidemark.dev.samples import SAMPLES
from tidemark.quality.suite import BATCH_COLUMNS, Suite, load_suite
from tidemark.quality.suite_draft import draft_suite
from tidemark.typed.profile import Profile

COLUMNS = set(BATCH_COLUMNS)


def record(value: bytes | None, key: bytes | None = b"k", offset: int = 0) -> LogRecord:
    """Return a record."""
    return LogRecord(
        partition=0,
        offset=offset,
        key=key,
        value=value,
        headers=(),
        timestamp_ms=0,
        timestamp_type=TimestampType.CREATE,
    )


def profile_of(values: Iterable[Any], key: str | None = None) -> Profile:
    """Return a profile of JSON values; `key` names the field that is the record's key."""
    return Profile.of(
        record(json.dumps(value).encode(), str(value[key]).encode() if key else b"k", offset)
        for offset, value in enumerate(values)
    )


def rules(suite: dict[str, Any], column: str) -> dict[str, dict[str, Any]]:
    """Return the rules of a draft about a column, by expectation."""
    return {
        rule["type"].removeprefix("expect_column_values_to_"): rule["kwargs"]
        for rule in suite["expectations"]
        if rule["kwargs"]["column"] == column
    }


def draft_of(profile: Profile) -> dict[str, Any]:
    """Return a draft with the name `mine`."""
    return draft_suite("mine", profile, COLUMNS)


def load_draft(suite: dict[str, Any], folder: Path) -> Suite:
    """Return a draft as a loaded suite."""
    file = folder / "mine.json"
    file.write_text(json.dumps(suite), encoding="utf-8")
    return load_suite(file)


def test_a_profile_counts_keys_tombstones_objects_and_fields() -> None:
    """S4: null is not empty. Other values than JSON objects have no fields."""
    profile = Profile.of(
        [
            record(b'{"a": 1, "b": "x", "c": {"d": 1}, "e": null}', key=b"x"),
            record(b'{"a": 2.5, "b": "y"}', key=b"\xff"),
            record(b'{"a": true}', key=None),
            record(None),
            record(b""),
            record(b"[1]"),
            record(b'{"a": NaN}'),
            record(b"\xff\xfe"),
            # For Spark neither is JSON.
            record('{"a": 1}'.encode("utf-8-sig")),
            record('{"a": 1}'.encode("utf-16")),
        ]
    )
    assert (profile.records, profile.with_key, profile.tombstones) == (10, 9, 1)
    assert (profile.objects, profile.values) == (3, 9)
    types = {each.name: (each.sql_type, each.present) for each in profile.fields.values()}
    assert types == {
        "a": ("STRING", 3),
        "b": ("STRING", 2),
        "c": (None, 1),
        "e": ("STRING", 0),
    }
    assert (profile.fields["b"].equal_to_key, profile.fields["b"].with_key) == (1, 2)


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([1, 2], "BIGINT"),
        ([1, 2.5], "DOUBLE"),
        ([1, "2"], "STRING"),
        ([2**63], "STRING"),
        ([True, False], "BOOLEAN"),
        (["2026-03-01T12:00:00Z"], "STRING"),
    ],
)
def test_a_field_has_the_type_that_represents_all_its_values(
    values: list[Any], wanted: str
) -> None:
    """Spark's from_json returns null for other values."""
    profile = profile_of({"f": value} for value in values)
    assert profile.fields["f"].sql_type == wanted


def test_rules_describe_the_sample() -> None:
    """Covers limits, sets, shapes, presence, uniqueness and keys."""
    values = [
        {
            "id": f"{number:08x}-0000-4000-8000-000000000000",
            "side": ("buy", "sell")[number % 2],
            "price": 10 + number,
            "change": number - 50.0,
            "ticker": "ABCDEFGHIJKLMN"[number % 14] * 3,
            "open": number % 3 == 0,
            **({"note": "x"} if number % 2 else {}),
        }
        for number in range(200)
    ]
    suite = draft_of(profile_of(values, key="ticker"))
    assert rules(suite, "price") == {
        "be_between": {"column": "price", "min_value": 0, "strict_min": True, "max_value": 3_000},
        "be_unique": {"column": "price"},
    }
    assert rules(suite, "change") == {
        "be_between": {"column": "change", "min_value": -2_000, "max_value": 2_000}
    }
    assert rules(suite, "side")["be_in_set"]["value_set"] == ["buy", "sell"]
    assert set(rules(suite, "id")) == {"match_regex", "be_unique"}
    assert rules(suite, "ticker") == {}
    assert rules(suite, "note") == {
        "be_in_set": {"column": "note", "value_set": ["x"]},
    }
    assert rules(suite, "open") == {}
    problem = suite["meta"]["tidemark"]["columns"]["value_problem"]
    for always in ("id", "side", "price", "change", "ticker", "open"):
        assert f"THEN 'no {always}'" in problem
    assert "note" not in problem
    assert "key_problem" in rules(suite, "key_problem")["be_null"]["column"]
    checks = suite["meta"]["tidemark"]["checks"]
    assert checks["null_key_percent"] == {"limit": 0, "severity": "warning"}
    assert {rule["severity"] for rule in suite["expectations"]} == {"warning"}


def test_few_records_yield_only_a_rule_about_presence() -> None:
    """Ten values are too few for other rules."""
    suite = draft_of(profile_of({"price": number} for number in range(10)))
    assert [rule["kwargs"]["column"] for rule in suite["expectations"]] == ["value_problem"]
    assert suite["meta"]["tidemark"]["checks"] == {}


def test_huge_numbers_get_no_limits() -> None:
    """Ten times the largest number would be infinite."""
    suite = draft_of(profile_of({"n": number * 1.7e300} for number in range(200)))
    assert set(rules(suite, "n")) <= {"be_unique"}


def test_values_that_are_no_json_get_no_field_rules() -> None:
    """The notes state the reason."""
    suite = draft_of(Profile.of(record(b"text %d" % n, b"%d" % n, n) for n in range(200)))
    assert set(suite["meta"]["tidemark"]["columns"]) == set()
    assert rules(suite, "key_text")["match_regex"]["regex"] == "^[0-9]+$"
    assert len(suite["expectations"]) == 1
    assert "0 of 200 values are JSON objects" in suite["notes"]


def test_one_value_of_200_that_is_no_json_makes_the_rule_tolerant() -> None:
    """A strict rule would fail on the sample."""
    values = [record(b'{"a": 1}', None, n) for n in range(199)]
    suite = draft_of(Profile.of([*values, record(b"oops", None, 199)]))
    assert rules(suite, "value_problem")["be_null"]["mostly"] == 0.99


def test_the_key_rule_ignores_records_without_a_key() -> None:
    """In the sample prices a twentieth has no key."""
    records = [record(b'{"t": "T%d"}' % n, b"T%d" % n if n % 20 else None, n) for n in range(200)]
    assert "be_null" in rules(draft_of(Profile.of(records)), "key_problem")
    others = [record(b'{"t": "T%d"}' % n, b"other", n) for n in range(3)]
    assert "be_null" not in rules(draft_of(Profile.of([*records, *others])), "key_problem")


def test_one_of_200_keys_that_differs_makes_the_key_rule_tolerant() -> None:
    """Keys are compared as text: Spark would cast them to numbers."""
    odd = record(b'{"id": 1}', b"abc", 200)
    records = [record(b'{"id": %d}' % n, b"%d" % n, n) for n in range(200)]
    suite = draft_of(Profile.of(records))
    assert "mostly" not in rules(suite, "key_problem")["be_null"]
    suite = draft_of(Profile.of([*records, odd]))
    assert rules(suite, "key_problem")["be_null"]["mostly"] == 0.99
    assert "CAST(content.`id` AS STRING)" in suite["meta"]["tidemark"]["columns"]["key_problem"]


def test_e_mail_addresses_are_not_listed() -> None:
    """Identifiers do not belong in a file in Git."""
    values = [{"mail": f"{'abc'[n % 3]}@example.org", "n": str(n % 3)} for n in range(200)]
    suite = draft_of(profile_of(values))
    assert "example.org" not in json.dumps(suite)
    assert set(rules(suite, "mail")) == {"match_regex"}


@pytest.mark.parametrize("values", [[1, "1"], [True, "true"]])
def test_values_with_equal_text_count_as_one(values: list[Any]) -> None:
    """Spark reads a field of several types as text."""
    suite = draft_of(profile_of({"f": values[n % 2]} for n in range(200)))
    assert rules(suite, "f") == {}
    assert profile_of({"f": value} for value in values).fields["f"].is_unique is False


@pytest.mark.parametrize("sample", ["prices", "orders", "streams-intro"])
def test_drafts_of_the_samples_are_valid_suites(sample: str, tmp_path: Path) -> None:
    """The quality check can load them."""
    made = SAMPLES[sample].records(seed=1, start=0, count=1_000, base_ms=0)
    profile = Profile.of(record(each.value, each.key, n) for n, each in enumerate(made))
    suite = load_draft(draft_of(profile), tmp_path)
    assert bool(suite.columns) == (sample != "streams-intro")
    assert suite.notes.startswith("Drafted from 1,000 record(s)")


_names = st.sampled_from(
    [
        "a",
        "A",
        "key",
        "Value",
        "content",
        "content_field",
        "value_problem",
        "offset",
        "a.b",
        "`",
        "",
    ]
)
_leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5)
)
_values = st.dictionaries(
    _names | st.text(max_size=3),
    _leaves | st.lists(_leaves, max_size=2) | st.dictionaries(st.text(max_size=2), _leaves),
    max_size=6,
)


@settings(deadline=None, max_examples=50)
@given(st.lists(_values, min_size=1, max_size=3), st.integers(1, 150))
def test_a_draft_of_any_values_is_a_valid_suite(
    tmp_path_factory: pytest.TempPathFactory, values: list[dict[str, Any]], times: int
) -> None:
    """Column names are unique, and every rule names an existing column."""
    suite = draft_of(profile_of(values * times))
    columns = [name.lower() for name in suite["meta"]["tidemark"]["columns"]]
    assert len(columns) == len(set(columns))
    assert not COLUMNS & set(columns)
    load_draft(suite, tmp_path_factory.mktemp("suite"))
