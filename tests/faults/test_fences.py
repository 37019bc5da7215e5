"""Tests that removing each fence makes a test fail."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.faults.fences import FENCES, Fence
from tests.faults.mutants import Outcome, run_tests
from tests.faults.mutation import (
    Always,
    Argument,
    Drop,
    LeftOperand,
    MoveUp,
    Never,
    Operation,
    Replace,
    UnfitOperation,
    markers,
    marks,
    mutate,
)

MARKERS = {marker.name: marker for marker in markers()}


def _without_real_parts() -> str:
    """Return the expression over markers of the tests that need neither Kafka nor Spark."""
    (parts,) = re.findall(r"^PARTS := (.+)$", (PROJECT / "Makefile").read_text(), re.MULTILINE)
    return f"not ({parts} or faults)"


def check_noticed(fence: Fence, folder: Path) -> None:
    """Remove a fence and run the tests that must notice; one of them must fail."""
    selected = fence.noticed_by if fence.real else ("-m", _without_real_parts(), *fence.noticed_by)
    outcome = run_tests(selected, folder, fence.marker)
    assert outcome.code != pytest.ExitCode.NO_TESTS_COLLECTED, (
        f"`noticed_by` of {fence.marker} selects no test: check its paths and its -k, and set "
        f"real=True if the tests need Kafka or Spark"
    )
    assert outcome.has_noticed, (
        f"no test failed without {fence.marker} as a test that notices would (do the tests pass "
        f"with the fence?): {outcome.output[-4000:]}"
    )


# -- the matrix ----------------------------------------------------------------------------------


SAMPLE = {
    "same-topic-before-reading": "I1",
    "no-two-plans-over-one-offset": "I2",
    "gaps-need-evidence": "I3",
    "commit-has-the-fingerprint": "I4",
    "look-before-taking-over": "I5",
}
"""Fences of five invariants. `make test` removes these, `make test-faults` removes all."""


def _each(fence: Fence) -> object:
    selected = [pytest.mark.e2e] if fence.marker in SAMPLE else [pytest.mark.faults]
    if fence.real:
        selected.append(pytest.mark.spark)
    return pytest.param(fence, id=f"{fence.keeps}-{fence.marker}", marks=selected)


@pytest.mark.parametrize("fence", [_each(fence) for fence in FENCES])
def test_a_removed_fence_is_noticed(fence: Fence, tmp_path: Path) -> None:
    check_noticed(fence, tmp_path)


@pytest.mark.e2e
def test_a_fence_without_a_test_is_reported(tmp_path: Path) -> None:
    """The tests of planning do not cover this fence."""
    missed = Fence(
        marker="abandoned-plan-is-fenced",
        keeps="I4",
        operation=Drop(),
        noticed_by=("tests/core/test_plan_rules.py",),
    )
    with pytest.raises(AssertionError, match=r"(?s)no test failed .*\d+ passed"):
        check_noticed(missed, tmp_path)


@pytest.mark.e2e
@pytest.mark.faults
def test_the_selected_tests_pass_without_a_mutation(tmp_path: Path) -> None:
    some = ("tests/core/test_plan_rules.py", "tests/bronze/ingest/test_executor.py")
    outcome = run_tests(("-m", _without_real_parts(), *some), tmp_path)
    assert (outcome.code, outcome.failed) == (0, ()), outcome.output
    assert outcome.passed


def test_an_error_of_broken_mutated_code_does_not_count_as_noticed() -> None:
    assert Outcome(code=1, failed=("AssertionError: assert 1 == 2",)).has_noticed
    assert not Outcome(code=1, failed=("NameError: name 'gone' is not defined",)).has_noticed
    assert not Outcome(code=1, errors=("KafkaUnavailable: no broker",)).has_noticed
    assert not Outcome(code=0, passed=3).has_noticed
    assert not Outcome(code=None).has_noticed


# -- markers and entries -------------------------------------------------------------------------


def test_every_marker_has_one_entry() -> None:
    names = Counter(marker.name for marker in markers())
    entries = Counter(fence.marker for fence in FENCES)
    assert not names - entries, "markers without an entry in tests/faults/fences.py, or used twice"
    assert not entries - names, "entries of tests/faults/fences.py without a marker, or twice"


@pytest.mark.parametrize("fence", FENCES, ids=lambda fence: fence.marker)
def test_the_operation_fits_the_marked_place(fence: Fence) -> None:
    assert fence.marker in MARKERS, f"no comment `# fence: {fence.marker}` in the package"
    marker = MARKERS[fence.marker]
    try:
        mutated = mutate(marker.file.read_text(), marker.line, fence.operation)
    except UnfitOperation as unfit:
        pytest.fail(f"{fence.operation} at {marker.file}, line {marker.line}: {unfit}")
    compile(mutated, marker.file, "exec")


def test_the_sample_has_one_fence_of_each_invariant() -> None:
    sampled = {fence.marker: fence.keeps for fence in FENCES if fence.marker in SAMPLE}
    assert sampled == SAMPLE
    assert not any(fence.real for fence in FENCES if fence.marker in SAMPLE)


def test_every_invariant_has_a_fence() -> None:
    """I6 has none: nothing in the package can write to Kafka (tests/test_architecture.py)."""
    assert {fence.keeps for fence in FENCES} == {"I1", "I2", "I3", "I4", "I5", "I7"}


# -- operations ----------------------------------------------------------------------------------

APPLIED: dict[str, tuple[Operation, str, str]] = {
    "statement": (Drop(), "f()\ng()  # fence: it", "f()"),
    "only statement": (
        Drop(),
        "try:\n    f()  # fence: it\nfinally:\n    g()",
        "try:\n    pass\nfinally:\n    g()",
    ),
    "keyword argument": (Drop(), "f(\n    a=1,  # fence: it\n    b=2,\n)", "f(b=2)"),
    "element": (Drop(), "[\n    1,\n    2,  # fence: it\n]", "[1]"),
    "entry": (Drop(), "{\n    1: 2,  # fence: it\n    3: 4,\n}", "{3: 4}"),
    "first operand": (Drop(), "x = (\n    a  # fence: it\n    and b\n)", "x = True and b"),
    "last operand": (Drop(), "x = (\n    a\n    or b  # fence: it\n)", "x = a or False"),
    "condition of a comprehension": (
        Drop(),
        "[\n    x\n    for x in y\n    if x  # fence: it\n]",
        "[x for x in y]",
    ),
    "if that never holds": (Never(), "if a:  # fence: it\n    f()", "if False:\n    f()"),
    "elif that never holds": (
        Never(),
        "if a:\n    f()\nelif b:  # fence: it\n    g()\nelse:\n    h()",
        "if a:\n    f()\nelif False:\n    g()\nelse:\n    h()",
    ),
    "if that always holds": (Always(), "if a:  # fence: it\n    f()", "if True:\n    f()"),
    "statement before another": (MoveUp(), "f()\ng()  # fence: it", "g()\nf()"),
    "statement before two": (MoveUp(2), "e()\nf()\ng()\nh()  # fence: it", "e()\nh()\nf()\ng()"),
    "condition": (Replace("0"), "if a:  # fence: it\n    f()", "if 0:\n    f()"),
    "assigned value": (Replace("[]"), "x: list[int] = [1]  # fence: it", "x: list[int] = []"),
    "returned value": (Replace("None"), "return f(x)  # fence: it", "return None"),
    "call in a return": (Argument(1), "return f(x, g(y), z)  # fence: it", "return g(y)"),
    "call in an argument": (Argument(0), "f(\n    g(x),  # fence: it\n    y,\n)", "f(x, y)"),
    "operation": (LeftOperand(), "x = f(y) | z  # fence: it", "x = f(y)"),
    "value of a keyword": (Replace("2"), "f(\n    a=1,  # fence: it\n)", "f(a=2)"),
    "last argument of a call in a chain": (
        Replace("3"),
        "(\n    f\n    .g(1, 2)  # fence: it\n    .h()\n)",
        "f.g(1, 3).h()",
    ),
    "source of a comprehension": (
        Replace("()"),
        "[\n    x\n    for x in f(y)  # fence: it\n]",
        "[x for x in ()]",
    ),
    "marker above a long statement": (Drop(), "# fence: it\n# as g does\nf()\ng()", "g()"),
}


@pytest.mark.parametrize("case", APPLIED)
def test_an_operation_changes_the_marked_place(case: str) -> None:
    operation, before, after = APPLIED[case]
    ((_, line),) = marks(before)
    assert ast.unparse(mutate(before, line, operation)) == ast.unparse(ast.parse(after))


@pytest.mark.parametrize(
    ("operation", "source"),
    [
        (Never(), "x = 1  # fence: it"),
        (Always(), "while a:  # fence: it\n    f()"),
        (Drop(), "if a:\n    f()\nelif b:  # fence: it\n    g()"),
        (MoveUp(), "f()  # fence: it\ng()"),
        (MoveUp(2), "f()\ng()  # fence: it"),
        (Replace("1"), "pass  # fence: it"),
        (Replace("1"), "x = 1  # fence: it"),
        (Argument(1), "x = f(1, b=2)  # fence: it"),
        (Argument(0), "x = f  # fence: it"),
        (Argument(1), "x = f(*y, z)  # fence: it"),
        (LeftOperand(), "x = a and b  # fence: it"),
        (Drop(), "x = (\n    a.b  # fence: it\n)"),
    ],
)
def test_an_operation_that_does_not_fit_is_refused(operation: Operation, source: str) -> None:
    ((_, line),) = marks(source)
    with pytest.raises(UnfitOperation):
        mutate(source, line, operation)


@pytest.mark.parametrize("text", ["name", "f()", "[name]", "not True"])
def test_a_replacement_is_a_literal(text: str) -> None:
    """So renaming code of the package breaks no fence."""
    with pytest.raises(ValueError, match="malformed"):
        Replace(text)


def test_a_marker_is_a_comment_with_a_name_in_kebab_case() -> None:
    source = 'x = "# fence: text"\ny = 1  # fence: a-name\n'
    assert list(marks(source)) == [("a-name", 2)]


@pytest.mark.parametrize(
    "comment",
    ["# fence: No_Name", "#fence: a-name", "# Fence: a-name", "# fence: a-name, and more"],
)
def test_a_comment_that_resembles_a_marker_is_refused(comment: str) -> None:
    """No test would remove its guard."""
    with pytest.raises(ValueError, match="its-name"):
        list(marks(f"x = 1  {comment}"))


@pytest.mark.slow
def test_every_selection_contains_a_test() -> None:
    """A renamed test would otherwise be noticed only by the whole matrix."""
    selections = {fence.marker: fence.noticed_by for fence in FENCES if "-k" in fence.noticed_by}
    paths = {part for each in selections.values() for part in each[: each.index("-k")]}
    files = sorted(path for path in paths if "/" in path)
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [*command, *files], cwd=PROJECT, capture_output=True, text=True, check=True, timeout=120
    )
    collected = [line.lower() for line in ran.stdout.splitlines() if "::" in line]
    without = []
    for marker, selection in selections.items():
        words = set(re.findall(r"\w+", selection[selection.index("-k") + 1])) - {"and", "or", "not"}
        mine = [
            name for name in collected if name.startswith(tuple(p for p in selection if "/" in p))
        ]
        if not any(word.lower() in name for word in words for name in mine):
            without.append(marker)
    assert without == []
