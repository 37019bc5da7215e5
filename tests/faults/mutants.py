"""Test runs against a mutated package, each in a process forked from one that has imported pytest.

The process that is forked has imported libraries, and nothing of the package. Its only threads are
those of jemalloc and OpenBLAS, which both register handlers for a fork.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

import pytest

from tests.faults.mutation import PACKAGE, VARIABLE

_IMPORTED = (
    "pytest",
    "hypothesis.stateful",
    "deltalake",
    "pyarrow.dataset",
    "confluent_kafka.admin",
    "pyspark.sql",
)
_PYTEST = (
    "-q",
    "-x",
    "-p",
    "no:cacheprovider",
    "-p",
    "tests.faults.mutation",
    "-W",
    # Assertions of plugins that are imported before pytest starts.
    "ignore::pytest.PytestAssertRewriteWarning",
)
_SECONDS = 420
_BROKEN = ("NameError", "UnboundLocalError", "AttributeError", "ImportError", "TypeError")
"""Starts of failures that show broken mutated code instead of a broken guarantee."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of a run of tests.

    Attributes:
        code: The exit code of pytest; None if it was killed.
        failed: The messages of the tests whose call failed.
        errors: The messages of the tests whose set-up or teardown failed.
        passed: The number of tests that passed.
        output: The output of pytest.
    """

    code: int | None
    failed: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    passed: int = 0
    output: str = ""

    @property
    def has_noticed(self) -> bool:
        """Whether a test failed for another reason than broken mutated code."""
        is_broken = any(message.startswith(_BROKEN) for message in self.failed)
        has_failed = self.code == pytest.ExitCode.TESTS_FAILED and bool(self.failed)
        return has_failed and not self.errors and not is_broken

    @classmethod
    def read(cls, folder: Path, code: int | None) -> Self:
        """Return the outcome of a run that wrote into the folder and has ended."""
        output = (folder / "output").read_text(errors="replace")
        if code != 0 or not (folder / "results").exists():
            return cls(code=None, output=output)
        results = json.loads((folder / "results").read_text())
        return cls(
            code=results["code"],
            failed=tuple(results["failed"]),
            errors=tuple(results["errors"]),
            passed=results["passed"],
            output=output,
        )


@dataclass
class _Results:
    """A plugin that collects the results of tests."""

    failed: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    passed: int = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            message = str(crash.message if crash else report.longrepr)
            (self.failed if report.when == "call" else self.errors).append(message)
        elif report.when == "call":
            self.passed += report.passed


def run_tests(arguments: Sequence[str], folder: Path, fence: str = "") -> Outcome:
    """Run pytest in another process.

    Args:
        arguments: Arguments of pytest.
        folder: An empty folder for its output.
        fence: The marker of the fence to remove; none if empty.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_IMPORTED))
    process = context.Process(target=_run, args=(tuple(arguments), folder, fence))
    process.start()
    process.join(_SECONDS)
    if process.is_alive() and process.pid is not None:
        # On SIGINT, pytest stops the broker and Spark.
        os.kill(process.pid, signal.SIGINT)
        process.join(60)
        process.kill()
        process.join()
        return Outcome.read(folder, None)
    return Outcome.read(folder, process.exitcode)


def _run(arguments: tuple[str, ...], folder: Path, fence: str) -> None:
    """Run pytest in the forked process and write its results."""
    with (folder / "output").open("w") as output:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(output.fileno(), stream.fileno())
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(PACKAGE.parents[1])
    os.environ[VARIABLE] = fence
    from hypothesis.configuration import set_hypothesis_home_dir

    # Failures of a mutated package must not become examples for runs of the real package.
    set_hypothesis_home_dir(folder)
    results = _Results()
    code = pytest.main([*_PYTEST, *arguments], plugins=[results])
    (folder / "results").write_text(json.dumps({"code": int(code), **asdict(results)}))
