"""Tests of values as they stand in sentences."""

from __future__ import annotations

import pytest

from tidemark.core.texts import counted, listed


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 rows"), (1, "1 row"), (2, "2 rows"), (1234, "1,234 rows")]
)
def test_a_number_has_its_noun_in_the_singular_or_the_plural(number: int, text: str) -> None:
    assert counted(number, "row") == text


def test_values_follow_their_noun() -> None:
    assert listed("plan", (3,)) == "plan 3"
    assert listed("plan", [3, 4]) == "plans 3, 4"
