"""Constructs the maintenance of the tables of a pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.app.adapters import Adapters
from tidemark.app.tables import BronzePart, PlannedTable
from tidemark.app.typed import TypedPart
from tidemark.spec.ref import PipelineKind

if TYPE_CHECKING:
    from tidemark.ops.maintenance.service import Maintenance


def maintenance(adapters: Adapters, kind: PipelineKind) -> Maintenance:
    """Return the maintenance of one table of a pipeline. Needs no JVM.

    Raises:
        NotDecoded, NotUpserted: The spec defines no such table.
    """
    from tidemark.delta.maintained_table import DeltaMaintainedTable
    from tidemark.ops.maintenance.service import Maintenance, finished_plans

    spec, context = adapters.spec, adapters.context
    if kind is PipelineKind.UPSERT:
        upsert = spec.upsert_spec()
        maintained = DeltaMaintainedTable(adapters.uri(upsert.target), upsert.name)
        # No process waits for its files: a failed merge writes new ones.
        table = adapters.wrap("maintenance", maintained)
        return Maintenance(name=upsert.name, table=table, now=context.now)
    planned: PlannedTable = BronzePart(spec, adapters)
    if kind is not PipelineKind.LIVE:
        planned = TypedPart(spec.typed_spec(), adapters)
    target = planned.spec.target
    if kind is PipelineKind.QUARANTINE:
        target = spec.decoding().quarantine_target
    maintained = DeltaMaintainedTable(adapters.uri(target), planned.name)
    return Maintenance(
        name=str(spec.ref.of_kind(kind)),
        table=adapters.wrap("maintenance", maintained),
        finished_plans=lambda: finished_plans(context.control, planned.name, planned.ports.table),
        now=context.now,
    )
