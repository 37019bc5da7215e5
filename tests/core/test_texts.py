"""Values and names in sentences, and texts in which every character is visible."""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.hostile import TEXTS
from tidemark.core.texts import (
    counted,
    did_you_mean,
    listed,
    parse_time,
    similar_names,
    some_of,
    visible,
)


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 rows"), (1, "1 row"), (2, "2 rows"), (1234, "1,234 rows")]
)
def test_a_number_has_its_noun_in_the_singular_or_the_plural(number: int, text: str) -> None:
    assert counted(number, "row") == text


def test_values_follow_their_noun() -> None:
    assert listed("plan", (3,)) == "plan 3"
    assert listed("plan", [3, 4]) == "plans 3, 4"


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-03-01", datetime(2026, 3, 1, tzinfo=UTC)),
        ("2026-03-01T12:30:00Z", datetime(2026, 3, 1, 12, 30, tzinfo=UTC)),
        (
            "2026-03-01T12:30:00.5+01:00",
            datetime(2026, 3, 1, 12, 30, 0, 500_000, tzinfo=timezone(timedelta(hours=1))),
        ),
    ],
)
def test_a_time_has_a_utc_offset_and_a_date_begins_in_utc(text: str, time: datetime) -> None:
    assert parse_time(text) == time


@pytest.mark.parametrize("text", ["", "x", "5", "1700000000", "2026-03-01T12:30:00", "2026-13-01"])
def test_a_text_without_a_utc_offset_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match=r"isoformat|offset|month"):
        parse_time(text)


def test_a_suggestion_ignores_upper_and_lower_case() -> None:
    """A value of another type has no suggestion."""
    assert did_you_mean("Topc", ["topic", "target"]) == " (did you mean 'topic'?)"
    assert did_you_mean(5, ["topic"]) == did_you_mean("zz", ["topic"]) == ""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("paymnets", ("payments",)),
        ("Orders", ("orders", "prod.orders.v1")),
        ("ORDERS.V1", ("orders", "prod.orders.v1")),
        ("zz", ()),
        ("", ()),
    ],
)
def test_similar_names_have_few_other_letters_or_contain_the_name(
    name: str, expected: tuple[str, ...]
) -> None:
    assert similar_names(name, ["payments", "orders", "prod.orders.v1", "x"]) == expected


def test_a_long_list_of_names_is_cut() -> None:
    """It contains the number of the other names."""
    assert some_of(["a", "b"]) == "a, b"
    assert some_of([str(number) for number in range(48)]).endswith("18, 19 and 28 more")


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
