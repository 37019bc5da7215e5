"""Creates the owner's report of a pipeline from the tables. Read-only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from tidemark.bronze.ingest.errors import NothingLanded
from tidemark.bronze.ingest.ledgers import missing_rows, read_checked_ledger
from tidemark.bronze.ingest.protocols import Clock, ControlReader, DataLog
from tidemark.core.events import EventKind
from tidemark.core.plan import PlanRef
from tidemark.ops.report.certificate import certify
from tidemark.ops.report.owner_report import PipelineReport
from tidemark.ops.report.removed_rows import read_removed_rows
from tidemark.quality.check_results_table import DeltaCheckResults
from tidemark.quality.publication_service import Publication
from tidemark.silver.typed.quarantine_record import QuarantinedRecord
from tidemark.silver.typed.unnamed import UnnamedFields
from tidemark.spec.model import PipelineSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """Creates reports of one pipeline.

    Attributes:
        spec: The pipeline.
        control: The control table.
        data_log: The data table's log, which must agree with the control table.
        history: Stored check results.
        publication: Reads the publication status of each plan.
        masked: Columns whose values the report hides, also in older results.
        quarantine: Returns the records in quarantine; None without a typed table.
        unnamed_fields: Returns the fields of the newest decoded plans that the schema does not
            name; None if the spec does not keep them.
        now: The clock.
    """

    spec: PipelineSpec
    control: ControlReader
    data_log: DataLog
    history: DeltaCheckResults
    publication: Publication
    masked: Collection[str]
    quarantine: Callable[[], Sequence[QuarantinedRecord]] | None
    unnamed_fields: Callable[[], UnnamedFields | None]
    now: Clock

    def report(self, since: datetime, until: datetime) -> PipelineReport:
        """Return the report of a period.

        Args:
            since: Start of the period.
            until: End of the period, exclusive.

        Raises:
            NothingLanded: No plan of the pipeline has landed.
            HistoriesDiverge, DuplicateRows: A certificate would be wrong; see
                `read_checked_ledger`.
        """
        ledger = read_checked_ledger(
            self.control, self.spec.name, self.data_log, full=True, rows=True
        )
        if ledger.topic is None:
            raise NothingLanded(pipeline=self.spec.name, topic=self.spec.topic)
        landed_at = self.control.recorded_at(self.spec.name, EventKind.LANDED)
        certificate = certify(ledger, landed_at, since, until)
        removed = read_removed_rows(
            self.control,
            self.spec.name,
            [
                record
                for sequence, record in ledger.plans.items()
                if sequence in landed_at and since <= landed_at[sequence] < until
            ],
        )
        plans = {each.plan for each in certificate.plans}
        plans_by_status: dict[str, list[int]] = {}
        for each in self.publication.plans(ledger):
            if each.plan.sequence in plans:
                status = each.record.publication_status
                plans_by_status.setdefault(status, []).append(each.plan.sequence)
        return PipelineReport(
            created_at=self.now(),
            description=self.spec.description,
            certificate=certificate,
            missing_rows=missing_rows(self.control, ledger, self.data_log),
            checked=[
                replace(plan, results=[result.masked(self.masked) for result in plan.results])
                for plan in self.history.checked(
                    [PlanRef(pipeline=self.spec.name, sequence=each) for each in plans]
                ).values()
            ],
            plans_by_status=plans_by_status,
            removed=[each for _, each in sorted(removed.items(), reverse=True)],
            quarantined=None if self.quarantine is None else self.quarantine(),
            unnamed_fields=self.unnamed_fields(),
        )
