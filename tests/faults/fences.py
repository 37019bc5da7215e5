"""The guards that keep the guarantees, and the mutation that removes each guard in a test.

A fence is a place in the package that a comment `# fence: its-name` marks. `test_fences.py` applies
the operation of one fence at a time and expects that a test fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.faults.mutation import (
    Always,
    Argument,
    Drop,
    LeftOperand,
    MoveUp,
    Never,
    Operation,
    Replace,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """One fence.

    Attributes:
        marker: The name in the marker comment; it states what holds.
        keeps: The invariant that is broken without the fence.
        operation: How the marked code is changed.
        noticed_by: Arguments of pytest that select tests of which one must fail.
        real: Whether these tests need Kafka or Spark.
    """

    marker: str
    keeps: str
    operation: Operation
    noticed_by: tuple[str, ...]
    real: bool = False


_BY_FILES: Mapping[str, tuple[tuple[Any, ...], ...]] = {
    "tests/bronze/backfill/test_replacing.py": (
        ("no-row-is-replaced-by-nothing", "I1", Never(), "kafka"),
        ("rows-of-other-incarnations-stay", "I1", Drop(), "incarnation"),
        ("changed-range-is-not-guessed", "I5", Drop(), "changed"),
        ("replaced-plan-holds-the-rest", "I3", Argument(0), "undone_replacement or undoing"),
        ("only-landed-plans-replace", "I3", Replace("True"), "kafka"),
        ("restore-during-undo", "I3", Argument(1), "restore"),
        ("doubtful-replacement-stays", "I1", Always(), "discarded"),
    ),
    "tests/bronze/ingest/test_executor.py": (
        ("same-topic-before-commit", "I1", Drop()),
        ("reported-commit-is-looked-up", "I3", Drop()),
        ("same-topic-before-reading", "I1", Drop()),
        ("same-topic-before-recording", "I1", Drop()),
        ("low-watermark-before-reading", "I7", Never()),
        ("landing-into-an-altered-table-is-refused", "I7", Drop(), "rules_changed"),
        ("landing-into-an-older-copy-is-refused", "I3", Drop(), "older_copy"),
        ("landing-has-its-files", "I3", Drop(), "have_disappeared"),
        ("landing-is-found-after-its-ledger", "I7", MoveUp(4), "other_chain"),
    ),
    "tests/bronze/ingest/test_log_comparison.py": (
        ("leaders-since-planning", "I3", Drop(), "comparable_rows"),
        ("epochs-of-the-read", "I7", Argument(0), "read_after_a_truncation"),
        ("last-landed-record-before-reading", "I3", Drop()),
        ("deleted-row-is-no-evidence", "I3", Replace("True"), "deleted_row"),
    ),
    "tests/bronze/ingest/test_planner.py": (
        ("look-before-taking-over", "I5", Replace("None")),
        ("positions-after-new-leader-epoch", "I1", Never()),
        ("same-topic-when-planning", "I1", Never()),
        ("low-watermark-when-planning", "I3", Never()),
        ("plan-of-a-run-is-kept", "I4", Replace("None")),
    ),
    "tests/bronze/ingest/test_planner.py tests/bronze/backfill/test_service.py": (
        ("no-two-plans-over-one-offset", "I2", Argument(1)),
    ),
    "tests/bronze/ingest/test_recorder.py": (
        ("same-topic-after-evidence", "I3", Drop()),
        ("gaps-need-evidence", "I3", Always()),
    ),
    "tests/bronze/ingest/test_spark_exact.py": (
        ("two-readers-see-the-same-records", "I1", Never()),
    ),
    "tests/bronze/ingest/test_start.py": (
        ("pipeline-starts-once", "I3", Never()),
        ("start-within-log", "I7", Never()),
        ("export-of-same-topic", "I7", Drop()),
    ),
    "tests/bronze/ingest/test_timestamps.py": (
        ("altered-timestamps-are-landed-again", "I1", Replace("True"), "early and Berlin", True),
    ),
    "tests/bronze/repair/test_abandon.py": (
        ("abandoned-plan-is-fenced", "I4", Drop()),
        ("fence-in-an-older-copy-is-refused", "I3", Drop(), "older_copy"),
    ),
    "tests/bronze/repair/test_decisions.py": (
        ("landed-offsets-of-one-topic", "I1", Drop()),
        ("no-accepted-recreation-beside-open-plan", "I1", Never()),
        ("no-accepted-loss-in-open-plan", "I3", Never()),
    ),
    "tests/bronze/repair/test_rewind.py": (
        ("one-ledger-for-one-look", "I7", Never(), "after_the_ledger_was_read"),
        ("lost-control-events-are-missed", "I7", Never()),
        ("ledger-and-table-agree", "I5", Drop()),
        ("unfinished-repair-is-noticed", "I5", Never(), "killed_after_its_fence"),
        ("newer-table-is-noticed", "I3", Never(), "from_a_backup"),
        ("other-table-lacks-plan", "I3", Never(), "cleaned_log"),
        ("table-is-the-fenced-one", "I5", Never()),
        ("look-again-after-fence", "I1", Drop()),
        ("one-more-epoch-is-fenced", "I4", LeftOperand()),
        ("restore-of-recorded-landing", "I5", Never()),
        ("restore-of-unrecorded-commit", "I5", Never()),
        ("older-epochs-are-fenced", "I4", Replace("[]")),
        ("removed-commit-proves-nothing", "I5", Never(), "deleted_rows_of_a_removed_commit"),
        ("deleted-rows-stay-landed", "I1", Never(), "deleted_rows_of_a_partly_replaced"),
        ("concurrent-repairs-have-own-fences", "I1", Never(), "two_concurrent_repairs"),
        ("landing-of-another-copy-is-noticed", "I3", Replace("True"), "only_another_copy"),
        ("older-contents-are-counted-again", "I3", Replace("False"), "half_removed"),
        ("numbers-of-forgotten-plans-stay-used", "I5", Replace("0"), "reuses_no_number"),
        ("plans-carry-new-epoch", "I4", Drop()),
        ("abandoned-plan-is-not-recorded", "I3", Drop()),
        ("forgotten-undo-is-found", "I1", Never(), "restores_an_undo"),
    ),
    "tests/bronze/repair/test_undo.py": (
        ("copy-from-before-an-undo-is-noticed", "I1", Never(), "from_before_an_undo"),
        ("removal-in-an-older-copy-is-refused", "I3", Drop(), "older_copy"),
        ("only-copy-is-not-removed", "I3", Never(), "only_copy"),
        ("replaced-records-count-as-lost", "I3", Never(), "only_copy"),
        ("undo-ends-in-its-epoch", "I1", Never(), "later_epoch"),
        ("ledger-from-before-an-undo-is-noticed", "I3", Never(), "from_before_an_undo"),
        ("removed-plan-is-gone-from-every-file", "I1", Drop(), "brings_back"),
        ("restore-of-unrecorded-removal", "I1", Drop(), "later_plan_lands"),
    ),
    "tests/bronze/repair/test_without_kafka.py": (
        ("unknown-loss-is-refused", "I3", Never(), "ends_with_its_error and undo"),
    ),
    "tests/cli/test_storage.py": (("no-access-is-no-empty-table", "I1", Never(), "empty_ledger"),),
    "tests/core/test_decode_round.py": (
        ("bookmark-moves-without-rows", "I1", Drop(), "visible_event"),
        ("policy-moves-the-bookmark", "I5", Drop(), "changed_policy"),
        ("only-replaced-rows-stay", "I5", Drop(), "rejected_plans"),
        ("rows-without-a-bookmark-have-an-unknown-spec", "I7", Never(), "unknown_spec"),
        ("lists-of-specs-outlive-a-comparison", "I7", Never(), "unknown_spec"),
        ("outdated-rows-and-their-pending-plans-are-read", "I5", Never(), "replaced_rows_stay"),
    ),
    "tests/core/test_following.py": (
        ("followed-event-is-known-by-its-digest", "I5", Never(), "another_ledger"),
        ("pending-plans-are-not-claimed", "I3", Drop(), "claim_pending"),
        ("same-totals-are-the-same-rows", "I3", Drop(), "same_totals"),
    ),
    "tests/core/test_plan_rules.py": (
        ("end-of-log-behind-plan", "I7", Never()),
        ("same-cluster", "I1", Never()),
    ),
    "tests/delta/test_compaction.py": (
        ("committed-rewrites-exist", "I1", Drop(), "refused"),
        ("rewrites-replace-live-files", "I1", Drop(), "refused"),
        ("checked-commit-follows-its-check", "I1", Drop(), "just_before"),
    ),
    "tests/delta/test_conditional_writes.py": (
        ("control-storage-is-tried", "I2", Replace("[]"), "copied_control"),
        ("data-storage-is-tried", "I1", Replace("[]"), "data_table"),
        ("unsafe-storage-is-refused", "I2", Never(), "ignores_conditional", True),
    ),
    "tests/delta/test_control_repair.py": (
        ("control-repair-replaces-all-rows", "I2", Never(), "cannot_be_replaced"),
        ("duplicate-events-are-noticed", "I7", Never(), "duplicate_events or duplicated"),
    ),
    "tests/delta/test_control_table.py": (
        ("control-commit-is-a-transaction", "I2", Drop(), "writer"),
        ("control-snapshot-is-the-ledger", "I2", Never(), "writer"),
        ("corrected-plan-is-read-in-full", "I1", Drop(), "summary"),
        ("doubtful-replacement-is-read-in-full", "I2", Replace("'SELECT 0'"), "summary"),
    ),
    "tests/delta/test_damaged_logs.py": (
        (
            "data-files-without-a-log-are-no-empty-table",
            "I1",
            Always(),
            "no_command_writes and offset_ranges",
        ),
    ),
    "tests/delta/test_data_table.py": (("commit-has-the-fingerprint", "I4", Never()),),
    "tests/delta/test_data_table_protocol.py": (
        ("fence-is-a-transaction", "I4", Replace("0"), "fenced"),
        ("older-removals-are-fenced", "I1", Never(), "epoch_of_their_removal"),
        ("removal-is-a-transaction", "I1", Replace("[]"), "fences_before_the_commit"),
    ),
    "tests/delta/test_deduplication.py": (
        ("duplicate-rows-are-noticed", "I1", Always(), "doubled_rows"),
        ("copies-are-equal", "I1", Drop(), "one_key_that_differ"),
    ),
    "tests/delta/test_deletion_vectors.py": (
        ("files-of-vectors-stay", "I1", Drop(), "keeps_used_vectors", True),
        ("files-of-unknown-vectors-stay", "I1", Never(), "cannot_read_the_checkpoint", True),
        ("deleted-rows-are-not-counted", "I3", Never(), "recorded_are_read_again", True),
    ),
    "tests/delta/test_foreign_tables.py": (
        ("partitioned-table-is-refused", "I1", Drop(), "partitioned"),
        ("state-of-own-table-only", "I7", Drop()),
    ),
    "tests/delta/test_kept_files.py": (("damaged-kept-file-is-missing", "I3", Never(), "damaged"),),
    "tests/delta/test_log_copies.py": (
        (
            "store-commit-creates-its-version",
            "I2",
            Replace('"overwrite"'),
            "refused or own_transactions",
        ),
        ("store-commit-follows-its-version", "I2", Never(), "conflicting"),
        ("replaced-table-is-copied-again", "I3", Never(), "every_change"),
        ("rows-of-the-copied-version", "I3", Never(), "before_its_rows"),
        ("incomplete-checkpoint-is-not-used", "I1", Drop(), "all_of_its_parts"),
    ),
    "tests/delta/test_maintained_table.py": (
        ("files-of-open-plans-stay", "I1", Drop()),
        ("files-of-newer-plans-stay", "I1", Drop()),
        ("recent-files-stay", "I1", Drop()),
        ("files-of-retained-versions-stay", "I5", LeftOperand()),
        ("doubtful-table-is-not-maintained", "I7", Argument(1)),
        ("wrong-clock-removes-nothing", "I1", Never(), "clock"),
    ),
    "tests/delta/test_noted_commits.py": (
        ("noted-commit-follows-its-version", "I1", Drop(), "between_the_check"),
        ("noted-commit-has-its-files", "I3", Never(), "maintenance_has_removed"),
        ("noted-commit-follows-the-same-table", "I1", Drop(), "change_of_rows"),
        ("noted-commit-follows-no-change-of-rows", "I1", Drop(), "change_of_rows"),
        ("followed-commit-is-known-by-its-digest", "I5", Never(), "notes_since"),
        ("followed-commits-change-no-other-rows", "I1", Never(), "notes_since"),
        ("note-before-another-change-of-rows-is-unknown", "I5", Never(), "note_is_known_until"),
    ),
    "tests/delta/test_removability.py": (
        ("only-possible-undos-begin", "I7", Drop(), "half_removed and undo"),
        ("replacement-of-removable-rows", "I7", Drop(), "half_removed and replacement"),
        ("decode-of-removable-rows", "I7", Drop(), "append_only_table and typed_uri"),
    ),
    "tests/delta/test_row_removal.py": (
        ("files-with-removed-rows-are-rewritable", "I7", Never(), "cannot_be_replaced"),
        ("rewritten-rows-of-other-incarnations-stay", "I1", Argument(0), "one_incarnation"),
    ),
    "tests/faults/test_broker_faults_nodes.py": (
        ("silent-leader-has-no-watermarks", "I3", Never(), "does_not_answer", True),
    ),
    "tests/faults/test_hostile_logs_in_mid_read.py": (
        ("reader-fails-on-data-loss", "I1", Replace('"false"'), "retention", True),
    ),
    "tests/faults/test_hostile_logs_transactions.py": (
        (
            "reader-has-plans-isolation-level",
            "I1",
            Replace('"read_uncommitted"'),
            "aborted or planned",
            True,
        ),
    ),
    "tests/kafka/test_watermarks.py": (
        ("ends-of-readers-isolation-level", "I1", Drop(), "", True),
    ),
    "tests/model/test_findings.py": (
        ("fence-before-look", "I1", MoveUp()),
        ("restore-during-landing", "I7", Argument(1)),
    ),
    "tests/ops/report/test_certificate.py": (
        ("certificate-has-restored-plans", "I5", Drop(), "restore_removed"),
    ),
    "tests/ops/report/test_coverage_rows.py": (
        ("gap-needs-every-row-of-its-range", "I3", Always()),
        ("unproven-gap-is-unclear", "I3", Never()),
        ("coverage-of-one-ledger", "I5", Drop()),
    ),
    "tests/quality/test_publication.py": (
        ("unrecorded-replacement-is-unchecked", "I7", Drop(), "open_replacement"),
        ("concurrent-block-wins", "I7", Never(), "the_one_that_blocks"),
        ("decision-is-about-the-checked-plan", "I7", Never(), "removed_data_table"),
        ("failed-check-blocks", "I7", Replace("False"), "blocked_range"),
    ),
    "tests/silver/typed/test_decoder_thresholds.py": (
        ("quarantine-has-a-limit", "I1", Always(), "bad_rule", True),
    ),
    "tests/silver/typed/test_following_beside.py": (
        ("decode-with-an-earlier-spec-commits-nothing", "I7", Never(), "earlier_spec"),
        ("decode-with-a-replaced-spec-begins-nothing", "I7", Never(), "replaced_spec"),
        ("lists-of-specs-outlive-other-changes", "I7", Never(), "stays_refused"),
        ("only-records-with-resolved-schemas-are-decoded", "I3", Never(), "replay_beside"),
        ("rows-are-withdrawn-before-an-error", "I7", Drop(), "are_withdrawn"),
        ("replaced-rows-stay-until-their-new-rows", "I3", Argument(0), "replaced_rows"),
    ),
    "tests/silver/typed/test_following.py": (
        ("doubled-bronze-rows-are-not-decoded", "I1", Drop(), "doubled_bronze"),
        (
            "decoded-bronze-table-is-the-compared-one",
            "I3",
            Drop(),
            "restored_during_the_comp",
        ),
        ("one-ledger-for-one-round", "I3", Never(), "between_two_reads and plans"),
        ("typed-offsets-are-not-added", "I1", Argument(0), "missing_in_plans"),
        ("decode-examines-plans-after-waiting-ones", "I7", Never(), "looks_for_plans"),
        ("replaced-rows-wait", "I3", Drop(), "not_recorded_wait"),
        ("plans-with-schema-conflicts-wait", "I1", Drop(), "does_not_fit_waits"),
        ("decode-continues-after-schema-conflicts", "I7", Always(), "chunk_of_schema"),
        ("decode-chooses-a-plan-once", "I7", Drop(), "more_waiting_plans"),
        ("offsets-that-were-rejected-meanwhile-are-not-committed", "I5", Never(), "begins_a_new"),
        ("quarantine-was-up-to-date-before-the-commit", "I3", Never(), "followed_together"),
        ("quarantine-follows-one-commit-alone", "I3", Drop(), "was_overtaken"),
        ("entries-of-unknown-schemas-wait", "I5", Never(), "without_plans"),
        ("followed-table-is-the-own-one", "I7", Drop(), "another_pipeline"),
        ("only-copy-is-not-cleared", "I1", Never(), "only_copy_of_a_row"),
        ("only-readable-copies-are-decoded-from-scratch", "I1", Never(), "unreadable_file"),
    ),
    "tests/silver/typed/test_many_schemas.py": (
        ("passes-share-no-record", "I1", Never(), "each_record_once and json_schema", True),
    ),
    "tests/silver/typed/test_schemas.py": (
        ("unfit-schema-stops-partition", "I1", Never(), "fit"),
        ("large-schema-stops-no-partition", "I1", Never(), "beyond_a_limit"),
        ("replaced-schema-is-refused", "I1", Never(), "another"),
    ),
    "tests/silver/upsert/test_merges.py": (
        ("topic-ids-of-unknown-plans-are-read", "I1", Always(), "ledger_is_lost"),
        ("renewal-follows-the-last-merge", "I4", Never(), "late_merge_without_changes"),
    ),
    "tests/silver/upsert/test_service.py": (
        ("keys-are-per-partition", "I1", Drop(), "newest_record and hard", True),
        ("late-merge-is-a-past-transaction", "I4", Replace("{}"), "late_merge", True),
        ("two-merges-from-one-base", "I4", Never(), "two_drivers", True),
    ),
    "tests/spark/test_parquet.py": (
        ("landing-is-a-transaction", "I4", Replace("[]")),
        ("taken-transaction-is-not-committed", "I4", Never()),
        ("files-have-disjoint-offsets", "I1", Drop()),
    ),
    "tests/spec/test_upsert.py": (("older-records-merge-by-all-keys", "I1", Replace("False")),),
}
"""Fences by the test files that notice their removal: marker, invariant, and operation. Some rows
also have a value of the option -k, and whether the selected tests need Kafka or Spark.
"""


def _fence(
    files: str, marker: str, keeps: str, operation: Operation, tests: str = "", real: bool = False
) -> Fence:
    selected = ("-k", tests) if tests else ()
    return Fence(
        marker=marker,
        keeps=keeps,
        operation=operation,
        noticed_by=(*files.split(), *selected),
        real=real,
    )


FENCES = tuple(_fence(files, *row) for files, rows in _BY_FILES.items() for row in rows)
