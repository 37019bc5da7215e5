"""Records as lines of text: every character is visible, and other bytes are hexadecimal."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tidemark.cli.output import note
from tidemark.core.payload_text import PayloadText
from tidemark.core.record import LogRecord
from tidemark.core.texts import counted

if TYPE_CHECKING:
    from tidemark.silver.typed.decoded_payloads import PayloadDecoder

_LONGEST_LINE = 200
"""Characters of a text in the line of its name; a longer text begins in the next line."""


def payload_lines(
    record: LogRecord, masked: Collection[str] = (), decoder: PayloadDecoder | None = None
) -> Iterator[str]:
    """Yield lines with key, value and headers, except those that are masked.

    Args:
        record: The record.
        masked: Those of `key`, `value` and `headers` whose contents are replaced by sizes.
        decoder: Decodes keys and values that begin with a schema id; None shows their bytes.
    """
    for name, payload in (("key", record.key), ("value", record.value)):
        decoded = decoder.decode(payload) if decoder and name not in masked else None
        if decoded is None or payload is None:
            yield from _text_lines(name, payload, is_masked=name in masked)
        elif decoded.is_malformed:
            yield f"  {name:<9} malformed {decoded.title}"
            yield from _text_lines("", payload)
        else:
            text = json.dumps(decoded.value, ensure_ascii=False).encode(errors="replace")
            yield from _text_lines(name, text, kind=decoded.title, size=len(payload))
    if "headers" in masked:
        yield f"  headers   {len(record.headers or ())}, masked"
        return
    if record.headers is None:
        yield "  headers   not read: a header name is not UTF-8"
    for name, value in record.headers or ():
        shown = PayloadText.of(name.encode("utf-8", "surrogateescape"))
        yield from _text_lines(f"header {json.dumps(shown.text, ensure_ascii=False)}", value)


def note_undecoded(decoder: PayloadDecoder) -> None:
    """Print why the registry did not return a schema. Print nothing if it returned all."""
    if decoder.problem is not None:
        note(f"not decoded: {decoder.problem.rendered('problem')}")


def _text_lines(
    name: str,
    payload: bytes | None,
    *,
    is_masked: bool = False,
    kind: str | None = None,
    size: int | None = None,
) -> Iterator[str]:
    """Yield a payload; every further line of its text is indented, so none looks like an offset.

    Args:
        name: Name of the part.
        payload: The bytes.
        is_masked: Whether to show only the size.
        kind: The format of the payload whose text these bytes are; None for their own encoding.
        size: Size of that payload in bytes; None for the number of these bytes.
    """
    if payload is None:
        yield f"  {name:<9} null"
        return
    if is_masked:
        yield f"  {name:<9} {counted(len(payload), 'byte')}, masked"
        return
    shown = PayloadText.of(payload)
    cut = ", cut" if shown.truncated else ""
    length = shown.size if size is None else size
    head = f"  {name:<9} {kind or shown.encoding}, {counted(length, 'byte')}{cut}"
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
