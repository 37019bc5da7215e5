"""The upsert table of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemark.app.typed import TypedPart
from tidemark.spec.upsert import MergePlan

if TYPE_CHECKING:
    from tidemark.silver.upsert.service import Upserts


@dataclass(frozen=True)
class UpsertPart:
    """The upsert table of a pipeline, which merges follow from the typed table.

    Attributes:
        typed: The typed table.
    """

    typed: TypedPart

    def merge(self) -> MergePlan | None:
        """Bring the table up to date with Spark; None if it was up to date."""
        from tidemark.silver.upsert.spark import SparkMerger

        planner, adapters = self.planner, self.typed.adapters
        merger = SparkMerger(
            open_session=adapters.context.sessions.own,
            typed=adapters.uri(planner.spec.target),
            upsert=adapters.uri(planner.upsert.target),
            spec=planner.upsert,
        )
        return planner.execute(adapters.wrap("merger", merger))

    @property
    def planner(self) -> Upserts:
        """Plans and executes merges. Needs no JVM."""
        from tidemark.silver.upsert.service import Upserts
        from tidemark.silver.upsert.table import DeltaUpsertTable

        adapters, upsert = self.typed.adapters, self.typed.spec.upsert()
        table = DeltaUpsertTable(adapters.uri(upsert.target), upsert)
        return Upserts(
            spec=self.typed.spec,
            upsert=upsert,
            control=adapters.context.control,
            typed=adapters.wrap("typed", self.typed.tables()),
            table=adapters.wrap("upsert_table", table),
        )
