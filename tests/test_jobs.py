"""Every job's frame: arguments in, one result line and an exit code out."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from tidemark.adapters.spark.submit import RESULT_MARKER
from tidemark.errors import ExitCode, KafkaUnavailable, LostRange, NotLanded, TidemarkError
from tidemark.jobs import Arguments, run_job
from tidemark.wiring import App

ARGV = ["--pipeline", "prices", "--plan", "7"]


def result_of(captured: str) -> dict[str, object]:
    """The result line's JSON."""
    (line,) = (line for line in captured.splitlines() if line.startswith(RESULT_MARKER))
    return dict(json.loads(line.removeprefix(RESULT_MARKER)))


def test_a_job_prints_one_result_line(capsys: pytest.CaptureFixture[str]) -> None:
    """The body is told what to do, and what it says is on one line."""

    def body(_: App, arguments: Arguments) -> Mapping[str, object]:
        return {"pipeline": arguments.pipeline, "plan": arguments.plan}

    assert run_job("doc", body, ARGV) == ExitCode.OK
    assert result_of(capsys.readouterr().out) == {"pipeline": "prices", "plan": 7}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KafkaUnavailable(operation="list_offsets", reason="timed out"), ExitCode.TRANSIENT),
        (NotLanded(pipeline="prices", sequence=7, seen="no commit"), ExitCode.UNKNOWN_OUTCOME),
        (
            LostRange(pipeline="prices", topic="prices", lost=((0, 0, 4),)),
            ExitCode.REFUSED,
        ),
    ],
)
def test_a_named_error_becomes_its_exit_code(
    error: TidemarkError, code: ExitCode, capsys: pytest.CaptureFixture[str]
) -> None:
    """DAGs decide on retries by the code; people read the record."""

    def body(_: App, __: Arguments) -> Mapping[str, object]:
        raise error

    assert run_job("doc", body, ARGV) == code
    record = result_of(capsys.readouterr().out)
    assert record["error"] == type(error).__name__
    assert record["retryable"] is code.retryable


def test_an_unforeseen_error_is_not_dressed_up() -> None:
    """It passes through with its traceback; the interpreter exits with 1."""

    def body(_: App, __: Arguments) -> Mapping[str, object]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_job("doc", body, ARGV)


def test_a_wrong_command_line_is_a_usage_error() -> None:
    """A plan is a number, and both arguments are needed."""
    for argv in ([], ["--pipeline", "prices"], ["--pipeline", "prices", "--plan", "seven"]):
        with pytest.raises(SystemExit) as stopped:
            run_job("doc", dict, argv)  # type: ignore[arg-type]
        assert stopped.value.code == ExitCode.USAGE
