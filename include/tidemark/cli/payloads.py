"""Records as lines of text: every character is visible, and other bytes are hexadecimal."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from tidemark.core.payload_text import PayloadText
from tidemark.core.record import LogRecord
from tidemark.core.texts import counted

_LONGEST_LINE = 200
"""Characters of a text in the line of its name; a longer text begins in the next line."""


def payload_lines(record: LogRecord, masked: Collection[str] = ()) -> Iterator[str]:
    """Yield lines with key, value and headers, except those that are masked."""
    yield from _text_lines("key", record.key, is_masked="key" in masked)
    yield from _text_lines("value", record.value, is_masked="value" in masked)
    if "headers" in masked:
        yield f"  headers   {len(record.headers or ())}, masked"
        return
    if record.headers is None:
        yield "  headers   not read: a header name is not UTF-8"
    for name, value in record.headers or ():
        shown = PayloadText.of(name.encode("utf-8", "surrogateescape"))
        yield from _text_lines(f"header {json.dumps(shown.text, ensure_ascii=False)}", value)


def _text_lines(name: str, payload: bytes | None, *, is_masked: bool = False) -> Iterator[str]:
    """Yield a payload; every further line of its text is indented, so none looks like an offset."""
    if payload is None:
        yield f"  {name:<9} null"
        return
    if is_masked:
        yield f"  {name:<9} {counted(len(payload), 'byte')}, masked"
        return
    shown = PayloadText.of(payload)
    cut = ", cut" if shown.truncated else ""
    head = f"  {name:<9} {shown.encoding}, {counted(shown.size, 'byte')}{cut}"
    if "\n" not in shown.text and len(shown.text) <= _LONGEST_LINE:
        yield f"{head}: {shown.text}"
        return
    yield f"{head}:"
    yield from (f"    {line}" for line in shown.text.split("\n"))


def unnamed_text(record: Mapping[str, Any]) -> str:
    """Return the text about fields that the schema does not name; empty without any.

    Args:
        record: The result of a plan, or a report, as plain values.
    """
    unnamed = record.get("unnamed_fields")
    if not unnamed or not unnamed["records"]:
        return ""
    names = [f"{name!r} ({count:,})" for name, count in unnamed["names"].items()]
    names += ["more"] if unnamed["more"] else []
    text = f"{unnamed['records']:,} with unnamed fields"
    return f"{text}: {', '.join(names)}" if names else text
