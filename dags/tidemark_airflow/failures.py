"""Errors of Tidemark as Airflow understands them: retry, or fail now."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from tidemark.adapters.spark.submit import RESULT_MARKER
from tidemark.errors import ExitCode, TidemarkError


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
        An exception that Airflow retries, or `AirflowFailException`, by the exit code alone.
    """
    error = AirflowException if is_retryable(exit_code) else AirflowFailException
    return error(_named_error(output) or output)


def is_retryable(exit_code: int | None) -> bool:
    """Whether the same job can end differently; codes that are not ours say nothing against it."""
    try:
        return ExitCode(exit_code).retryable
    except ValueError:
        return True


def _named_error(output: str) -> str | None:
    """The error that the job put on its result line."""
    for line in output.splitlines():
        if line.startswith(RESULT_MARKER):
            record = _record(line.removeprefix(RESULT_MARKER))
            if record:
                return (
                    f"{record['error']}: {record['what']}. Expected: {record['expected']}. "
                    f"Found: {record['found']}. Next: {record['next']}."
                )
    return None


def _record(text: str) -> dict[str, Any] | None:
    # Airflow masks what looks like a secret, which may leave text that is not JSON any more.
    try:
        record = json.loads(text)
    except ValueError:
        return None
    wanted = {"error", "what", "expected", "found", "next"}
    return record if isinstance(record, dict) and wanted <= set(record) else None
