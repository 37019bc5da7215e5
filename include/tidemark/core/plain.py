"""Converts values to JSON types, for `--json` and for log lines."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from datetime import datetime, timedelta
from enum import Enum
from math import isfinite
from typing import Any

from tidemark.core.offsets import Span, SpanSet


def record_of(value: Any, *, without: Collection[str] = (), **added: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as JSON types, by name.

    Args:
        value: The dataclass.
        without: Names of fields to omit.
        **added: Further values, which follow the fields.
    """
    own = {each.name: getattr(value, each.name) for each in fields(value)}
    return {name: plain(each) for name, each in (own | added).items() if name not in without}


def plain(value: Any) -> Any:
    """Return a value as JSON types.

    Times become text in ISO 8601, durations become seconds, enums their values, and spans
    `[start, end]`. NaN and infinity become text. A dataclass becomes what its `as_record` returns,
    or its fields by name.
    """
    match value:
        case Enum():
            return value.value
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case float() if not isfinite(value):
            return str(value)
        case Span():
            return [value.start, value.end]
        case Mapping():
            return {str(plain(key)): plain(each) for key, each in value.items()}
        case SpanSet() | tuple() | list():
            return [plain(each) for each in value]
        case _ if hasattr(value, "as_record"):
            return value.as_record()
        case _ if hasattr(value, "__dataclass_fields__"):
            return record_of(value)
        case _:
            return value


def payload_value(value: Any, of_bytes: Callable[[bytes], Any]) -> Any:
    """Return a value of a record or of a query as JSON types.

    Numbers without a JSON form, such as decimals and infinity, become text, as do times.

    Args:
        value: The value.
        of_bytes: Returns the JSON form of bytes, at any level.
    """
    match value:
        case bytes():
            return of_bytes(value)
        case Mapping():
            return {
                str(payload_value(key, of_bytes)): payload_value(each, of_bytes)
                for key, each in value.items()
            }
        case list() | tuple():
            return [payload_value(each, of_bytes) for each in value]
        case None | str() | int():
            return value
        case _:
            found = plain(value)
            return found if isinstance(found, str | int | float) else str(found)
