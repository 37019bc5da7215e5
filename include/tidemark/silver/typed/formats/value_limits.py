"""The limit of values in one record, for the readers of JSON and Protobuf in Python.

A value in a list takes one byte of a record, and hundreds of bytes in Python. So one record of some
megabytes could take the memory of a worker, or minutes.
"""

from __future__ import annotations

import re

MAX_VALUES = 2**20
"""Maximum values of a JSON text, and maximum elements of all lists and maps of a Protobuf message.
At the limit, a record takes up to 0.2 GB and half a minute. A record of at most as many bytes,
which is Kafka's default limit, is always within it."""
TOO_MANY_VALUES = f"the record has more than {MAX_VALUES:,} values"
"""Detail of the quarantine."""
_TEXT = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)


def has_too_many_values(payload: bytes) -> bool:
    """Return whether a JSON text exceeds the limit.

    The count is at least the number of values: commas and opening brackets, outside of texts.
    """
    if len(payload) <= MAX_VALUES or _marks(payload) <= MAX_VALUES:
        return False
    return _marks(_TEXT.sub(b"", payload)) > MAX_VALUES


def _marks(text: bytes) -> int:
    return sum(map(text.count, (b",", b"[", b"{")))
