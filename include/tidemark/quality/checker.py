"""The quality check of one landed batch: built-in checks, and the rules of its suite."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import datetime
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from tidemark.delta.local_files import translate_os_errors
from tidemark.quality.check_results import BatchRef, CheckResult, QualityReport, RecordedRange
from tidemark.quality.check_results_table import DeltaCheckResults
from tidemark.quality.checks import figures
from tidemark.quality.data_docs import DataDocs
from tidemark.quality.range_figures import range_figures
from tidemark.quality.suite import BUILT_IN_SUITE, Suite, load_suite

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


log = logging.getLogger(__name__)


class BatchChecker:
    """Checks landed batches: computes built-in checks, and runs a suite's rules on Spark.

    Imports Spark and Great Expectations only for a suite with rules or columns. A process checks
    one batch at a time, because Great Expectations has global state. Several processes can check
    concurrently. Processes on one machine write the Data Docs of a pipeline one after the other.
    """

    def __init__(
        self,
        *,
        spark: Callable[[], SparkSession],
        suites: Path,
        docs: DataDocs,
        results: DeltaCheckResults,
    ) -> None:
        """Create the checker. Opens and starts nothing.

        Args:
            spark: Returns the session that reads batches; called when a check needs it.
            suites: Folder of suite files.
            docs: The Data Docs of rules on rows.
            results: The results table.
        """
        self._spark = spark
        self._suites = suites
        self._docs = docs
        self._results = results

    def check(
        self,
        ref: BatchRef,
        expected: Sequence[RecordedRange],
        suite: str | None,
        run_at: datetime,
    ) -> QualityReport:
        """Check a batch and write its Data Docs. `record` writes the results table.

        Args:
            ref: The batch.
            expected: The recorded number of records of each planned range.
            suite: Name of the suite's file without its ending; None for built-in checks only.
            run_at: The time of this attempt.

        Raises:
            SpecError: The suite's file is invalid.
            EngineFailed: An expectation could not be evaluated.
            StorageFailure: A table cannot be read, or a page cannot be written.
        """
        loaded = BUILT_IN_SUITE if suite is None else load_suite(self._suites / f"{suite}.json")
        if loaded.expectations:
            import_ahead()
        results = self._built_in_results(ref, expected, loaded)
        row_results, page = self._row_results(ref, loaded, run_at)
        report = QualityReport(
            pipeline=ref.pipeline,
            plan_sequence=ref.plan_sequence,
            table_version=ref.table_version,
            kind=ref.kind,
            run_at=run_at,
            results=(*results, *row_results),
            data_docs=None if page is None else str(page),
        )
        log.info(
            "checked pipeline=%s plan=%d table_version=%d outcome=%s checks=%d",
            ref.pipeline,
            ref.plan_sequence,
            ref.table_version,
            report.outcome,
            len(report.results),
        )
        return report

    def _built_in_results(
        self,
        ref: BatchRef,
        expected: Sequence[RecordedRange],
        suite: Suite,
    ) -> list[CheckResult]:
        measured = figures(range_figures(ref, expected), expected)
        return [check.result(measured[check.name]) for check in suite.checks.values()]

    def _row_results(
        self, ref: BatchRef, suite: Suite, run_at: datetime
    ) -> tuple[list[CheckResult], Path | None]:
        """Return the results of rules on rows, and the path of their page; None without rules."""
        if not (suite.expectations or suite.columns):
            return [], None
        # The imports of Great Expectations and Spark take seconds.
        from tidemark.quality.gx import batches, validation
        from tidemark.quality.gx.context import open_context, publish

        rows = batches.with_columns(batches.read_batch(self._spark(), ref), suite)
        if not suite.expectations:
            return [], None
        with self._writing(ref.pipeline):
            context = open_context(self._docs.site(ref.pipeline))
        validated = validation.validate_rows(context, ref.pipeline, suite, rows)
        with self._writing(ref.pipeline), self._docs.locked(ref.pipeline):
            page = publish(context, validated, ref, run_at)
        return validation.row_results(suite, validated), page

    def _writing(self, pipeline: str) -> AbstractContextManager[None]:
        return translate_os_errors(self._docs.site(pipeline), "writing the Data Docs")

    def record(self, report: QualityReport) -> None:
        """Append a report to the results table, as a new attempt."""
        self._results.append(report)


def import_ahead() -> None:
    """Import Great Expectations in a new thread, while the caller waits for Spark or for a disk.

    The function first imports all modules of PySpark that the caller will need. If two threads
    import modules of one import cycle, a thread can see an incomplete module.
    """
    import pyspark.sql.functions
    from pyspark.sql import is_remote

    if is_remote():
        import pyspark.sql.connect.session  # noqa: F401
    Thread(target=_import).start()


def _import() -> None:
    # The thread that needs the module repeats the import and gets the error.
    with suppress(Exception):
        import_module("tidemark.quality.gx.validation")
