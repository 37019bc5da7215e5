"""Converts payloads to text that is safe to print; every page and command uses this module."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from tidemark.core.texts import visible

MAX_SHOWN_BYTES = 64 * 1024
"""Bytes of a payload that are shown; the rest is cut off."""
_MAX_DEPTH = 20
_MAX_JSON_CHARACTERS = 4 * MAX_SHOWN_BYTES
"""Longer JSON is shown without indentation."""
_INDENT = "  "


class Encoding(StrEnum):
    """The form in which bytes are shown."""

    UTF_8 = "UTF-8"
    """The bytes are text."""
    JSON = "JSON"
    """The bytes are a JSON object or array. Only its white space differs from the bytes."""
    HEX = "hex"
    """The bytes are not UTF-8: two digits for each byte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadText:
    """Bytes as text that is safe to print. HTML still has to be escaped.

    Attributes:
        text: The text, with escapes for invisible characters.
        encoding: The form of the text.
        size: Size of the payload in bytes.
        truncated: Whether the text lacks the end of the payload.
    """

    text: str
    encoding: Encoding
    size: int
    truncated: bool

    @classmethod
    def of(cls, payload: bytes, *, indent: bool = True) -> Self:
        """Return the text of a payload. Never fails, and shows at most `MAX_SHOWN_BYTES`.

        Args:
            payload: The bytes.
            indent: Whether JSON gets indented lines.
        """
        truncated = len(payload) > MAX_SHOWN_BYTES
        start = payload[:MAX_SHOWN_BYTES]
        encoding = Encoding.UTF_8
        try:
            # The limit may cut the last character.
            text = codecs.getincrementaldecoder("utf-8")().decode(start, not truncated)
        except UnicodeDecodeError:
            encoding, text = Encoding.HEX, start.hex(" ")
        else:
            if indent and not truncated and (indented := _indented_json(text)) is not None:
                encoding, text = Encoding.JSON, indented
        return cls(text=visible(text), encoding=encoding, size=len(payload), truncated=truncated)


# -- JSON ------------------------------------------------------------------------------------------

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+')


def _indented_json(text: str) -> str | None:
    """Return a JSON object or array with indented lines; None for other or too large texts.

    The tokens are copied, so numbers, escapes and repeated names stay unchanged.
    """
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        json.loads(text, parse_int=str, parse_float=str, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        return None
    characters = 0
    parts = []
    for part in _indented_tokens(_TOKEN.findall(text)):
        characters += len(part)
        if characters > _MAX_JSON_CHARACTERS:
            return None
        parts.append(part)
    return "".join(parts)


def refuse_constant(constant: str) -> Any:
    """Refuse NaN and Infinity, which Python's parser accepts; its argument `parse_constant`."""
    raise ValueError(f"{constant} is not JSON")


def _indented_tokens(tokens: list[str]) -> Iterator[str]:
    depth, before = 0, ""
    for token in tokens:
        opens = before in ("{", "[")
        if token in ("}", "]"):
            depth -= 1
            yield token if opens else f"\n{_INDENT * min(depth, _MAX_DEPTH)}{token}"
        elif opens or before == ",":
            yield f"\n{_INDENT * min(depth, _MAX_DEPTH)}{token}"
        else:
            yield f" {token}" if before == ":" else token
        depth += token in ("{", "[")
        before = token
