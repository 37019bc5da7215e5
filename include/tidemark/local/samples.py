"""Sample records: Kafka's usual first example, and a small trading platform.

A record is a function of sample, seed and index. So each run has the same records, and a second
batch that starts at the next index repeats no id. Timestamps start at the given time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from types import MappingProxyType
from typing import Any

STEP_MS = 10
"""Time between two successive sample records, in milliseconds."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One record to produce.

    Attributes:
        key: The key; None for a null key.
        value: The value; None for a tombstone.
        headers: Names and values in order; None for a null value.
        timestamp_ms: Create time, in milliseconds since 1970-01-01 UTC.
    """

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleTopic:
    """A topic and its sample records.

    Attributes:
        name: Name of the sample in `tidemark sample produce`, and of the topic.
        partitions: Number of partitions of a new topic.
        default_records: Default number of records.
        summary: Description, in one line.
        make: Returns the record for a random source, an index and a timestamp (ms).
    """

    name: str
    partitions: int
    default_records: int
    summary: str
    make: Callable[[Random, int, int], Sample]

    def records(self, *, seed: int, start: int, count: int, base_ms: int) -> Iterator[Sample]:
        """Yield the records with indexes `[start, start + count)`.

        Args:
            seed: Selects prices, sides and quantities; ids do not depend on it.
            start: Index of the first record.
            count: Number of records.
            base_ms: Timestamp of the first record; each later record is `STEP_MS` later.
        """
        if start < 0 or count < 0:
            raise ValueError(f"start and count must not be negative: {start}, {count}")
        for nth in range(count):
            index = start + nth
            # A text as seed gives the same values on every machine and in every process.
            source = Random(f"{self.name}/{seed}/{index}")
            yield self.make(source, index, base_ms + nth * STEP_MS)


# -- streams-intro: the first example (S22) ------------------------------------------------------

FIRST_FIVE = (
    (b"foo", b"first message"),
    (b"foo", b"second message"),
    (b"bar", b"first message"),
    (b"foo", b"third message"),
    (b"bar", b"second message"),
)
"""The five keyed records of the first example; further records repeat them."""


def _first_example(_: Random, index: int, timestamp_ms: int) -> Sample:
    key, value = FIRST_FIVE[index % len(FIRST_FIVE)]
    return Sample(key=key, value=value, headers=(), timestamp_ms=timestamp_ms)


# -- the trading platform (S23) ------------------------------------------------------------------


_FAVOURITE = ("ACME", 182.0, "USD")
"""Ticker, price and currency of a stock."""
_OTHERS = (
    ("BOLT", 41.5, "USD"),
    ("CRUX", 9.8, "USD"),
    ("DELTA", 77.0, "EUR"),
    ("EMBER", 310.0, "USD"),
    ("FJORD", 124.0, "NOK"),
    ("GROVE", 15.2, "GBP"),
    ("HALYARD", 58.0, "EUR"),
)
FAVOURITE_SHARE = 0.75
"""Share of prices and orders with the same ticker; its prices are in one partition (S16)."""

NULL_KEY_EVERY = 20
"""Distance between records without a key, in prices and in orders."""

TOMBSTONE_EVERY = 40
"""Distance between tombstones, in prices and in orders."""

_NULL_KEY_AT = 7
_TOMBSTONE_AT = 12


def _price(source: Random, index: int, timestamp_ms: int) -> Sample:
    ticker, price, currency = _stock(source)
    value = {
        "quote_id": f"Q{index:09d}",
        "ticker": ticker,
        "price": round(price * source.uniform(0.97, 1.03), 2),
        "currency": currency,
        "event_time": _iso(timestamp_ms),
    }
    headers = (("source", b"exchange-feed"), ("schema", b"price/1"))
    return _record(index, ticker, value, headers, timestamp_ms)


def _order(source: Random, index: int, timestamp_ms: int) -> Sample:
    ticker, price, currency = _stock(source)
    account = f"A{source.randint(1, 250):04d}"
    value = {
        "order_id": f"O{index:09d}",
        "account": account,
        "ticker": ticker,
        "side": source.choice(("buy", "sell")),
        "quantity": source.randint(1, 50) * 10,
        "limit_price": round(price * source.uniform(0.95, 1.05), 2),
        "currency": currency,
        "event_time": _iso(timestamp_ms),
    }
    strategy = source.choice((b"momentum", b"pairs", b"", None))
    headers = (("source", b"order-gateway"), ("schema", b"order/1"), ("strategy", strategy))
    return _record(index, account, value, headers, timestamp_ms)


def _stock(source: Random) -> tuple[str, float, str]:
    return _FAVOURITE if source.random() < FAVOURITE_SHARE else source.choice(_OTHERS)


def _record(
    index: int, key: str, value: Mapping[str, Any], headers: Headers, timestamp_ms: int
) -> Sample:
    """Return a record; some indexes have no key, and some have no value."""
    has_no_key = index % NULL_KEY_EVERY == _NULL_KEY_AT
    is_tombstone = index % TOMBSTONE_EVERY == _TOMBSTONE_AT
    return Sample(
        key=None if has_no_key else key.encode(),
        value=None if is_tombstone else json.dumps(value, separators=(",", ":")).encode(),
        headers=headers,
        timestamp_ms=timestamp_ms,
    )


def _iso(timestamp_ms: int) -> str:
    moment = _EPOCH + timedelta(milliseconds=timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


SAMPLES: Mapping[str, SampleTopic] = MappingProxyType(
    {
        sample.name: sample
        for sample in (
            SampleTopic(
                name="streams-intro",
                partitions=3,
                default_records=len(FIRST_FIVE),
                summary="five keyed records, foo and bar",
                make=_first_example,
            ),
            SampleTopic(
                name="prices",
                partitions=6,
                default_records=1_000,
                summary="prices keyed by ticker, most of them of one ticker",
                make=_price,
            ),
            SampleTopic(
                name="orders",
                partitions=3,
                default_records=300,
                summary="orders keyed by account",
                make=_order,
            ),
        )
    }
)
"""All samples by name."""
