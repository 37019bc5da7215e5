"""Tests of plan origins and of their texts in the control table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.core.errors import InvalidReference
from tidemark.core.origins import ChunkOrigin, PlanOrigin, RunOrigin, parse_origin

TEXTS: list[tuple[PlanOrigin, str]] = [
    (RunOrigin("airflow:tidemark_prices:manual__1"), "airflow:tidemark_prices:manual__1"),
    (RunOrigin("cli:ann#3:0ab1"), "cli:ann#3:0ab1"),
    (ChunkOrigin("cli:ann:0ab1", 12), "cli:ann:0ab1#12"),
    (ChunkOrigin("cli:ann#3", 1), "cli:ann#3#1"),
]


@pytest.mark.parametrize(("origin", "text"), TEXTS, ids=[text for _, text in TEXTS])
def test_an_origin_is_parsed_from_its_text(origin: PlanOrigin, text: str) -> None:
    assert str(origin) == text
    assert parse_origin(text) == origin


@given(st.one_of(st.text(), st.from_regex(r"\A.*#\d+\Z")))
def test_every_text_parses_to_an_origin_with_this_text(text: str) -> None:
    """Parsing never fails, because other programs may have recorded any name."""
    assert str(parse_origin(text)) == text


def test_a_run_cannot_have_the_name_of_a_chunk() -> None:
    """The run would get the plan of the chunk."""
    with pytest.raises(InvalidReference, match="'run#1' has the form"):
        RunOrigin("run#1")
