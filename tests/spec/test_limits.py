"""Oversized spec files are refused with little time and memory, and a short error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.spec.test_loading import Folders, folders
from tidemark.spec import bounded_yaml
from tidemark.spec.errors import SpecError
from tidemark.spec.schema_limits import MAX_COLUMNS

__all__ = ["folders"]

HEAD = "name: events\ntopic: events\nschedule: '@daily'\n"
LINES = HEAD.count("\n")
LONGEST_ERROR = 8_000


def bomb(levels: int = 9) -> str:
    """A list of 10**levels items in a few hundred bytes."""
    lines = ["&a0 [x]"]
    lines += [f"&a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, levels + 1)]
    return "\n  - ".join(["", *lines])


def refusal(folders: Folders, text: str) -> SpecError:
    """Return the error of a file with a valid beginning and this text."""
    folders.write(HEAD + text)
    with pytest.raises(SpecError) as caught:
        folders.load()
    assert len(str(caught.value)) < LONGEST_ERROR
    return caught.value


@pytest.mark.parametrize("key", ["tags:", "spark:", "limits:", "decode:", "no_key:"])
def test_an_alias_bomb_is_refused_at_its_first_alias(folders: Folders, key: str) -> None:
    """Without the limit, it takes minutes or prints megabytes."""
    (problem,) = refusal(folders, key + bomb()).problems
    assert problem.expected == "YAML without aliases"
    assert problem.found == f"*a0 in line {LINES + 3}"


def test_a_merge_key_is_an_alias(folders: Folders) -> None:
    """Every alias is refused: a spec repeats a value instead."""
    error = refusal(folders, "spark: &all {spark.a: b}\nlimits:\n  <<: *all\n")
    assert error.problems[0].expected == "YAML without aliases"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tags: " + "[" * 60, "at most 50 levels"),
        ("tags:\n" + "- " * 100_000, "at most 50 levels"),
        ("spark: " + "{a: " * 60_000, "at most 50 levels"),
        ("tags: [" + "a," * 20_000 + "]", "at most 10,000 keys and values"),
        ("topic: a\n" * 6_000, "at most 10,000 keys and values"),
        ("# " + "x" * 300_000, "a file of at most 262,144 bytes"),
        ("retries: " + "9" * 5_000, "at most 100 digits"),
        ("retries: 0x" + "f" * 200_000, "at most 100 digits"),
        ("retries: " + ":".join(["1"] * 50_000), "at most 100 digits"),
    ],
)
def test_a_file_beyond_a_limit_is_refused(folders: Folders, text: str, expected: str) -> None:
    """Covers size, depth, and numbers whose parsing or printing takes quadratic time."""
    (problem,) = refusal(folders, text).problems
    assert (problem.key, problem.expected) == ("(file)", expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("start: {timestamp: 2026-13-45}", "a value of the type timestamp"),
        ("retries: !!int many", "a value of the type int"),
        ("tags: !!float x", "a value of the type float"),
        ("? [a]\n: b", "YAML"),
    ],
)
def test_an_invalid_value_of_a_yaml_type_is_a_problem_of_its_file(
    folders: Folders, text: str, expected: str
) -> None:
    """No command crashes."""
    (problem,) = refusal(folders, text).problems
    assert (problem.key, problem.expected) == ("(file)", expected)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("alarms: {lag_minutes: 99999999999999}", "alarms.lag_minutes"),
        ("alarms: {stalled_minutes: 99999999999999}", "alarms.stalled_minutes"),
        ("limits: {minutes_per_run: 99999999999999}", "limits.minutes_per_run"),
        ("limits: {records_per_run: 99999999999999999999}", "limits.records_per_run"),
        ("limits: {bytes_per_task: 99999999999999999999}", "limits.bytes_per_task"),
        ("alarms: {lag_records: 0x" + "f" * 90 + "}", "alarms.lag_records"),
    ],
)
def test_a_number_above_the_limit_is_refused(folders: Folders, text: str, key: str) -> None:
    """It would overflow in a later calculation."""
    assert [problem.key for problem in refusal(folders, text).problems] == [key]


@pytest.mark.parametrize("schedule", ["0 0 31 2 *", "0 0 30 2 *", "1," * 50_000 + "1 * * * *"])
def test_a_schedule_without_runs_is_refused(folders: Folders, schedule: str) -> None:
    """Croniter accepts it, and finds no next run."""
    folders.spec(schedule=repr(schedule))
    key, expected, found = folders.problem()
    assert (key, expected.partition(" or ")[0]) == ("schedule", "a cron expression of five fields")
    assert len(found) < 310


def test_many_and_long_problems_make_a_short_error(folders: Folders) -> None:
    """Twenty problems of a kind are listed, with shortened values."""
    unknown = "".join(f"key_{number}_{'x' * 500}: 1\n" for number in range(200))
    error = refusal(folders, unknown)
    assert len(error.problems) == 21
    assert error.problems[-1].found == "180 more"
    error = refusal(folders, "topic: again\n" * 500)
    assert len(error.problems) == 20
    nested = "[" + ", ".join(["abc"] * 5_000) + "]"
    assert "abc" in str(refusal(folders, f"retries: {nested}"))


@pytest.mark.parametrize("kind", ["folder", "pipe", "dangling link"])
def test_a_spec_must_be_a_regular_file(folders: Folders, kind: str) -> None:
    """A named pipe would block every command."""
    path: Path = folders.specs / "events.yaml"
    match kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case _:
            path.symlink_to(folders.specs / "nowhere")
    assert folders.problem() == ("(file)", "a regular file", "no file, or another kind of file")


def test_a_large_spec_within_the_limits_is_read(folders: Folders) -> None:
    """Its schema has as many fields as the limit."""
    fields = "".join(f"        field_{number}: long\n" for number in range(MAX_COLUMNS))
    folders.write(f"{HEAD}decode:\n  value:\n    format: json\n    schema:\n{fields}")
    spec = folders.load()["events"]
    assert spec.decode is not None
    assert spec.decode.value.schema is not None
    assert bounded_yaml.MAX_VALUES > 2 * MAX_COLUMNS


def test_a_schema_beyond_the_limit_is_a_problem_of_the_spec(folders: Folders) -> None:
    fields = "".join(f"        field_{number}: long\n" for number in range(MAX_COLUMNS + 1))
    folders.write(f"{HEAD}decode:\n  value:\n    format: json\n    schema:\n{fields}")
    key, expected, _ = folders.problem()
    assert (key, expected) == ("decode.value.schema", "at most 2,000 columns and 50 levels")
