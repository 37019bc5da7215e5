"""Texts of references."""

from __future__ import annotations

import pytest

from tidemark.spec.decode import QuarantineReason
from tidemark.spec.ref import ReplayRef, plan_text


def test_the_text_of_a_replay_names_its_records() -> None:
    texts = {
        "prices@typed=*/*": ReplayRef(pipeline="prices@typed"),
        "prices@typed=0/rule_broken": ReplayRef(
            pipeline="prices@typed", partition=0, reason=QuarantineReason.RULE_BROKEN
        ),
    }
    assert {str(each): each for each in texts.values()} == texts
    assert [ReplayRef.parse(text) for text in texts] == list(texts.values())
    for wrong in ("prices", "prices@typed=1", "=*/*", "prices@typed=-1/*", "prices@typed=*/odd"):
        with pytest.raises(ValueError, match=r"PIPELINE=PARTITION/REASON|odd"):
            ReplayRef.parse(wrong)


@pytest.mark.parametrize(
    ("pipeline", "text"),
    [("prices", "plan 3"), ("prices@typed", "typed plan 3")],
)
def test_the_text_of_a_plan_names_the_table_with_its_number(pipeline: str, text: str) -> None:
    assert plan_text(pipeline, 3) == text
