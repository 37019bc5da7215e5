"""Totals of settled plans, so that a ledger need not read the events of each one.

A plan is settled if it was planned once and landed once, and no later event corrects it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from tidemark.core.events import EventKind
from tidemark.core.offsets import SpanSet
from tidemark.core.origins import PlanOrigin
from tidemark.core.plan import PlanKind
from tidemark.core.watermarks import Position

SETTLED_PLAN_EVENTS = (
    EventKind.PLANNED,
    EventKind.SUPERSEDED,
    EventKind.ADOPTED,
    EventKind.LANDED,
    EventKind.PUBLICATION_DECIDED,
)
"""All kinds of events of a settled plan."""
CORRECTING_EVENTS = (EventKind.ABANDONED, EventKind.UNDO_STARTED, EventKind.UNDONE)
"""Events of a plan that is not settled, even if it landed later."""

Place: TypeAlias = tuple[str, int]
"""Topic id and partition."""
ChainPlace: TypeAlias = tuple[str, int, PlanKind]
"""Topic id, partition and chain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainHead:
    """The newest plan of a chain, and the newest version of the data table from that chain.

    Attributes:
        sequence: Plan number.
        table_version: Version of the data table.
    """

    sequence: int
    table_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledTotals:
    """Totals of settled plans. All plans that replaced rows of a settled plan are settled too.

    Attributes:
        landed: Landed offsets, including gaps, without those that later plans replaced.
        ends: Furthest end of a landed range, by chain and partition.
        chain_heads: Newest plan and table version, by epoch and kind of plan.
        requesters: Number of the newest plan of each origin, including runs that took the plan
            over.
        records: Number of landed records.
    """

    landed: Mapping[Place, SpanSet] = field(default_factory=dict)
    ends: Mapping[ChainPlace, Position] = field(default_factory=dict)
    chain_heads: Mapping[tuple[int, PlanKind], ChainHead] = field(default_factory=dict)
    requesters: Mapping[PlanOrigin, int] = field(default_factory=dict)
    records: int = 0
