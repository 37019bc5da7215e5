"""Each fence is taken away in turn, and some test must notice."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.faults.fences import FENCES, Fence

_PYTEST = ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider")
COPIED = ("include", "tests", "docs", "dags", "jobs", "pyproject.toml", "Makefile")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the project whose package may be broken; the JVM's parts are the real ones.

    Compiled files go along, but for those that are being written: they are known to be stale by the
    time of their source, and without them each copy is compiled anew.
    """
    root = tmp_path / "checkout"
    ignored = shutil.ignore_patterns("*.egg-info", "*.pyc.*")
    for name in COPIED:
        source = PROJECT / name
        if source.is_dir():
            shutil.copytree(source, root / name, ignore=ignored)
        else:
            shutil.copy(source, root / name)
    (root / ".tidemark").mkdir()
    (root / ".tidemark" / "jvm").symlink_to(PROJECT / ".tidemark" / "jvm")
    return root


def remove(fence: Fence, checkout: Path) -> None:
    """Take the fence out of the copy."""
    file = checkout / "include" / "tidemark" / fence.file
    file.write_text(file.read_text().replace(fence.old, fence.new))


def test_every_fence_is_where_the_list_says() -> None:
    """Code that moves takes its entry along, also where only the long matrix removes it."""
    for fence in FENCES:
        found = (PROJECT / "include" / "tidemark" / fence.file).read_text().count(fence.old)
        assert found == 1, f"{fence.name}: {fence.file} has it {found} times"


def _fast() -> str:
    """What `make check` runs."""
    (found,) = re.findall(r"^FAST := (.+)$", (PROJECT / "Makefile").read_text(), re.MULTILINE)
    return str(found)


def run_tests(checkout: Path, fence: Fence) -> subprocess.CompletedProcess[str]:
    """Run the tests that must notice, on the copy."""
    environ = {
        **os.environ,
        "PYTHONPATH": str(checkout / "include"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    marked = [] if fence.real else ["-m", _fast()]
    return subprocess.run(
        [sys.executable, *_PYTEST, *marked, *fence.noticed_by],
        cwd=checkout,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=420,
    )


def _each(fence: Fence) -> object:
    marks = [pytest.mark.faults, pytest.mark.spark] if fence.real else [pytest.mark.e2e]
    return pytest.param(fence, id=f"{fence.keeps} {fence.name}", marks=marks)


@pytest.mark.parametrize("fence", [_each(fence) for fence in FENCES])
def test_a_fence_that_is_removed_is_missed(fence: Fence, checkout: Path) -> None:
    """Some test fails for it, by what it asserts."""
    remove(fence, checkout)
    done = run_tests(checkout, fence)
    assert done.returncode == 1, f"nobody noticed:\n{done.stdout[-3000:]}{done.stderr[-2000:]}"
    assert re.search(r"\b1 failed\b", done.stdout), done.stdout[-3000:]


@pytest.mark.e2e
def test_the_copy_passes_with_all_its_fences(checkout: Path) -> None:
    """Otherwise a failure would say nothing about a fence. All pass on the project itself."""
    some = (
        "tests/core/test_planning.py",
        "tests/services/test_planner.py",
        "tests/services/test_ingest.py",
    )
    whole = Fence(name="", keeps="", file="", old="", new="", noticed_by=some)
    done = run_tests(checkout, whole)
    assert done.returncode == 0, done.stdout[-3000:]


def test_every_invariant_has_a_fence() -> None:
    """I6 has none: nothing that runs could write to Kafka (tests/test_architecture.py)."""
    assert {fence.keeps for fence in FENCES} == {"I1", "I2", "I3", "I4", "I5", "I7"}
