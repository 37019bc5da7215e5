"""Sample records are reproducible and contain null keys, tombstones and skew."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime

import pytest

from tidemark.local.samples import FAVOURITE_SHARE, SAMPLES, STEP_MS, Sample

BASE_MS = 1_767_340_800_000


def _records(name: str, *, start: int = 0, count: int = 1_000, seed: int = 1) -> list[Sample]:
    return list(SAMPLES[name].records(seed=seed, start=start, count=count, base_ms=BASE_MS))


@pytest.mark.parametrize("name", SAMPLES)
def test_the_same_request_yields_the_same_records(name: str) -> None:
    """Seed, start and base time determine every byte."""
    assert _records(name) == _records(name)


@pytest.mark.parametrize("name", ["prices", "orders"])
def test_another_seed_yields_other_records(name: str) -> None:
    """The seed selects the random values."""
    assert _records(name, seed=1) != _records(name, seed=2)


@pytest.mark.parametrize("name", SAMPLES)
def test_two_successive_batches_equal_one_batch(name: str) -> None:
    """Keys and values depend on the index and not on the batch."""
    whole = _records(name, count=100)
    halves = [
        *_records(name, count=50),
        *SAMPLES[name].records(seed=1, start=50, count=50, base_ms=BASE_MS + 50 * STEP_MS),
    ]
    assert halves == whole


def test_the_bytes_of_a_known_record_do_not_change() -> None:
    """A change of Python or of this code would change them."""
    assert _records("prices", count=1) == [
        Sample(
            key=b"FJORD",
            value=(
                b'{"quote_id":"Q000000000","ticker":"FJORD","price":126.04,"currency":"NOK",'
                b'"event_time":"2026-01-02T08:00:00.000Z"}'
            ),
            headers=(("source", b"exchange-feed"), ("schema", b"price/1")),
            timestamp_ms=BASE_MS,
        )
    ]


def test_s22_streams_intro_is_the_first_example() -> None:
    """S22: five keyed records, foo and bar, in a topic of three partitions, without headers."""
    sample = SAMPLES["streams-intro"]
    assert (sample.partitions, sample.default_records) == (3, 5)
    records = _records("streams-intro", count=5)
    assert [(record.key, record.value) for record in records] == [
        (b"foo", b"first message"),
        (b"foo", b"second message"),
        (b"bar", b"first message"),
        (b"foo", b"third message"),
        (b"bar", b"second message"),
    ]
    assert {record.headers for record in records} == {()}


def test_s22_further_records_repeat_the_first_five() -> None:
    """S22: the order is the same."""
    twelve = [(record.key, record.value) for record in _records("streams-intro", count=12)]
    assert twelve == (twelve[:5] * 3)[:12]


def test_s16_s23_prices_are_skewed_to_one_ticker() -> None:
    """S23 and S16: at least 60 % of the prices, and not all, have one ticker as their key."""
    for seed in range(5):
        keys = Counter(record.key for record in _records("prices", seed=seed))
        (favourite, count), *_ = keys.most_common()
        assert favourite == b"ACME"
        assert 600 <= count <= 1_000 * (FAVOURITE_SHARE + 0.05)
        assert len(keys) == 9  # Eight tickers and the null key.


@pytest.mark.parametrize("name", ["prices", "orders"])
def test_s23_null_keys_and_tombstones_are_among_forty_records(name: str) -> None:
    """S23 and S4: even a small batch has null keys with a value, and a tombstone with a key."""
    records = _records(name, count=40)
    keyless = [record for record in records if record.key is None]
    tombstones = [record for record in records if record.value is None]
    assert len(keyless) == 2
    assert len(tombstones) == 1
    assert all(record.value is not None for record in keyless)
    assert all(record.key is not None for record in tombstones)


def test_s23_a_price_has_ticker_price_currency_and_time() -> None:
    """S23: JSON values; the key is the ticker, the event time is the record's timestamp."""
    for record in _records("prices"):
        if record.value is None:
            continue
        price = json.loads(record.value)
        assert list(price) == ["quote_id", "ticker", "price", "currency", "event_time"]
        assert record.key in (None, price["ticker"].encode())
        assert price["price"] > 0
        moment = datetime.fromisoformat(price["event_time"]).timestamp() * 1000
        assert round(moment) == record.timestamp_ms


def test_s23_an_order_is_keyed_by_its_account() -> None:
    """S23: JSON values; all of an account's orders are in one partition, so in one order."""
    for record in _records("orders"):
        if record.value is None:
            continue
        order = json.loads(record.value)
        assert record.key in (None, order["account"].encode())
        assert order["side"] in ("buy", "sell")
        assert order["quantity"] > 0


def test_s4_headers_have_values_empty_values_and_no_values() -> None:
    """S4: null is not empty, in headers too."""
    strategies = {dict(record.headers)["strategy"] for record in _records("orders")}
    assert {None, b"", b"pairs"} <= strategies


@pytest.mark.parametrize(("name", "field"), [("prices", "quote_id"), ("orders", "order_id")])
def test_successive_batches_repeat_no_id(name: str, field: str) -> None:
    """The second batch starts where the first one ended, with any seed."""
    records = _records(name, count=500) + _records(name, start=500, count=500, seed=9)
    ids = [json.loads(record.value)[field] for record in records if record.value is not None]
    assert len(ids) == len(set(ids)) == 975


def test_timestamps_follow_the_base_time() -> None:
    """They increase from the given time by one step for each index."""
    times = [record.timestamp_ms for record in _records("orders", start=77, count=3)]
    assert times == [BASE_MS, BASE_MS + STEP_MS, BASE_MS + 2 * STEP_MS]


def test_a_negative_start_or_count_is_refused() -> None:
    """Such a request is a mistake of the caller."""
    with pytest.raises(ValueError, match="negative"):
        _records("prices", start=-1)
    with pytest.raises(ValueError, match="negative"):
        _records("prices", count=-1)
