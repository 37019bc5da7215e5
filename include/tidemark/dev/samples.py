"""Sample records: the first Kafka example everybody knows, and a small trading platform.

Every record is a function of sample, seed and index, so two people see the same records, and a
second batch that starts at the next index repeats no id. Only timestamps follow the time passed in.
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
"""Time between two successive sample records, milliseconds."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One record to produce. None is not empty: a null key, a tombstone, a header with no value.

    Attributes:
        key: The key, or None for a record without.
        value: The value, or None for a tombstone.
        headers: Header names and values in order.
        timestamp_ms: Create time, milliseconds since 1970-01-01 UTC.
    """

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleTopic:
    """A topic and what is in it.

    Attributes:
        name: What `tidemark sample produce` calls it; also the topic's name.
        partitions: How many partitions the topic is made with.
        default_records: How many records are produced if nobody says.
        summary: One line for people.
        make: Random source, index and timestamp (ms) to a record.
    """

    name: str
    partitions: int
    default_records: int
    summary: str
    make: Callable[[Random, int, int], Sample]

    def records(self, *, seed: int, start: int, count: int, base_ms: int) -> Iterator[Sample]:
        """Yield the records with indexes `[start, start + count)`.

        Args:
            seed: Another seed gives other prices, sides, quantities; never other ids.
            start: Index of the first record.
            count: How many.
            base_ms: Timestamp of the first; each next one is `STEP_MS` later.
        """
        if start < 0 or count < 0:
            raise ValueError(f"start and count must not be negative: {start}, {count}")
        for nth in range(count):
            index = start + nth
            # Seeded by text: the same on every machine and in every process.
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
"""The five keyed records of the first example; further records go round again."""


def _first_example(_: Random, index: int, timestamp_ms: int) -> Sample:
    key, value = FIRST_FIVE[index % len(FIRST_FIVE)]
    return Sample(key=key, value=value, headers=(), timestamp_ms=timestamp_ms)


# -- the trading platform (S23) ------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stock:
    ticker: str
    price: float
    currency: str


_FAVOURITE = _Stock(ticker="ACME", price=182.0, currency="USD")
_OTHERS = (
    _Stock(ticker="BOLT", price=41.5, currency="USD"),
    _Stock(ticker="CRUX", price=9.8, currency="USD"),
    _Stock(ticker="DELTA", price=77.0, currency="EUR"),
    _Stock(ticker="EMBER", price=310.0, currency="USD"),
    _Stock(ticker="FJORD", price=124.0, currency="NOK"),
    _Stock(ticker="GROVE", price=15.2, currency="GBP"),
    _Stock(ticker="HALYARD", price=58.0, currency="EUR"),
)
FAVOURITE_SHARE = 0.75
"""Share of the prices that are of one ticker, and so of one partition (S16)."""

NULL_KEY_EVERY = 20
"""One record in so many has no key, in prices and in orders."""

TOMBSTONE_EVERY = 40
"""One record in so many is a tombstone, in prices and in orders."""

_NULL_KEY_AT = 7
_TOMBSTONE_AT = 12


def _price(source: Random, index: int, timestamp_ms: int) -> Sample:
    stock = _stock(source)
    value = {
        "quote_id": f"Q{index:09d}",
        "ticker": stock.ticker,
        "price": round(stock.price * source.uniform(0.97, 1.03), 2),
        "currency": stock.currency,
        "event_time": _iso(timestamp_ms),
    }
    headers = (("source", b"exchange-feed"), ("schema", b"price/1"))
    return _record(index, stock.ticker, value, headers, timestamp_ms)


def _order(source: Random, index: int, timestamp_ms: int) -> Sample:
    stock = _stock(source)
    account = f"A{source.randint(1, 250):04d}"
    value = {
        "order_id": f"O{index:09d}",
        "account": account,
        "ticker": stock.ticker,
        "side": source.choice(("buy", "sell")),
        "quantity": source.randint(1, 50) * 10,
        "limit_price": round(stock.price * source.uniform(0.95, 1.05), 2),
        "currency": stock.currency,
        "event_time": _iso(timestamp_ms),
    }
    strategy = source.choice((b"momentum", b"pairs", b"", None))
    headers = (("source", b"order-gateway"), ("schema", b"order/1"), ("strategy", strategy))
    return _record(index, account, value, headers, timestamp_ms)


def _stock(source: Random) -> _Stock:
    return _FAVOURITE if source.random() < FAVOURITE_SHARE else source.choice(_OTHERS)


def _record(
    index: int, key: str, value: Mapping[str, Any], headers: Headers, timestamp_ms: int
) -> Sample:
    """A record with its key or without, with its value or as a tombstone of its key."""
    keyless = index % NULL_KEY_EVERY == _NULL_KEY_AT
    deleted = index % TOMBSTONE_EVERY == _TOMBSTONE_AT
    return Sample(
        key=None if keyless else key.encode(),
        value=None if deleted else json.dumps(value, separators=(",", ":")).encode(),
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
"""Every sample by name."""
