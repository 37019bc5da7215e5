"""Tests of the conversion of values to JSON types."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from tidemark.core.offsets import Span, SpanSet
from tidemark.core.plain import plain, record_of


class Color(StrEnum):
    """An enum."""

    RED = "red"


@dataclass(frozen=True, slots=True)
class Inner:
    """Dataclass in a field of another."""

    number: int | None


class Custom:
    """Value with its own record."""

    def as_record(self) -> dict[str, Any]:
        return {"custom": True}


@dataclass(frozen=True, slots=True)
class Outer:
    """Dataclass with a field of each kind."""

    color: Color
    at: datetime
    time: timedelta
    inner: Inner
    spans: SpanSet
    by_partition: dict[int, tuple[Inner, ...]]
    custom: Custom


def test_numbers_that_json_lacks_become_text() -> None:
    found = plain([float("nan"), float("inf"), -float("inf"), 0.5, 2**63])
    assert json.dumps(found, allow_nan=False) == '["nan", "inf", "-inf", 0.5, 9223372036854775808]'


def test_a_dataclass_becomes_its_fields_as_json_types() -> None:
    value = Outer(
        color=Color.RED,
        at=datetime(2026, 3, 1, tzinfo=UTC),
        time=timedelta(minutes=1),
        inner=Inner(None),
        spans=SpanSet.of([Span(1, 3), Span(5, 6)]),
        by_partition={7: (Inner(1),)},
        custom=Custom(),
    )
    record = record_of(value, without=["inner"], size=3)
    assert json.loads(json.dumps(record)) == {
        "color": "red",
        "at": "2026-03-01T00:00:00+00:00",
        "time": 60.0,
        "spans": [[1, 3], [5, 6]],
        "by_partition": {"7": [{"number": 1}]},
        "custom": {"custom": True},
        "size": 3,
    }
    assert plain(Inner(None)) == {"number": None}
