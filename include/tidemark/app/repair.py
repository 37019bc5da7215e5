"""Repairs of a bronze table, and decisions of operators about its topic."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.bronze.repair.abandon import Abandon
from tidemark.bronze.repair.decisions import Decisions
from tidemark.bronze.repair.rewind import Repair
from tidemark.bronze.repair.undo import Undo


@dataclass(frozen=True, kw_only=True)
class RepairPart(Abandon, Undo, Repair, Decisions):
    """The repairs of a bronze table, and the decisions about its topic. They need no JVM.

    Attributes:
        spec: The spec of the pipeline.
        ports: The ports of the table.
    """
