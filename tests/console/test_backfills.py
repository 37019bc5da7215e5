"""The form of the console's backfill page."""

from __future__ import annotations

import pytest

from tidemark.backfill.selection import SelectBy
from tidemark.console.backfills import BackfillForm


@pytest.mark.parametrize(
    ("form", "way"),
    [
        (BackfillForm(offsets="0:1-2"), SelectBy.OFFSETS),
        (BackfillForm(start="2026-03-01T00:00:00Z", end="2026-03-02T00:00:00Z"), SelectBy.TIME),
        (BackfillForm(retained=True), SelectBy.RETAINED),
        (BackfillForm(offsets=" ", plan="7"), SelectBy.PLAN),
        (BackfillForm(start="2026-03-01T00:00:00Z", end="2026-03-02", plan=" "), SelectBy.TIME),
    ],
)
def test_a_run_of_the_dag_selects_offsets_as_the_form_does(
    form: BackfillForm, way: SelectBy
) -> None:
    assert form.conf("prices")["select_by"] == way.value
