"""The entry to the quality check: judge one landed slice, record what came of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tidemark.adapters.quality.docs import DocsFolders, write_index
from tidemark.adapters.quality.suite import BUILT_IN_SUITE, Suite, load_suite
from tidemark.core.drift import HISTORY, drifts
from tidemark.core.quality import QualityReport, SliceExpectation, SliceRef
from tidemark.core.quality_checks import RangeFigures, figures
from tidemark.files import named_failures
from tidemark.ports import CheckResults

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)


class GreatExpectationsQuality:
    """Judges landed slices with Great Expectations, on Spark.

    One check at a time in a process: Great Expectations keeps state of its own. Checks in other
    processes may run at the same time; those of one pipeline wait for each other while they
    write its Data Docs.
    """

    def __init__(
        self,
        *,
        spark: Callable[[], SparkSession],
        suites: Path,
        home: Path,
        ranges: Callable[[SliceRef, Sequence[SliceExpectation]], Sequence[RangeFigures]],
        results: CheckResults,
    ) -> None:
        """Take the places; nothing is opened or started.

        Args:
            spark: Gives the session that reads slices; called when a check needs it.
            suites: Folder of suite files.
            home: Folder of Data Docs.
            ranges: Counts what a slice contains of each planned range.
            results: The results table.
        """
        self._spark = spark
        self._suites = suites
        self._home = home
        self._ranges = ranges
        self._results = results

    def check(
        self,
        ref: SliceRef,
        expected: Sequence[SliceExpectation],
        suite: str | None,
        run_at: datetime,
    ) -> QualityReport:
        """Judge a slice and write its Data Docs. The results table is written by `record`.

        Args:
            ref: The slice.
            expected: What the control table says landed, one for each planned range.
            suite: Name of the suite's file without its ending; None for built-in checks alone.
            run_at: The time of this attempt.

        Raises:
            SuiteError: The suite's file cannot be used.
            EngineFailed: An expectation could not be evaluated.
            StorageRefused, StorageUnavailable: A table cannot be read, or a page not be written.
        """
        chosen = BUILT_IN_SUITE if suite is None else self.load_suite(suite)
        folders = DocsFolders(home=self._home, pipeline=ref.pipeline)
        # Imported here: they bring Great Expectations and Spark, which take seconds.
        from tidemark.adapters.quality import slices, validation
        from tidemark.adapters.quality.context import open_context, publish

        rows = slices.with_columns(slices.read_slice(self._spark(), ref), chosen)
        top = slices.top_key(rows)
        if chosen.masked:
            # Any of these columns may be made of it.
            top = replace(top, key=None)
        taken = figures(self._ranges(ref, expected), top, expected)
        taken |= drifts(taken, self._results.earlier_figures(ref, HISTORY))
        checks = list(chosen.checks.values())
        with named_failures(folders.site, "writing the quality pages"), folders.locked():
            context = open_context(folders.site)
            validated = [validation.validate_figures(context, ref.pipeline, checks, taken)]
            results = validation.built_in_results(checks, taken, validated[0])
            if chosen.expectations:
                own = validation.validate_rows(context, ref.pipeline, chosen, rows)
                validated.append(own)
                results += validation.row_results(chosen, own)
            report = QualityReport(
                pipeline=ref.pipeline,
                plan_sequence=ref.plan_sequence,
                table_version=ref.table_version,
                kind=ref.kind,
                run_at=run_at,
                results=tuple(results),
                data_docs=str(folders.index),
            )
            write_index(folders, report, publish(context, validated, ref, run_at))
        logger.info(
            "checked pipeline=%s plan=%d table_version=%d verdict=%s results=%d",
            ref.pipeline,
            ref.plan_sequence,
            ref.table_version,
            report.verdict,
            len(report.results),
        )
        return report

    def load_suite(self, name: str) -> Suite:
        """Read a suite of the folder; see `suite.load_suite`."""
        return load_suite(self._suites / f"{name}.json")

    def record(self, report: QualityReport) -> None:
        """Append a report to the results table, as a new attempt."""
        self._results.append(report)
