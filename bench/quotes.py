"""Quotes that the example's suite passes, and a pipeline over them with every kind of table."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

from bench.context import Context, write_spec
from bench.kafka import fill_keyed, make_topic
from bench.tables import merged, verified

PARTITIONS = 3
PIPELINE = "prices"
"""Name of the pipeline, its topic and its suite of five rules: the project's example."""

_DECODE = {
    "key": {"format": "string"},
    "value": {
        "format": "json",
        "schema": {
            "quote_id": "string",
            "ticker": "string",
            "price": "double",
            "currency": "string",
            "event_time": "timestamp",
            "venue": "string",
        },
    },
    "upsert": {"deletes": "hard"},
}
VALUES = 200_000
SEED = 10


def quotes() -> tuple[list[bytes], list[bytes]]:
    """Return keys and values that pass every rule of the example's suite."""
    random = Random(SEED)
    tickers = [f"{a}{b}{c}" for a in "ABCDEFGH" for b in "KLMNOPQR" for c in "STUVWXYZ"]
    keys, values = [], []
    for number in range(VALUES):
        ticker = random.choice(tickers)
        keys.append(ticker.encode())
        quote = {
            "quote_id": f"{random.getrandbits(128):032x}",
            "ticker": ticker,
            "price": random.randrange(1, 10**7) / 100,
            "currency": random.choice(["EUR", "USD", "GBP"]),
            "event_time": f"2026-03-{1 + number % 28:02}T{number % 24:02}:{number % 60:02}:00Z",
            "venue": "".join(random.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ", k=40)),
        }
        values.append(json.dumps(quote).encode())
    return keys, values


class QuoteTopic:
    """The topic of the pipeline, which gets new quotes for each run.

    Args:
        context: Context of the run; `records` is the number of new quotes.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._total = 0
        self._keys, self._values = quotes()
        make_topic(context, PIPELINE, PARTITIONS)

    @property
    def total(self) -> int:
        """Number of quotes so far."""
        return self._total

    def write_spec(self, folder: Path) -> None:
        """Write the spec of a pipeline with a suite, a typed table and an upsert table."""
        more = {"quality": {"suite": PIPELINE}, "decode": _DECODE}
        write_spec(folder, PIPELINE, PIPELINE, self._context.conf, **more)

    def feed(self) -> None:
        """Produce the next quotes; after the last value the first one follows."""
        numbers = range(self._total, self._total + self._context.records)
        keys, values = (
            [each[number % VALUES] for number in numbers] for each in (self._keys, self._values)
        )
        fill_keyed(self._context, PIPELINE, PARTITIONS, keys, values)
        self._total += self._context.records

    def check_tables(self, bronze: Path, upsert: Path) -> dict[str, float]:
        """Check that the two tables contain every quote once, and the newest quote of each key.

        Raises:
            RuntimeError: A table is wrong.
        """
        held = verified(str(bronze), self._total)
        return {"records": held["records"], "keys": merged(str(upsert), str(bronze))}

    def check_lakehouse(self, lakehouse: Path) -> dict[str, float]:
        """See `check_tables`, of the pipeline's tables in a lakehouse."""
        latest = lakehouse / "silver" / f"{PIPELINE}_latest"
        return self.check_tables(lakehouse / "bronze" / PIPELINE, latest)
