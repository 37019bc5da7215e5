"""Errors say what was expected, what was found and what to do, wherever they are read."""

from __future__ import annotations

import inspect
import pickle
from dataclasses import fields
from typing import Any, get_type_hints

import pytest

from tidemark import errors
from tidemark.errors import (
    ExitCode,
    Problem,
    TerminalError,
    TidemarkError,
    TransientError,
    UnknownOutcomeError,
)

BRANCHES = (TidemarkError, TransientError, UnknownOutcomeError, TerminalError)


def concrete_errors() -> list[type[TidemarkError]]:
    """Every error class of the module that is raised itself."""
    return [
        value
        for _, value in inspect.getmembers(errors, inspect.isclass)
        if issubclass(value, TidemarkError) and value not in BRANCHES
    ]


def sample(hint: Any, name: str) -> Any:
    """A value for a field of this type; the text of a field is its own name."""
    problem = Problem(file="a.yaml", key="topic", expected="a topic", found="nothing")
    known: dict[str, Any] = {
        "str": name,
        "int": 7,
        "int | None": 7,
        "bool": True,
        "tuple[str, ...]": (name,),
        "tuple[int, ...]": (3, 4),
        "tuple[tidemark.errors.Problem, ...]": (problem,),
    }
    return known[
        hint.__name__ if isinstance(hint, type) and hint in (str, int, bool) else str(hint)
    ]


def build(kind: type[TidemarkError]) -> TidemarkError:
    """An error with a value in every field."""
    hints = get_type_hints(kind)
    return kind(**{f.name: sample(hints[f.name], f.name) for f in fields(kind)})


every_error = pytest.mark.parametrize("kind", concrete_errors(), ids=lambda kind: kind.__name__)


@every_error
def test_every_error_derives_its_message_from_its_fields(kind: type[TidemarkError]) -> None:
    """What, expected, found and next are there, and the message has all of them."""
    error = build(kind)
    parts = [error.what(), error.expected(), error.found(), error.remedy()]
    assert all(part.strip() for part in parts)
    for part in parts:
        assert part in str(error)
    record = error.as_record()
    assert record["error"] == kind.__name__
    assert [record[key] for key in ("what", "expected", "found", "next")] == parts


@every_error
def test_every_field_of_an_error_is_told(kind: type[TidemarkError]) -> None:
    """A field that no part of the message uses would be known to nobody."""
    for field in fields(kind):
        error = build(kind)
        before = str(error)
        value = getattr(error, field.name)
        other: Any = 901 if isinstance(value, int) else "changed"
        if isinstance(value, tuple):
            other = (901,) if isinstance(value[0], int) else ("changed",)
        setattr(error, field.name, other)
        assert str(error) != before, field.name


@every_error
def test_every_error_survives_pickling(kind: type[TidemarkError]) -> None:
    """It crosses process boundaries whole: type, fields and message."""
    error = build(kind)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error)


@every_error
def test_every_error_belongs_to_one_branch(kind: type[TidemarkError]) -> None:
    """A caller acts on the branch; only the quality verdict is about data, not about the run."""
    branches = [branch for branch in BRANCHES[1:] if issubclass(kind, branch)]
    if kind is errors.QualityFailed:
        assert branches == []
        assert kind.exit_code is ExitCode.QUALITY_FAILED
    else:
        assert len(branches) == 1
        assert kind.exit_code is branches[0].exit_code


def test_retryability_is_in_the_type() -> None:
    """The branch decides: what may pass and what must be looked at is retried, the rest is not."""
    retried = {branch.__name__: branch.exit_code.retryable for branch in BRANCHES[1:]}
    assert retried == {"TransientError": True, "UnknownOutcomeError": True, "TerminalError": False}
    assert not errors.QualityFailed.exit_code.retryable
    assert {code.name for code in ExitCode if code.retryable} == {
        "CRASH",
        "TRANSIENT",
        "UNKNOWN_OUTCOME",
    }


def test_every_exit_code_is_documented_and_fits_a_process() -> None:
    """The shell sees one byte, and each code is explained where it is defined."""
    lines = [line.strip() for line in inspect.getsource(ExitCode).splitlines()]
    for code in ExitCode:
        assert 0 <= code <= 255
        explained = lines[lines.index(f"{code.name} = {code.value}") + 1]
        assert explained.startswith('"""'), code.name
    assert len({int(code) for code in ExitCode}) == len(ExitCode)
