"""Texts of references."""

from __future__ import annotations

import pytest

from tidemark.spec.decode import QuarantineReason
from tidemark.spec.ref import DecodeRef, Replay


def test_the_text_of_a_decode_names_the_replayed_records() -> None:
    broken = Replay(partition=0, reason=QuarantineReason.RULE_BROKEN)
    texts = {
        "prices": DecodeRef(pipeline="prices"),
        "prices=*/*": DecodeRef(pipeline="prices", replay=Replay()),
        "prices=0/rule_broken": DecodeRef(pipeline="prices", replay=broken),
    }
    assert {str(each): each for each in texts.values()} == texts
    assert [DecodeRef.parse(text) for text in texts] == list(texts.values())
    for wrong in ("", "prices=", "prices=1", "=*/*", "prices=-1/*", "prices=*/odd"):
        with pytest.raises(ValueError, match=r"PIPELINE=PARTITION/REASON|odd"):
            DecodeRef.parse(wrong)
