"""A topic as the source of plans."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.bronze.ingest.log_comparison import LogComparison
from tidemark.bronze.ingest.ports import Ports
from tidemark.core import plan_rules
from tidemark.core.errors import TransientError
from tidemark.core.ledger import Ledger
from tidemark.core.plan import CommittablePlan, Plan, ReadablePlan
from tidemark.core.watermarks import TopicWatermarks


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSource:
    """Checks the topic that a plan is read from."""

    ports: Ports

    def check_before_reading(self, plan: Plan, ledger: Ledger) -> ReadablePlan:
        """Refuse a topic that lacks the planned records, or differs from the landed records.

        The returned plan has the leader epochs of this check.

        Raises:
            TopicRecreated, EndBehindCommitted and so on: See `LogComparison.check_plan`.
        """
        watermarks = self._watermarks(plan)
        LogComparison(ports=self.ports).check_plan(plan, ledger, watermarks)
        # Every record that is read from now on has one of these epochs, or a newer one. So a later
        # truncation before the end of the plan ends one of these epochs there.
        epochs = {p: here.leader_epoch for p, here in watermarks.partitions.items()}
        return ReadablePlan(plan.with_leader_epochs(epochs))

    def check_before_commit(self, plan: ReadablePlan) -> CommittablePlan:
        """Refuse files with records of a topic that was recreated while they were read.

        Raises:
            TopicRecreated and so on: See `plan_rules.check_same_topic`.
        """
        # fence: same-topic-before-commit
        plan_rules.check_same_topic(plan, self._watermarks(plan))
        return CommittablePlan(plan)

    def raise_if_lost(self, plan: Plan) -> None:
        """Raise the specific error if Kafka no longer has the planned records.

        Raises:
            LostRange, TopicRecreated and so on: See `plan_rules.check_readable`.
        """
        try:
            watermarks = self._watermarks(plan)
        except TransientError:
            return
        plan_rules.check_readable(plan, watermarks)

    def _watermarks(self, plan: Plan) -> TopicWatermarks:
        return self.ports.watermarks.topic_watermarks(plan.topic, plan.isolation_level)
