"""Every character of a shown text is visible."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.hostile import TEXTS
from tidemark.core.visible_text import visible


@given(st.text())
def test_no_invisible_character_is_left(text: str) -> None:
    categories = {unicodedata.category(each) for each in visible(text) if each not in "\n\t"}
    assert not categories & {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"}


@given(st.text(alphabet=st.characters(categories=["L", "N", "P", "Zs"], max_codepoint=0x2FF)))
def test_a_visible_text_stays_unchanged(text: str) -> None:
    assert visible(text) == text


@pytest.mark.parametrize("text", TEXTS)
def test_the_visible_form_of_a_hostile_text_has_no_invisible_character(text: str) -> None:
    shown = visible(text)
    assert visible(shown) == shown
    assert all(each.isprintable() or each in "\n\t" for each in shown)


def test_an_escape_has_the_code_of_the_character() -> None:
    assert visible("a\u202eb\x00") == "a\\u{202E}b\\u{0000}"
