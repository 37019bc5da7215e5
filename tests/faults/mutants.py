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
"""How failures begin where an entry no longer fits the code: the program breaks, no guarantee."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run of tests has come to.

    Attributes:
        code: The exit code of pytest; None if it was killed.
        failed: The messages of the tests whose call failed.
        errors: The messages of the tests whose set-up or teardown failed.
        passed: How many passed.
        output: What pytest printed.
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
        if code != 0 or not (folder / "seen").exists():
            return cls(code=None, output=output)
        seen = json.loads((folder / "seen").read_text())
        return cls(
            code=seen["code"],
            failed=tuple(seen["failed"]),
            errors=tuple(seen["errors"]),
            passed=seen["passed"],
            output=output,
        )


@dataclass
class _Seen:
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
    """Run pytest in a process of its own.

    Args:
        arguments: Arguments of pytest.
        folder: An empty folder for its output.
        fence: The marker of the fence that is removed; none if empty.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_IMPORTED))
    process = context.Process(target=_run, args=(tuple(arguments), folder, fence))
    process.start()
    process.join(_SECONDS)
    if process.is_alive() and process.pid is not None:
        # As Ctrl-C does: pytest stops the broker and Spark.
        os.kill(process.pid, signal.SIGINT)
        process.join(60)
        process.kill()
        process.join()
        return Outcome.read(folder, None)
    return Outcome.read(folder, process.exitcode)


def _run(arguments: tuple[str, ...], folder: Path, fence: str) -> None:
    """Run pytest and write what it came to; runs in the forked process."""
    with (folder / "output").open("w") as output:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(output.fileno(), stream.fileno())
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(PACKAGE.parents[1])
    os.environ[VARIABLE] = fence
    from hypothesis.configuration import set_hypothesis_home_dir

    # Failures of a mutated package are no examples for the next run of the real one.
    set_hypothesis_home_dir(folder)
    seen = _Seen()
    code = pytest.main([*_PYTEST, *arguments], plugins=[seen])
    (folder / "seen").write_text(json.dumps({"code": int(code), **asdict(seen)}))
