"""Errors of Tidemark as Airflow understands them: retry, or fail now."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from tidemark.adapters.spark.submit import RESULT_MARKER, stopped_by
from tidemark.errors import ExitCode, TidemarkError
from tidemark.errors.base import text_of


@contextmanager
def airflow_failures() -> Iterator[None]:
    """Fail the task now on an error that a retry would meet again; let the others be retried."""
    try:
        yield
    except TidemarkError as error:
        if error.exit_code.retryable:
            raise
        raise AirflowFailException(f"{type(error).__name__}: {error}") from error


def job_failure(exit_code: int | None, output: str) -> AirflowException:
    """What the end of a Spark job means for its task.

    Args:
        exit_code: Of spark-submit; None if it did not get that far.
        output: The last lines that the job printed; only the message is taken from them.

    Returns:
        An exception that Airflow retries, or `AirflowFailException`. The exit code decides; for a
        job without a result, the error that `stopped_by` finds in the output decides.
    """
    if named := _named_errors(output):
        return _failure(exit_code, "\n".join(named))
    stopped = None if exit_code is None else stopped_by(exit_code, output.splitlines())
    if stopped is None:
        return _failure(exit_code, output)
    return _failure(stopped.exit_code, f"{type(stopped).__name__}: {stopped}\n{output}")


def pipelines_failure(errors: Mapping[str, TidemarkError]) -> AirflowException:
    """What the errors of several pipelines mean for their task: a retry if it may cure one."""
    code = ExitCode.worst(error.exit_code for error in errors.values())
    text = "\n".join(
        f"{pipeline}: {type(error).__name__}: {error}" for pipeline, error in errors.items()
    )
    return _failure(code, text)


def _failure(exit_code: int | None, text: str) -> AirflowException:
    # Other exit codes are possible: a job may be killed after it printed its result.
    is_final = exit_code in set(ExitCode) and not ExitCode(exit_code).retryable
    return (AirflowFailException if is_final else AirflowException)(text)


def _named_errors(output: str) -> list[str]:
    """The errors that the job put on its result line."""
    for line in output.splitlines():
        if line.startswith(RESULT_MARKER):
            return [
                f"{record['pipeline']}: {record['error']}: {text_of(record)}"
                for record in _error_records(line.removeprefix(RESULT_MARKER))
            ]
    return []


def _error_records(text: str) -> list[dict[str, Any]]:
    # Airflow masks what looks like a secret, which may leave text that is not JSON any more.
    try:
        records = json.loads(text)
    except ValueError:
        return []
    wanted = {"pipeline", "error", "what", "expected", "found", "next"}
    listed = records if isinstance(records, list) else []
    return [each for each in listed if isinstance(each, dict) and wanted <= set(each)]
