"""The fences that keep the promise, and how each is taken away.

A fence is a line or two of the package. `test_fences.py` removes one at a time from a copy and
shows that a test notices: a fence that no test misses is not known to do anything.
"""

from __future__ import annotations

from dataclasses import dataclass

SERVICES = "tests/services"
DELTA = "tests/adapters/delta"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """One fence.

    Attributes:
        name: What it is.
        keeps: The invariant that falls with it.
        file: Where it stands, below include/tidemark.
        old: The code that is the fence; it is there exactly once.
        new: What is put in its place.
        noticed_by: Arguments for pytest: where the test is that must fail.
        real: Whether that test needs Kafka or Spark.
    """

    name: str
    keeps: str
    file: str
    old: str
    new: str
    noticed_by: tuple[str, ...]
    real: bool = False


FENCES = (
    Fence(
        name="compare-and-set: the transaction of a control-table commit",
        keeps="I2",
        file="adapters/delta/control_table.py",
        old="app_transactions=[Transaction(ledger.pipeline, number)]",
        new="app_transactions=[]",
        noticed_by=(f"{DELTA}/test_control_table.py", "-k", "writer"),
    ),
    Fence(
        name="compare-and-set: no writing from a ledger older than the snapshot",
        keeps="I2",
        file="adapters/delta/control_table.py",
        old="if (table.transaction_version(ledger.pipeline) or 0) != ledger.event_number:",
        new="if False:",
        noticed_by=(f"{DELTA}/test_control_table.py", "-k", "writer"),
    ),
    Fence(
        name="nothing is planned over a table that is not the pipeline's",
        keeps="I7",
        file="adapters/delta/data_table.py",
        old="""        self._check(table, pipeline)
        found = """,
        new="""        found = """,
        noticed_by=(f"{DELTA}/test_foreign_tables.py",),
    ),
    Fence(
        name="events lost from the control table are missed",
        keeps="I7",
        file="core/table.py",
        old="    if ledger.missing_events:",
        new="    if False:",
        noticed_by=(f"{SERVICES}/test_repair.py",),
    ),
    Fence(
        name="transaction options of the landing commit",
        keeps="I4",
        file="adapters/delta/data_table.py",
        old="transactions = [Transaction(plan.app_id, plan.sequence)]\n            change",
        new="transactions: list[Transaction] = []\n            change",
        noticed_by=("tests/adapters/spark/test_parquet.py",),
    ),
    Fence(
        name="a stale transaction is not committed again",
        keeps="I4",
        file="adapters/delta/data_table.py",
        old="""            if _is_taken(table, plan):
                return
            transactions""",
        new="            transactions",
        noticed_by=("tests/adapters/spark/test_parquet.py",),
    ),
    Fence(
        name="files with the same offsets are not committed",
        keeps="I1",
        file="adapters/spark/parquet.py",
        old="    _check_apart(made)\n",
        new="",
        noticed_by=("tests/adapters/spark/test_parquet.py",),
    ),
    Fence(
        name="topic id: before what was read is committed",
        keeps="I1",
        file="services/ingest.py",
        old="            planning.check_same_topic(plan, marks)\n",
        new="",
        noticed_by=(f"{SERVICES}/test_ingest.py",),
    ),
    Fence(
        name="confirm: a reported success is looked up",
        keeps="I3",
        file="services/ingest.py",
        old="""        landing = self._landed(plan)
        if landing is None:
            raise NotLanded(""",
        new="""        landing = self.table.find(plan) or Landing.of(
            plan, 0, {i: r.span.size for i, r in enumerate(plan.ranges)}
        )
        if landing is None:
            raise NotLanded(""",
        noticed_by=(f"{SERVICES}/test_ingest.py",),
    ),
    Fence(
        name="confirm: the fingerprint of the commit",
        keeps="I4",
        file="adapters/delta/data_table.py",
        old='if metadata.get("fingerprint") == plan.fingerprint:',
        new='if metadata.get("sequence") == plan.sequence:',
        noticed_by=(f"{DELTA}/test_data_table.py",),
    ),
    Fence(
        name="confirm: what is left of a commit counts, not what it once was",
        keeps="I3",
        file="adapters/delta/data_table.py",
        old="                return Landing.of(plan, version, landed_counts(table, plan))\n",
        new="                table.load_as_version(version)\n"
        "                return Landing.of(plan, version, landed_counts(table, plan))\n",
        noticed_by=(f"{DELTA}/test_contents.py", "-k", "left_of_it"),
    ),
    Fence(
        name="look before acting again",
        keeps="I5",
        file="services/planner.py",
        old="            landing = self.data_log.find(opened.plan)\n",
        new="            landing = None\n",
        noticed_by=(f"{SERVICES}/test_planner.py",),
    ),
    Fence(
        name="summary: a plan that something was said against is read in full",
        keeps="I1",
        file="core/settled.py",
        old="        and not any(events[kind] for kind in AGAINST)",
        new="",
        noticed_by=(f"{DELTA}/test_control_table.py", "-k", "summary"),
    ),
    Fence(
        name="summary: no newer ledger is held against an older look at the table",
        keeps="I7",
        file="services/recording.py",
        old="        if whole.event_number != ledger.event_number:",
        new="        if False:",
        noticed_by=("tests/model/test_small_scope.py", "-k", "rewind"),
    ),
    Fence(
        name="leader epoch: a log that was cut and has grown again",
        keeps="I1",
        file="services/positions.py",
        old="        if unproven := planning.landed_under_others(known, marks, ranges):",
        new="        if unproven := {}:",
        noticed_by=(f"{SERVICES}/test_planner.py",),
    ),
    Fence(
        name="topic id: when planning",
        keeps="I1",
        file="core/planning.py",
        old="    if ledger.topic_id != marks.topic_id:",
        new="    if False:",
        noticed_by=(f"{SERVICES}/test_planner.py",),
    ),
    Fence(
        name="topic id: before reading",
        keeps="I1",
        file="core/planning.py",
        old="    check_identity(_known_to(plan), marks)\n    lost",
        new="    lost",
        noticed_by=(f"{SERVICES}/test_ingest.py",),
    ),
    Fence(
        name="topic id: before a landing is recorded",
        keeps="I1",
        file="services/recording.py",
        old="        before = self._same_topic(plan)\n",
        new="        before = self.marks.topic_marks(plan.topic, plan.isolation_level)\n",
        noticed_by=(f"{SERVICES}/test_ingest.py",),
    ),
    Fence(
        name="topic id: after gaps were looked into",
        keeps="I3",
        file="services/recording.py",
        old="            self._same_topic(plan)\n        except",
        new="            pass\n        except",
        noticed_by=(f"{SERVICES}/test_recording.py",),
    ),
    Fence(
        name="evidence: a gap with a visible record is no hole",
        keeps="I3",
        file="services/recording.py",
        old="        if landing.holes == 0:",
        new="        if True:",
        noticed_by=(f"{SERVICES}/test_recording.py",),
    ),
    Fence(
        name="LSO: ends are planned with the reader's isolation level",
        keeps="I1",
        file="adapters/kafka/marks.py",
        old="            isolation_level=_ISOLATION[isolation_level],",
        new="            isolation_level=RdIsolationLevel.READ_UNCOMMITTED,",
        noticed_by=("tests/adapters/kafka/test_marks.py",),
        real=True,
    ),
    Fence(
        name="low-water mark: when planning",
        keeps="I3",
        file="core/planning.py",
        old="        if start < here.low:",
        new="        if False:",
        noticed_by=(f"{SERVICES}/test_planner.py",),
    ),
    Fence(
        name="low-water mark: before reading",
        keeps="I7",
        file="core/planning.py",
        old="    if lost:\n        raise LostRange(pipeline=plan.pipeline",
        new="    if False:\n        raise LostRange(pipeline=plan.pipeline",
        noticed_by=(f"{SERVICES}/test_ingest.py",),
    ),
    Fence(
        name="end of the log: behind what is committed or planned",
        keeps="I7",
        file="core/planning.py",
        old="    if offset > end:",
        new="    if False:",
        noticed_by=("tests/core/test_planning.py",),
    ),
    Fence(
        name="no two plans over one offset",
        keeps="I2",
        file="core/ledger.py",
        old="return self.covered(partition).union(self.pending.get(partition, SpanSet()))",
        new="return self.covered(partition)",
        noticed_by=(f"{SERVICES}/test_planner.py", f"{SERVICES}/test_backfills.py"),
    ),
    Fence(
        name="a pipeline begins once",
        keeps="I3",
        file="services/starts.py",
        old="        if ledger.starts:",
        new="        if False:",
        noticed_by=(f"{SERVICES}/test_starts.py",),
    ),
    Fence(
        name="end of the log: behind where a pipeline is to begin",
        keeps="I7",
        file="core/starts.py",
        old="        if offset > (end := marks.partitions[partition].end):",
        new="        if (end := offset) < 0:",
        noticed_by=(f"{SERVICES}/test_starts.py",),
    ),
    Fence(
        name="offsets of another topic are not exported",
        keeps="I7",
        file="services/exports.py",
        old="        planning.check_identity(ledger, marks)\n",
        new="",
        noticed_by=(f"{SERVICES}/test_starts.py",),
    ),
    Fence(
        name="a plan belongs to who asked for it",
        keeps="I4",
        file="services/planner.py",
        old="        mine = ledger.plan_of(requested_by)\n",
        new="        mine = None\n",
        noticed_by=(f"{SERVICES}/test_planner.py",),
    ),
    Fence(
        name="fence of a plan that is given up",
        keeps="I4",
        file="services/abandon.py",
        old="        self.table.fence(plan)\n",
        new="",
        noticed_by=(f"{SERVICES}/test_abandon.py",),
    ),
    Fence(
        name="fence first, look second",
        keeps="I1",
        file="services/abandon.py",
        old="        self.table.fence(plan)\n        landing = self.table.find(plan)\n",
        new="        landing = self.table.find(plan)\n        self.table.fence(plan)\n",
        noticed_by=("tests/model/test_findings.py",),
    ),
    Fence(
        name="decoding: what was landed anew is decoded anew",
        keeps="I1",
        file="services/decoding.py",
        old="        return {topic_id: spans for topic_id, spans in found.items() if spans}\n",
        new="        return {}\n",
        noticed_by=(f"{SERVICES}/test_decoding.py", "-k", "replaced or anew"),
    ),
    Fence(
        name="decoding: what was undone leaves the typed table",
        keeps="I1",
        file="services/decoding.py",
        old="        if self._undone(bronze, ledger):\n            return self._once()\n",
        new="",
        noticed_by=(f"{SERVICES}/test_decoding.py", "-k", "undone_leaves"),
    ),
    Fence(
        name="decoding: a plan of another decoder is not executed",
        keeps="I4",
        file="services/decoding.py",
        old="if source is None or source.fingerprint != self.decode.fingerprint:",
        new="if source is None:",
        noticed_by=(f"{SERVICES}/test_decoding.py", "-k", "another_decoder"),
    ),
    Fence(
        name="decoding: bronze rows that a RESTORE took out are no holes",
        keeps="I3",
        file="services/landed_log.py",
        old="landed = checked_ledger(self.control, self.pipeline, self.data_log)",
        new="landed = self.control.summary(self.pipeline)",
        noticed_by=(f"{SERVICES}/test_decoding.py", "-k", "for_now"),
    ),
    Fence(
        name="quarantine: nothing counts before the typed table has the plan",
        keeps="I1",
        file="adapters/delta/quarantine.py",
        old='(closed_by IS NULL OR closed_by NOT IN ({held}))"',
        new='closed_by IS NULL"',
        noticed_by=(f"{SERVICES}/test_decoding.py", "-k", "half_way or replay"),
    ),
    Fence(
        name="quarantine: two drivers agree on what is in it",
        keeps="I1",
        file="adapters/delta/quarantine.py",
        old="        self._refuse_others(plan, kept)\n",
        new="",
        noticed_by=(f"{SERVICES}/test_decoding.py", "-k", "differently"),
    ),
    Fence(
        name="quarantine: one that was lost is missed",
        keeps="I7",
        file="adapters/delta/quarantine.py",
        old="return TableState(transactions=both, restores=typed.restores)",
        new="return typed",
        noticed_by=(f"{SERVICES}/test_decoding.py", "-k", "was_lost"),
    ),
    Fence(
        name="RESTORE: while a plan was landing",
        keeps="I7",
        file="services/recording.py",
        old="        check_ledger(self.control, ledger, self.data_log)\n        is_current",
        new="        is_current",
        noticed_by=("tests/model/test_findings.py",),
    ),
    Fence(
        name="ledger and data table of one history",
        keeps="I5",
        file="services/recording.py",
        old="        check_table(ledger, state)\n",
        new="        pass\n",
        noticed_by=(f"{SERVICES}/test_repair.py",),
    ),
    Fence(
        name="epoch: the table is the one that was fenced",
        keeps="I5",
        file="core/table.py",
        old="        if newest != FENCED:",
        new="        if False:",
        noticed_by=(f"{SERVICES}/test_repair.py",),
    ),
    Fence(
        name="epoch: the second look, after the fence",
        keeps="I1",
        file="services/repair.py",
        old="        # Nothing of the old epochs can land from here on: look again.\n"
        "        look = self._look(ledger, requested_by)\n"
        "        found = look.found\n",
        new="",
        noticed_by=(f"{SERVICES}/test_repair.py",),
    ),
    Fence(
        name="epoch: more than the data table has seen is fenced",
        keeps="I4",
        file="services/repair.py",
        old="range(max(epochs, ledger.epoch) + 1)",
        new="range(max(epochs, ledger.epoch))",
        noticed_by=(f"{SERVICES}/test_repair.py",),
    ),
    Fence(
        name="incarnation: offsets of another topic do not count",
        keeps="I1",
        file="core/ledger.py",
        old="[r.landing for r in self.plans.values() if r.plan.topic_id == topic_id]",
        new="[r.landing for r in self.plans.values()]",
        noticed_by=(f"{SERVICES}/test_decisions.py",),
    ),
    Fence(
        name="no new incarnation beside an open plan",
        keeps="I1",
        file="services/decisions.py",
        old="        if opened:\n            raise OpenPlanInTheWay(",
        new="        if False:\n            raise OpenPlanInTheWay(",
        noticed_by=(f"{SERVICES}/test_decisions.py",),
    ),
    Fence(
        name="no accepted loss inside an open plan",
        keeps="I3",
        file="services/decisions.py",
        old="            if planned.partition == partition and planned.start < low:",
        new="            if False:",
        noticed_by=(f"{SERVICES}/test_decisions.py",),
    ),
    Fence(
        name="another cluster",
        keeps="I1",
        file="core/planning.py",
        old="    if ledger.cluster_id != marks.cluster_id:",
        new="    if False:",
        noticed_by=("tests/core/test_planning.py",),
    ),
    Fence(
        name="a partition whose leader did not answer has no marks",
        keeps="I3",
        file="adapters/kafka/marks.py",
        old="            if info.offset == OFFSET_INVALID:",
        new="            if False:",
        noticed_by=("tests/faults/test_broker_faults_nodes.py", "-k", "does_not_answer"),
        real=True,
    ),
    Fence(
        name="RESTORE: of what is recorded as landed",
        keeps="I5",
        file="core/table.py",
        old="        if not still_holds(state.restores, version):",
        new="        if False:",
        noticed_by=(f"{SERVICES}/test_repair.py",),
    ),
    Fence(
        name="RESTORE: of a commit that is not recorded yet",
        keeps="I5",
        file="core/table.py",
        old="    if not still_holds(restores, version):",
        new="    if False:",
        noticed_by=(f"{SERVICES}/test_repair.py",),
    ),
    Fence(
        name="epoch: older ones are fenced off",
        keeps="I4",
        file="services/repair.py",
        old="        fenced = self.table.fence_chains(self.spec.name, known)\n",
        new="        fenced = newest_table_version(ledger)\n",
        noticed_by=(f"{SERVICES}/test_repair.py",),
    ),
    Fence(
        name="epoch: new plans carry it",
        keeps="I4",
        file="core/ledger.py",
        old="                epoch=event.epoch,\n",
        new="",
        noticed_by=(f"{SERVICES}/test_repair.py",),
    ),
    Fence(
        name="epoch: a driver that landed before a rewind records nothing after it",
        keeps="I3",
        file="services/ingest.py",
        old="        refuse_abandoned(record)\n        return recorder",
        new="        return recorder",
        noticed_by=(f"{SERVICES}/test_repair.py",),
    ),
    Fence(
        name="epoch: the fence reaches Delta's transactions",
        keeps="I4",
        file="adapters/delta/data_table.py",
        old="        transactions = [Transaction(app_id, FENCED) for app_id in open_ids]\n",
        new="        transactions = [Transaction(app_id, 0) for app_id in open_ids]\n",
        noticed_by=(f"{DELTA}/test_contents.py", "-k", "fenced"),
    ),
    Fence(
        name="maintenance: files of open plans stay",
        keeps="I1",
        file="core/upkeep.py",
        old="sequence <= ledger.last_sequence and sequence not in held",
        new="sequence <= ledger.last_sequence",
        noticed_by=(f"{DELTA}/test_upkeep.py",),
    ),
    Fence(
        name="maintenance: files of plans that are made meanwhile stay",
        keeps="I1",
        file="core/upkeep.py",
        old="sequence <= ledger.last_sequence and sequence not in held",
        new="sequence not in held",
        noticed_by=(f"{DELTA}/test_upkeep.py",),
    ),
    Fence(
        name="maintenance: files that were written within the retention stay",
        keeps="I1",
        file="core/upkeep.py",
        old="if file.modified_ms < before_ms",
        new="if True",
        noticed_by=(f"{DELTA}/test_upkeep.py",),
    ),
    Fence(
        name="maintenance: files of versions within the retention stay",
        keeps="I5",
        file="adapters/delta/upkeep.py",
        old="newest | _named_since(files, listed, since_ms)",
        new="newest",
        noticed_by=(f"{DELTA}/test_upkeep.py",),
    ),
    Fence(
        name="maintenance: a table in doubt is left alone",
        keeps="I7",
        file="services/maintenance.py",
        old="checked_ledger(control, pipeline, data_log)",
        new="control.summary(pipeline)",
        noticed_by=(f"{DELTA}/test_upkeep.py",),
    ),
    Fence(
        name="replacing: no row is replaced by nothing",
        keeps="I1",
        file="adapters/delta/replacing.py",
        old="    if lost:",
        new="    if False:",
        noticed_by=(f"{SERVICES}/test_replacing.py", "-k", "kafka"),
    ),
    Fence(
        name="replacing: rows of other incarnations stay",
        keeps="I1",
        file="adapters/delta/contents.py",
        old="    return f\"topic_id = '{topic_id}' AND ({_any_of(places)})\"",
        new="    return _any_of(places)",
        noticed_by=(f"{SERVICES}/test_replacing.py", "-k", "incarnation"),
    ),
    Fence(
        name="replacing: what is left of a changed range is not guessed",
        keeps="I5",
        file="services/superseding.py",
        old="    cut = _cut(counts, spans)\n    _check(older, cut, data_log)",
        new="    cut = _cut(counts, spans)",
        noticed_by=(f"{SERVICES}/test_replacing.py", "-k", "changed"),
    ),
    Fence(
        name="replacing: a plan holds no more than was left of it",
        keeps="I3",
        file="core/ledger.py",
        old="counts=next(left, whole.counts)",
        new="counts=whole.counts",
        noticed_by=(f"{SERVICES}/test_replacing.py", "-k", "undoing"),
    ),
    Fence(
        name="replacing: a plan that has not landed has replaced nothing",
        keeps="I3",
        file="core/ledger.py",
        old="by is None or by.whole is not None or by.undone_at is not None",
        new="True",
        noticed_by=(f"{SERVICES}/test_replacing.py", "-k", "kafka"),
    ),
    Fence(
        name="replacing: an undo ends on a table that was not restored meanwhile",
        keeps="I3",
        file="services/undo.py",
        old="        ledger = checked_ledger(self.control, self.pipeline, self.table)\n"
        "        record = recorded_plan(self.control, self.pipeline, undone.sequence)\n",
        new="        ledger = self.control.summary(self.pipeline)\n"
        "        record = recorded_plan(self.control, self.pipeline, undone.sequence)\n",
        noticed_by=(f"{SERVICES}/test_replacing.py", "-k", "restore"),
    ),
    Fence(
        name="replacing: rows that replaced others are not taken out because of a doubt",
        keeps="I1",
        file="services/recording.py",
        old="            if not plan.replaces:\n                raise\n",
        new="            raise\n",
        noticed_by=(f"{SERVICES}/test_replacing.py", "-k", "discarded"),
    ),
    Fence(
        name="summary: what a replacement that is in doubt left of a plan is read in full",
        keeps="I2",
        file="core/settled.py",
        old="if superseders[sequence] <= over",
        new="if True",
        noticed_by=(f"{DELTA}/test_control_table.py", "-k", "summary"),
    ),
    Fence(
        name="an undo that the control table has forgotten",
        keeps="I1",
        file="core/repair.py",
        old="elif not held and _is_discarded(record.landing, discards.get(sequence), restores):",
        new="elif False:",
        noticed_by=(f"{SERVICES}/test_repair.py", "-k", "forgotten"),
    ),
    Fence(
        name="the reader fails where records are missing",
        keeps="I1",
        file="adapters/spark/sink.py",
        old='.option("failOnDataLoss", "true")',
        new='.option("failOnDataLoss", "false")',
        noticed_by=("tests/faults/test_hostile_logs_in_mid_read.py", "-k", "retention"),
        real=True,
    ),
    Fence(
        name="the plan's isolation level when reading",
        keeps="I1",
        file="adapters/spark/sink.py",
        old='.option("kafka.isolation.level", plan.isolation_level.value)',
        new='.option("kafka.isolation.level", "read_uncommitted")',
        noticed_by=("tests/faults/test_hostile_logs_transactions.py", "-k", "aborted or planned"),
        real=True,
    ),
)
