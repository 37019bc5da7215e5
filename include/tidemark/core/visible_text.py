r"""Texts in which every character is visible.

Control, bidirectional, zero-width and unassigned characters become escapes such as `\u{202E}`. So a
value that other people chose cannot change a terminal, reverse a line or hide a part of itself.
"""

from __future__ import annotations

import re
import unicodedata

# Characters without a glyph that Unicode counts as letters, marks or symbols.
_WITHOUT_GLYPH = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


def visible(text: str) -> str:
    r"""Return a text in which every invisible character except `\n` and `\t` is an escape."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(each if _is_visible(each) else f"\\u{{{ord(each):04X}}}" for each in text)


def _is_visible(character: str) -> bool:
    if character in "\n\t" or unicodedata.category(character) == "Zs":
        return True
    return character.isprintable() and not _WITHOUT_GLYPH.match(character)
