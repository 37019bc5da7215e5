"""Repairs of a table, and decisions of operators about a topic."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemark.bronze.ingest.ports import Ports, TopicPorts
from tidemark.bronze.repair.abandon import Abandon
from tidemark.bronze.repair.decisions import Decisions
from tidemark.bronze.repair.rewind import Repair
from tidemark.bronze.repair.rules import Differences
from tidemark.bronze.repair.undo import Undo, UndoResult
from tidemark.core.events import LossAccepted, RecreationAccepted
from tidemark.core.plan import Plan
from tidemark.spec.model import PipelineSpec

if TYPE_CHECKING:
    from tidemark.delta.deduplication import DeduplicationResult


@dataclass(frozen=True)
class RepairPart:
    """The repairs of a table with plans. They need no JVM.

    Attributes:
        spec: The spec of the table.
        ports: The ports of the table.
        uri: The location of the table.
        check_source: As in `Undo`.
    """

    spec: PipelineSpec
    ports: Ports
    uri: str
    check_source: Callable[[], None] = lambda: None

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
        return self._undo.undo(
            sequence, requested_by, reason, allow_loss=allow_loss, dry_run=dry_run
        )

    def rewind(self, requested_by: str, reason: str, *, dry_run: bool = False) -> Differences:
        """Record as unread the offsets whose rows the table has lost. See `Repair.rewind`."""
        service = Repair(spec=self.spec, ports=self.ports)
        return service.rewind(requested_by, reason, dry_run=dry_run)

    def rebuild(self, requested_by: str, reason: str, *, dry_run: bool = False) -> Differences:
        """Rebuild the control table from the table. See `Repair.rebuild`."""
        service = Repair(spec=self.spec, ports=self.ports)
        return service.rebuild(requested_by, reason, dry_run=dry_run)

    def deduplicate(self, *, dry_run: bool = False) -> DeduplicationResult:
        """Remove copies of rows from the table. Does not read its source."""
        from tidemark.delta.deduplication import Deduplication

        return Deduplication(self.uri, self.spec.name).run(dry_run=dry_run)

    @property
    def _undo(self) -> Undo:
        return Undo(
            pipeline=self.spec.name,
            ports=self.ports,
            asks_kafka=self.spec.reads_kafka,
            check_source=self.check_source,
        )


@dataclass(frozen=True)
class BronzeRepairPart(RepairPart):
    """The repairs of a bronze table, and the decisions of operators about its topic.

    Attributes:
        ports: The ports of the table.
    """

    ports: TopicPorts

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
