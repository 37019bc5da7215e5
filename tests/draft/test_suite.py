"""Drafts of suites: their rules describe the sampled records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.plans import make_record
from tests.support.registry import avro_bytes, framed
from tidemark.draft.profile import Profile
from tidemark.draft.suite import MIN_REPEATS, MIN_UNIQUE, MIN_VALUES, draft_suite
from tidemark.local.samples import SAMPLES
from tidemark.quality.suite import BATCH_COLUMNS, Suite, load_suite
from tidemark.silver.typed.registry_answers import Registry, RegistryAnswers
from tidemark.silver.typed.registry_protobuf import compiled
from tidemark.spec.decode import RegisteredSchema

COLUMNS = set(BATCH_COLUMNS)
_DATE = {"type": "int", "logicalType": "date"}


def profile_of(values: Iterable[Any], key: str | None = None) -> Profile:
    """Return a profile of JSON values; `key` names the field that is the record's key."""
    return Profile.of(
        make_record(json.dumps(value).encode(), str(value[key]).encode() if key else b"k", offset)
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
    return draft_suite("mine", profile)


def load_draft(suite: dict[str, Any], folder: Path) -> Suite:
    """Return a draft as a loaded suite."""
    file = folder / "mine.json"
    file.write_text(json.dumps(suite), encoding="utf-8")
    return load_suite(file)


def test_a_profile_counts_keys_tombstones_objects_and_fields() -> None:
    """S4: null is not empty. Other values than JSON objects have no fields."""
    profile = Profile.of(
        [
            make_record(b'{"a": 1, "b": "x", "c": {"d": 1}, "e": null}', key=b"x"),
            make_record(b'{"a": 2.5, "b": "y"}', key=b"\xff"),
            make_record(b'{"a": true}', key=None),
            make_record(None),
            make_record(b""),
            make_record(b"[1]"),
            make_record(b'{"a": NaN}'),
            make_record(b"\xff\xfe"),
            # For Spark neither is JSON.
            make_record('{"a": 1}'.encode("utf-8-sig")),
            make_record('{"a": 1}'.encode("utf-16")),
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
    """Covers limits, sets, shapes, presence and keys."""
    values = [
        {
            "id": f"{number:08x}-0000-4000-8000-000000000000",
            "side": ("buy", "sell")[number % 2],
            "price": 10 + number % 598,
            "payment_id": number // 2,
            "place": number,
            "change": number - 50.0,
            "ticker": "ABCDEFGHIJKLMN"[number % 14] * 3,
            "open": number % 3 == 0,
            **({"note": "x"} if number % 2 else {}),
        }
        for number in range(600)
    ]
    suite = draft_of(profile_of(values, key="ticker"))
    assert rules(suite, "price") == {
        "be_between": {"column": "price", "min_value": 0, "max_value": 7_000}
    }
    texts = [rule["description"] for rule in suite["expectations"]]
    assert "price is from 0 to 7,000; sampled values are 10 to 607" in texts
    assert rules(suite, "change") == {
        "be_between": {"column": "change", "min_value": -6_000, "max_value": 6_000}
    }
    for counter in ("payment_id", "place"):
        assert "be_between" not in rules(suite, counter)
    assert rules(suite, "side")["be_in_set"]["value_set"] == ["buy", "sell"]
    assert set(rules(suite, "id")) == {"match_regex"}
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


# -- chance ----------------------------------------------------------------------------------------


def test_fewer_values_than_the_minimum_yield_no_rule() -> None:
    """Properties of so few values may be chance, also presence and the absence of nulls."""
    values = [{"id": n, "price": 1.5 * n, "side": "buy"} for n in range(MIN_VALUES)]
    suite = draft_of(profile_of(values[1:], key="id"))
    assert suite["expectations"] == []
    assert suite["meta"]["tidemark"] == {"columns": {}, "checks": {}}
    assert "Rules need 300 values" in suite["notes"]
    assert draft_of(profile_of(values, key="id"))["expectations"] != []


@pytest.mark.parametrize("seed", range(5))
def test_values_that_differ_by_chance_are_not_unique(seed: int) -> None:
    """Prices, amounts, times and names rarely repeat in a sample, and do so in a batch."""
    random = Random(seed)
    values = [
        {
            "price": round(random.uniform(0, 1e9), 4),
            "amount": random.randrange(10**12),
            "at": f"2026-01-01T00:00:{n % 60:02}.{random.randrange(10**6):06}Z",
            "name": f"{random.randrange(10**12):x}",
            "customer_id": random.randrange(10**6),
        }
        for n in range(MIN_UNIQUE)
    ]
    suite = draft_of(profile_of(values))
    kinds = {rule["type"] for rule in suite["expectations"]}
    assert "expect_column_values_to_be_unique" not in kinds


def test_identifiers_are_unique_if_enough_of_them_never_repeat() -> None:
    """A name or a shape marks an identifier; its values alone do not."""
    values = [{"order_id": n, "trade": str(UUID(int=n)), "n": n} for n in range(MIN_UNIQUE)]
    suite = draft_of(profile_of(values))
    assert "be_unique" in rules(suite, "order_id")
    assert "be_unique" in rules(suite, "trade")
    assert "be_unique" not in rules(suite, "n")
    fewer = draft_of(profile_of(values[1:]))
    assert "be_unique" not in rules(fewer, "order_id")
    repeated = draft_of(profile_of([*values, values[0]]))
    assert "be_unique" not in rules(repeated, "order_id")


@pytest.mark.parametrize("seed", range(5))
def test_a_value_that_occurs_once_or_twice_prevents_a_list(seed: int) -> None:
    """Such a value shows that the sample lacks others like it."""
    random = Random(seed)
    common = [{"state": random.choice(["new", "paid", "sent"])} for _ in range(1_000)]
    assert rules(draft_of(profile_of(common)), "state")["be_in_set"]["value_set"] == [
        "new",
        "paid",
        "sent",
    ]
    rare = [*common, *({"state": "lost"} for _ in range(MIN_REPEATS - 1))]
    assert rules(draft_of(profile_of(rare)), "state") == {}


@pytest.mark.parametrize("seed", range(5))
def test_a_list_has_all_values_of_a_field_with_few_values(seed: int) -> None:
    """A rule that chance supports would refuse further values of the same field."""
    random = Random(seed)
    weights = [1 / (rank + 1) ** 2 for rank in range(10)]
    states = [f"s{rank}" for rank in range(10)]
    for size in (300, 1_000, 5_000):
        sample = random.choices(states, weights, k=size)
        found = rules(draft_of(profile_of({"state": each} for each in sample)), "state")
        if found:
            assert found["be_in_set"]["value_set"] == sorted(states)


def test_a_handful_of_numbers_has_no_limits() -> None:
    """A field with a few codes, or always 0, may have another number next."""
    codes = [{"status": (200, 404, 500)[n % 3], "retries": 0} for n in range(1_000)]
    suite = draft_of(profile_of(codes))
    assert rules(suite, "status") == {}
    assert rules(suite, "retries") == {}


def test_equality_with_a_single_key_is_chance() -> None:
    """All records of the sample may have the same key and the same value."""
    suite = draft_of(profile_of(({"side": "buy"} for _ in range(1_000)), key="side"))
    assert rules(suite, "key_problem") == {}
    few = [make_record(b"text", b"7", n) for n in range(1_000)]
    assert draft_of(Profile.of(few))["expectations"] == []


def test_a_rule_with_exceptions_holds_for_batches_like_the_sample() -> None:
    """The limit is the lower end of the interval of the share, not the share itself."""
    values = [make_record(b'{"a": 1}', None, n) for n in range(490)]
    suite = draft_of(Profile.of([*values, *(make_record(b"oops", None, n) for n in range(10))]))
    assert rules(suite, "value_problem")["be_null"]["mostly"] == 0.96
    tombstones = [make_record(None, None, n) for n in range(2)]
    checks = draft_of(Profile.of([*values, *tombstones]))["meta"]["tidemark"]["checks"]
    assert checks["null_value_percent"]["limit"] == 2


# -- edge cases ------------------------------------------------------------------------------------


def test_huge_numbers_get_no_limits() -> None:
    """Ten times the largest number would be infinite."""
    suite = draft_of(profile_of({"n": number * 1.7e300} for number in range(300)))
    assert rules(suite, "n") == {}


def test_values_that_are_no_json_get_no_field_rules() -> None:
    """The notes state the reason."""
    suite = draft_of(Profile.of(make_record(b"text %d" % n, b"%d" % n, n) for n in range(300)))
    assert set(suite["meta"]["tidemark"]["columns"]) == set()
    assert rules(suite, "key_text")["match_regex"]["regex"] == "^[0-9]+$"
    assert len(suite["expectations"]) == 1
    assert "0 of 300 values are JSON objects" in suite["notes"]


_TRADES = {
    3: [("id", "string"), ("price", "double"), ("side", "string"), ("day", _DATE)],
    4: [
        *[("id", "string"), ("price", "float"), ("side", ["null", "string"]), ("day", _DATE)],
        *[("note", ["null", "string"]), ("legs", {"type": "array", "items": "int"})],
    ],
}
"""Fields of two schemas of trades in Avro."""


def trade_schema(schema_id: int) -> dict[str, Any]:
    """Return a schema of trades."""
    fields = [{"name": name, "type": kind} for name, kind in _TRADES[schema_id]]
    return {"type": "record", "name": "Trade", "doc": "it's", "fields": fields}


def answers(kind: str, texts: Mapping[int, str]) -> Registry:
    """Return a registry with some schemas."""
    schemas = {
        each: RegisteredSchema(id=each, kind=kind, text=text) for each, text in texts.items()
    }
    return lambda _: RegistryAnswers(connection="registry", schemas=schemas)


def avro_trades(count: int = 400) -> Profile:
    """Return a profile of trades in Avro, whose key is the field `id`, with two schemas."""

    def value(number: int) -> bytes:
        schema_id = 3 + number % 2
        trade = {
            "id": f"T{number % 50}",
            "price": number / 4,
            "side": ("buy", "sell")[number % 2],
            "day": date(2026, 3, 1 + number % 2),
            **({"note": None, "legs": [1]} if schema_id == 4 else {}),
        }
        return framed(schema_id, avro_bytes(trade_schema(schema_id), trade))

    records = [make_record(value(n), b"T%d" % (n % 50), n) for n in range(count)]
    texts = {each: json.dumps(trade_schema(each)) for each in _TRADES}
    return Profile.of_sample(lambda: records, answers("AVRO", texts))


def test_rules_describe_fields_of_avro_values_in_all_their_schemas(tmp_path: Path) -> None:
    """Lists and dates get no rule: a later batch has other days."""
    suite = draft_of(avro_trades())
    assert load_draft(suite, tmp_path).expectations
    texts = [rule["description"] for rule in suite["expectations"]]
    assert texts == [
        "every value is Avro with id, price, side, day",
        "price is from 0 to 1,000; sampled values are 0 to 99.75",
        "side is one of the 2 sampled values",
        "every key is the id in its value",
    ]
    columns = suite["meta"]["tidemark"]["columns"]
    assert columns["price"] == (
        "coalesce(CAST(content_3.`price` AS DOUBLE), CAST(content_4.`price` AS DOUBLE))"
    )
    assert "it's" not in columns["content_3"]
    assert "Values of schemas other than 3, 4 pass every rule about fields" in suite["notes"]


def test_few_avro_values_support_no_rule() -> None:
    assert draft_of(avro_trades(MIN_VALUES - 10))["expectations"] == []


def test_rules_read_json_values_behind_their_schema_id() -> None:
    text = json.dumps({"type": "object", "properties": {"n": {"type": "integer"}}})
    records = [make_record(framed(3, b'{"n": %d}' % (n % 399)), offset=n) for n in range(400)]
    suite = draft_of(Profile.of_sample(lambda: records, answers("JSON", {3: text})))
    assert suite["meta"]["tidemark"]["columns"]["content"] == (
        "from_json(CAST(substring(value, 6) AS STRING), '`n` BIGINT')"
    )
    assert rules(suite, "n")["be_between"]["max_value"] == 4_000


def test_protobuf_values_get_no_field_rules() -> None:
    """The notes name the alternative."""
    text = compiled('syntax = "proto3"; message M { string n = 1; }', {})
    records = [make_record(framed(3, b"\0\x0a\x01x"), offset=n) for n in range(400)]
    suite = draft_of(Profile.of_sample(lambda: records, answers("PROTOBUF", {3: text})))
    assert suite["expectations"] == []
    assert "Row rules (`decode.rules`)" in suite["notes"]


def test_the_key_rule_ignores_records_without_a_key() -> None:
    """In the sample prices a twentieth has no key."""
    records = [
        make_record(b'{"t": "T%d"}' % n, b"T%d" % n if n % 20 else None, n) for n in range(400)
    ]
    assert "be_null" in rules(draft_of(Profile.of(records)), "key_problem")
    others = [make_record(b'{"t": "T%d"}' % n, b"other", n) for n in range(30)]
    assert "be_null" not in rules(draft_of(Profile.of([*records, *others])), "key_problem")


def test_one_of_400_keys_that_differs_makes_the_key_rule_tolerant() -> None:
    """Keys are compared as text: Spark would cast them to numbers."""
    odd = make_record(b'{"id": 1}', b"abc", 400)
    records = [make_record(b'{"id": %d}' % n, b"%d" % n, n) for n in range(400)]
    suite = draft_of(Profile.of(records))
    assert "mostly" not in rules(suite, "key_problem")["be_null"]
    suite = draft_of(Profile.of([*records, odd]))
    assert rules(suite, "key_problem")["be_null"]["mostly"] == 0.98
    assert "CAST(content.`id` AS STRING)" in suite["meta"]["tidemark"]["columns"]["key_problem"]


def test_e_mail_addresses_are_not_listed() -> None:
    """Identifiers do not belong in a file in Git."""
    values = [{"mail": f"u{n % 30}@example.org", "n": str(n % 3)} for n in range(400)]
    suite = draft_of(profile_of(values))
    assert "example.org" not in json.dumps(suite)
    assert set(rules(suite, "mail")) == {"match_regex"}


@pytest.mark.parametrize("values", [[1, "1"], [True, "true"]])
def test_values_with_equal_text_count_as_one(values: list[Any]) -> None:
    """Spark reads a field of several types as text."""
    suite = draft_of(profile_of({"f": values[n % 2]} for n in range(400)))
    assert rules(suite, "f") == {}
    assert profile_of({"f": value} for value in values).fields["f"].is_unique is False


@pytest.mark.parametrize("sample", ["prices", "orders", "streams-intro"])
def test_drafts_of_the_samples_are_valid_suites(sample: str, tmp_path: Path) -> None:
    """The quality check can load them."""
    made = SAMPLES[sample].records(seed=1, start=0, count=1_000, base_ms=0)
    profile = Profile.of(make_record(each.value, each.key, n) for n, each in enumerate(made))
    suite = load_draft(draft_of(profile), tmp_path)
    assert bool(suite.columns) == (sample != "streams-intro")
    assert suite.notes.startswith("Drafted from 1,000 records")


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
@given(st.lists(_values, min_size=1, max_size=3), st.integers(1, 150).map(lambda n: 3 * n))
def test_a_draft_of_any_values_is_a_valid_suite(
    tmp_path_factory: pytest.TempPathFactory, values: list[dict[str, Any]], times: int
) -> None:
    """Column names are unique, and every rule names an existing column."""
    suite = draft_of(profile_of(values * times))
    columns = [name.lower() for name in suite["meta"]["tidemark"]["columns"]]
    assert len(columns) == len(set(columns))
    assert not COLUMNS & set(columns)
    load_draft(suite, tmp_path_factory.mktemp("suite"))
