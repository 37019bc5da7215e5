"""Suggestions and lists of names in error messages."""

from __future__ import annotations

import pytest

from tidemark.core.suggestions import did_you_mean, similar_names, some_of


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
