"""Tests of every error class: its text, its runbook section, its retryability."""

from __future__ import annotations

import ast
import importlib
import inspect
import pickle
import pkgutil
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, get_type_hints

import pytest

import tidemark
from tests.conftest import PROJECT
from tests.support.sources import statements
from tidemark.core.errors import (
    ExitCode,
    TerminalError,
    TidemarkError,
    TransientError,
    Unforeseen,
    UnknownOutcomeError,
)
from tidemark.core.events import Abandoned, Undone, UndoStarted
from tidemark.quality.errors import QualityFailed
from tidemark.spec.errors import Problem

BRANCHES = (TransientError, UnknownOutcomeError, TerminalError)


def concrete_errors() -> list[type[TidemarkError]]:
    """Return every error class that is raised itself, sorted by name."""
    for module in pkgutil.walk_packages(tidemark.__path__, "tidemark."):
        if module.name.endswith(".errors"):
            importlib.import_module(module.name)
    found = {kind for kind in _with_subclasses(TidemarkError) if hasattr(kind, "problem")}
    return sorted(found, key=lambda kind: kind.__name__)


def _with_subclasses(kind: type[TidemarkError]) -> Iterator[type[TidemarkError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _with_subclasses(each)


def sample(hint: Any, name: str) -> Any:
    """Return a value for a field of this type; a text field contains its own name."""
    problem = Problem(file="a.yaml", key="topic", expected="a topic", found="nothing")
    abandoned = Abandoned(sequence=7, requested_by="ops", reason=name)
    values: dict[str, Any] = {
        "str": name,
        "str | None": name,
        "int": 7,
        "int | None": 7,
        "bool": True,
        "timedelta": timedelta(hours=7),
        "datetime.timedelta | None": timedelta(hours=7),
        "datetime.datetime | None": datetime(2026, 3, 1, tzinfo=UTC),
        "<class 'datetime.datetime'>": datetime(2026, 3, 1, tzinfo=UTC),
        "tuple[str, ...]": (name,),
        "tuple[int, ...]": (3, 4),
        "tuple[int, int]": (3, 4),
        "tuple[tuple[int, int], ...]": ((3, 4),),
        "tuple[tuple[int, int, int], ...]": ((3, 4, 5),),
        "tuple[tidemark.spec.errors.Problem, ...]": (problem,),
        str(Abandoned | UndoStarted | Undone): abandoned,
    }
    return values[hint.__name__ if hint in (str, int, bool, timedelta) else str(hint)]


def build(kind: type[TidemarkError]) -> TidemarkError:
    hints = get_type_hints(kind)
    return kind(**{f.name: sample(hints[f.name], f.name) for f in fields(kind)})


def variants(kind: type[TidemarkError]) -> dict[str, TidemarkError]:
    """Return an error of each class method that creates errors of this class, by its name."""
    return {
        f"{kind.__name__}.{name}": method(
            **{
                each: sample(hint, each)
                for each, hint in get_type_hints(method).items()
                if each != "return"
            }
        )
        for name, method in inspect.getmembers(kind, inspect.ismethod)
        if name in vars(kind) and inspect.signature(method).return_annotation == "Self"
    }


def every_variant() -> dict[str, TidemarkError]:
    """Return an error of every class and of every class method that creates errors, by name."""
    found: dict[str, TidemarkError] = {}
    for kind in concrete_errors():
        found |= {kind.__name__: build(kind), **variants(kind)}
    return found


every_error = pytest.mark.parametrize("kind", concrete_errors(), ids=lambda kind: kind.__name__)


PARTS = ("problem", "expected", "actual", "fix")


@every_error
def test_the_message_of_an_error_is_its_rendered_templates(kind: type[TidemarkError]) -> None:
    error = build(kind)
    parts = {name: error.rendered(name) for name in PARTS}
    assert parts["problem"]
    assert parts["fix"]
    assert all(text in str(error) for text in parts.values())
    record = error.as_record()
    assert record["error"] == kind.__name__
    assert {name: record[name] for name in PARTS} == parts


@every_error
def test_a_text_has_no_space_at_its_ends(kind: type[TidemarkError]) -> None:
    error = build(kind)
    texts = [error.rendered(name) for name in PARTS]
    assert [text for text in texts if text != text.strip(" ")] == []


@every_error
def test_a_message_has_no_double_full_stop(kind: type[TidemarkError]) -> None:
    """Reasons from libraries may be sentences."""
    error = build(kind)
    for field in fields(kind):
        value = getattr(error, field.name)
        if isinstance(value, str):
            setattr(error, field.name, f"{value}.")
        if isinstance(value, tuple) and isinstance(value[0], str):
            setattr(error, field.name, tuple(f"{value[0]} {number}." for number in range(5)))
    assert ".." not in str(error)
    assert not [part for part in PARTS if ".." in error.rendered(part)]


@every_error
def test_every_field_of_an_error_changes_its_message(kind: type[TidemarkError]) -> None:
    for field in fields(kind):
        error = build(kind)
        before = str(error)
        value = getattr(error, field.name)
        other: Any = 901 if isinstance(value, int) else "changed"
        if isinstance(value, datetime | timedelta):
            other = value + timedelta(days=901)
        if isinstance(value, tuple):
            other = tuple(_changed(item) for item in value)
        setattr(error, field.name, other)
        assert str(error) != before, field.name


def _changed(item: Any) -> Any:
    if isinstance(item, tuple):
        return tuple(_changed(part) for part in item)
    if isinstance(item, Problem):
        return replace(item, found="changed")
    return item + 901 if isinstance(item, int) else "changed"


@every_error
def test_every_error_survives_pickling(kind: type[TidemarkError]) -> None:
    error = build(kind)
    restored = pickle.loads(pickle.dumps(error))
    assert type(restored) is kind
    assert str(restored) == str(error)


@every_error
def test_every_error_belongs_to_one_branch(kind: type[TidemarkError]) -> None:
    """`QualityFailed` (caused by data) and `Unforeseen` (no known cause) have no branch."""
    branches = [branch for branch in BRANCHES if issubclass(kind, branch)]
    if kind is QualityFailed:
        assert branches == []
        assert kind.exit_code is ExitCode.QUALITY_FAILED
    elif kind is Unforeseen:
        assert branches == []
        assert kind.exit_code is ExitCode.CRASH
    else:
        assert len(branches) == 1
        assert kind.exit_code is branches[0].exit_code


@every_error
def test_an_error_names_an_anchor_of_the_runbook(kind: type[TidemarkError]) -> None:
    path, _, anchor = build(kind).see.partition("#")
    page = (PROJECT / path).read_text(encoding="utf-8")
    headings = re.findall(r"^### (\w+)$", page, flags=re.MULTILINE)
    assert anchor in {*map(str.lower, headings), *re.findall(r'<a id="(\w+)"></a>', page)}


def test_the_runbook_has_a_section_for_every_error_and_for_no_other() -> None:
    page = (PROJECT / "docs" / "runbook.md").read_text(encoding="utf-8")
    headings = re.findall(r"^### ((?:[A-Z]\w+)(?:, [A-Z]\w+)*)$", page, flags=re.MULTILINE)
    names = [name for heading in headings for name in heading.split(", ")]
    headings_of = Counter(names)
    errors_of = Counter(kind.__name__ for kind in concrete_errors())
    assert not errors_of - headings_of, "errors without a heading in docs/runbook.md"
    assert not headings_of - errors_of, "headings of docs/runbook.md without an error, or twice"


def test_every_error_class_is_in_a_module_called_errors() -> None:
    """The tests of errors find the classes of these modules only."""
    names = {kind.__name__ for kind in _with_subclasses(TidemarkError)}
    elsewhere = [
        f"{file.name}: {node.name}"
        for file in (PROJECT / "include" / "tidemark").rglob("*.py")
        if file.name != "errors.py"
        for node in statements(file)
        if isinstance(node, ast.ClassDef)
        and names & {base.id for base in node.bases if isinstance(base, ast.Name)}
    ]
    assert elsewhere == []


def test_commands_in_fixes_have_their_required_options() -> None:
    needed = {
        "abandon": ["--plan", "--reason"],
        "rewind": ["--reason"],
        "undo": ["--plan", "--reason"],
        "accept-loss": ["--reason"],
        "accept-recreation": ["--reason"],
    }
    commands = [
        command
        for error in every_variant().values()
        for command in re.findall(r"`tidemark ([^`]+)`", error.rendered("fix"))
    ]
    for command in commands:
        options = needed.get(command.split()[0], [])
        assert [option for option in options if option not in command] == [], command
        if command.startswith("control rebuild"):
            assert "--dry-run" in command or "--apply" in command, command
    assert {"abandon", "rewind", "control"} <= {command.split()[0] for command in commands}


def test_only_transient_and_unknown_outcomes_are_retried() -> None:
    retried = {branch.__name__: branch.exit_code.retryable for branch in BRANCHES}
    assert retried == {"TransientError": True, "UnknownOutcomeError": True, "TerminalError": False}
    assert not QualityFailed.exit_code.retryable
    assert {code.name for code in ExitCode if code.retryable} == {
        "CRASH",
        "TRANSIENT",
        "UNKNOWN_OUTCOME",
    }


def test_every_exit_code_is_documented_and_fits_a_process() -> None:
    """An exit code has one byte."""
    lines = [line.strip() for line in inspect.getsource(ExitCode).splitlines()]
    for code in ExitCode:
        assert 0 <= code <= 255
        explained = lines[lines.index(f"{code.name} = {code.value}") + 1]
        assert explained.startswith('"""'), code.name
    assert len({int(code) for code in ExitCode}) == len(ExitCode)


@pytest.mark.parametrize(
    ("codes", "worst"),
    [
        ([], ExitCode.OK),
        ([0, 0], ExitCode.OK),
        ([0, 65, 0], ExitCode.REFUSED),
        ([65, 66], ExitCode.REFUSED),
        ([0, 66], ExitCode.QUALITY_FAILED),
        ([65, 75], ExitCode.TRANSIENT),
        ([75, 76, 65], ExitCode.UNKNOWN_OUTCOME),
        ([1, 76], ExitCode.CRASH),
        ([0, 137, 1], 137),
    ],
)
def test_the_worst_exit_code_prefers_a_retryable_one(codes: list[int], worst: int) -> None:
    assert ExitCode.worst(codes) == worst
