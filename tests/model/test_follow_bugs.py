"""Tests that a search finds each guard that is missing in the protocol of derived tables."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from tests.model.follow_programs import ALL, Guards
from tests.model.follow_scenarios import BRONZE_CHANGED, SKETCHES
from tests.model.search import Search, Violation

pytestmark = pytest.mark.slow

BUGS = [
    ("derived_first", "a zombie, a decision, and a decoder", "F8: a comparison"),
    ("bronze_compared", "RESTORE of the bronze table, and a first decoder", "F3"),
    ("bronze_as_opened", "RESTORE of the bronze table, and a first decoder", "F3"),
    ("bronze_has_named", "a replacement and a first decoder", "F3"),
    ("replacement_awaited", "a replacement and a first decoder", "F3"),
    ("event_digest", "an older ledger that grows again", "F7: published, and in no table"),
    ("policy_stored", "a change of the policy", "F4"),
    ("pending_stored", "two decoders in chunks", "F2"),
    ("commits_known", "RESTORE of the typed table", "F7: published, and in no table"),
    ("present_left_out", "RESTORE of the typed table, and a decoder in chunks", "F1"),
    ("allowed_removed", "a decision after a lost ledger", "F2"),
    ("bookmark_moves", "a zombie, a decision, and a decoder", "F6"),
    ("typed_exact", "two decoders", "F8: a comparison"),
    ("quarantine_last", "a replay and a decoder", "F4"),
    ("quarantine_exact", "a change of the policy", "F3"),
    ("quarantine_digest", "an older copy of the typed table", "F7: published, and in no table"),
    ("quarantine_commits_known", "RESTORE of the quarantine after a replay", "F7: in both"),
    ("places_stored", "maintenance and a decoder", "F3"),
    ("change_announced", "maintenance and a decoder", "F3"),
    (
        "replaced_kept",
        "a replacement without a schema, and a decoder",
        "F9: replaced rows that are",
    ),
    ("replaced_only", "a replacement without a schema, and decisions", "F2"),
    (
        "outdated_stored",
        "a replacement without a schema, and a decoder",
        "F9: replaced rows that no",
    ),
    ("merge_digest", "an older copy of the typed table", "F7: the upsert table is wrong"),
    ("merge_known", "rows deleted, and a merge", "F7: the upsert table is wrong"),
    ("merge_exact", "a decoder and two merges", "F1: keys"),
]
"""Missing guards, the scenarios that show it, and the broken invariants."""


@pytest.mark.parametrize(("guard", "name", "broken"), BUGS, ids=[bug[0] for bug in BUGS])
def test_a_search_finds_a_missing_guard(guard: str, name: str, broken: str) -> None:
    sketch = next(sketch for sketch in SKETCHES if sketch.name == name)
    sketch = replace(sketch, errors=sketch.errors | BRONZE_CHANGED)
    guards = replace(ALL, **{guard: False})
    with pytest.raises(Violation) as violation:
        Search(sketch.scenario(0, guards)).run()
    assert violation.value.broken.startswith(broken), violation.value


def test_each_guard_has_a_planted_bug() -> None:
    assert [bug[0] for bug in BUGS] == [each.name for each in fields(Guards)]
