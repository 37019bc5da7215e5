"""Repairs of a bronze table, and decisions of operators about its topic."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tidemark.bronze.ingest.ports import Ports
from tidemark.bronze.repair.abandon import Abandon
from tidemark.bronze.repair.decisions import Decisions
from tidemark.bronze.repair.rewind import Repair
from tidemark.bronze.repair.rules import Differences
from tidemark.bronze.repair.undo import Undo, UndoResult
from tidemark.core.events import LossAccepted, RecreationAccepted
from tidemark.core.plan import Plan
from tidemark.spec.model import PipelineSpec


@dataclass(frozen=True)
class RepairPart:
    """The repairs of a bronze table, and the decisions about its topic. They need no JVM.

    Attributes:
        spec: The spec of the pipeline.
        ports: The ports of the table.
    """

    spec: PipelineSpec
    ports: Ports

    def abandon(
        self,
        sequence: int,
        requested_by: str,
        reason: str,
        *,
        discard: bool = False,
        dry_run: bool = False,
    ) -> Plan:
        """Abandon a plan that has not landed. See `Abandon.abandon`."""
        service = Abandon(pipeline=self.spec.name, ports=self.ports)
        return service.abandon(sequence, requested_by, reason, discard=discard, dry_run=dry_run)

    def undo(
        self,
        sequence: int,
        requested_by: str,
        reason: str,
        *,
        allow_loss: bool = False,
        dry_run: bool = False,
    ) -> UndoResult:
        """Remove the rows of a landed plan; its offsets can be read again. See `Undo.undo`."""
        service = Undo(pipeline=self.spec.name, ports=self.ports)
        return service.undo(sequence, requested_by, reason, allow_loss=allow_loss, dry_run=dry_run)

    def rewind(self, requested_by: str, reason: str, *, dry_run: bool = False) -> Differences:
        """Record as unread the offsets whose rows the table has lost. See `Repair.rewind`."""
        service = Repair(spec=self.spec, ports=self.ports)
        return service.rewind(requested_by, reason, dry_run=dry_run)

    def rebuild(self, requested_by: str, reason: str, *, dry_run: bool = False) -> Differences:
        """Rebuild the control table from the table. See `Repair.rebuild`."""
        service = Repair(spec=self.spec, ports=self.ports)
        return service.rebuild(requested_by, reason, dry_run=dry_run)

    def accept_loss(
        self, partitions: Collection[int], requested_by: str, reason: str, *, dry_run: bool = False
    ) -> LossAccepted:
        """Skip offsets that Kafka has deleted. See `Decisions.accept_loss`."""
        service = Decisions(spec=self.spec, ports=self.ports)
        return service.accept_loss(partitions, requested_by, reason, dry_run=dry_run)

    def accept_recreation(
        self, requested_by: str, reason: str, *, dry_run: bool = False
    ) -> RecreationAccepted:
        """Continue with a recreated topic. See `Decisions.accept_recreation`."""
        service = Decisions(spec=self.spec, ports=self.ports)
        return service.accept_recreation(requested_by, reason, dry_run=dry_run)
