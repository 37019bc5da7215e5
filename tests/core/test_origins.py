"""Tests of plan origins and of their texts in the control table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.core.errors import InvalidReference
from tidemark.core.origins import ChunkOrigin, DecodeOrigin, PlanOrigin, RunOrigin, parse_origin

TEXTS: list[tuple[PlanOrigin, str]] = [
    (RunOrigin("airflow:tidemark_prices:manual__1"), "airflow:tidemark_prices:manual__1"),
    (RunOrigin("cli:ann#3:0ab1"), "cli:ann#3:0ab1"),
    (ChunkOrigin("cli:ann:0ab1", 12), "cli:ann:0ab1#12"),
    (ChunkOrigin("cli:ann#3", 1), "cli:ann#3#1"),
    (
        DecodeOrigin(pipeline="events", epoch=2, version=-1, fingerprint="0ab1"),
        "decode:events:2:-1:0ab1",
    ),
    (
        DecodeOrigin(
            pipeline="events",
            epoch=0,
            version=7,
            fingerprint="0ab1",
            schemas={"value": (3, 5), "key": (1,)},
        ),
        "decode:events:0:7:0ab1:key=1:value=3,5",
    ),
    (
        DecodeOrigin(
            pipeline="events",
            epoch=0,
            version=7,
            fingerprint="0ab1",
            schemas={"value": (3,)},
            oversized={"key": (1,), "value": (4, 9)},
        ),
        "decode:events:0:7:0ab1:value=3:key!1:value!4,9",
    ),
]


@pytest.mark.parametrize(("origin", "text"), TEXTS, ids=[text for _, text in TEXTS])
def test_an_origin_is_parsed_from_its_text(origin: PlanOrigin, text: str) -> None:
    assert str(origin) == text
    assert parse_origin(text) == origin


@given(
    st.one_of(
        st.text(),
        st.from_regex(r"\A.*#\d+\Z"),
        st.from_regex(r"\Adecode:e:\d+:-?\d+:[0-9a-f]+(:[a-z]+[=!][\d,]+)*\Z"),
    )
)
def test_every_text_parses_to_an_origin_with_this_text(text: str) -> None:
    """Parsing never fails, because other programs may have recorded any name."""
    assert str(parse_origin(text)) == text


@pytest.mark.parametrize("name", ["run#1", "decode:events:2:-1:0ab1"])
def test_a_run_cannot_have_the_name_of_another_origin(name: str) -> None:
    """The run would get the plan of a chunk or of a decoder."""
    with pytest.raises(InvalidReference, match=f"{name!r} has the form"):
        RunOrigin(name)
