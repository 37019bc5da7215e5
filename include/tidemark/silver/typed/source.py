"""The published rows of a bronze table as the source of typed plans."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.bronze.ingest.ports import Ports
from tidemark.core import plan_rules
from tidemark.core.ledger import Ledger
from tidemark.core.plan import CommittablePlan, Plan, ReadablePlan
from tidemark.core.watermarks import TopicWatermarks
from tidemark.silver.typed.decoder import DecodePlanner


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSource:
    """Checks the bronze table that a typed plan is read from; a `PlanSource`.

    Attributes:
        ports: The ports of the typed table.
        decoder: Checks which offsets are published.
    """

    ports: Ports
    decoder: DecodePlanner

    def check_before_reading(self, plan: Plan, ledger: Ledger) -> ReadablePlan:  # noqa: ARG002
        """Refuse a bronze table, or a published view, that lacks planned rows.

        Raises:
            NoLongerPublished: See `DecodePlanner.check_published`.
            TopicRecreated, EndBehindCommitted and so on: See `plan_rules.check_readable`.
        """
        self.decoder.check_published(plan)
        plan_rules.check_readable(plan, self._watermarks(plan))
        return ReadablePlan(plan)

    def check_before_commit(self, plan: ReadablePlan) -> CommittablePlan:
        """Refuse rows that left the bronze table or its published view while they were decoded.

        Raises:
            NoLongerPublished, TopicRecreated and so on: See `check_before_reading`.
        """
        plan_rules.check_same_topic(plan, self._watermarks(plan))
        self.decoder.check_published(plan)  # fence: published-before-commit
        return CommittablePlan(plan)

    def raise_if_lost(self, plan: Plan) -> None:
        """Raise nothing: the next run of `decode` abandons or repeats the plan."""

    def _watermarks(self, plan: Plan) -> TopicWatermarks:
        return self.ports.watermarks.topic_watermarks(plan.topic, plan.isolation_level)
