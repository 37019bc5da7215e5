"""Tidemark's errors as Airflow exceptions: retry, or fail now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from tidemark.core.errors import ExitCode, TidemarkError, one_line
from tidemark.spark.engine import JobRun

_ERROR = {"pipeline", "error", "problem", "expected", "actual", "fix"}
"""Keys in the record of a plan that ended with a named error."""


@contextmanager
def airflow_failures() -> Iterator[None]:
    """Fail the task at once on a terminal error; let Airflow retry the task on other errors."""
    try:
        yield
    except TidemarkError as error:
        if error.exit_code.retryable:
            raise
        raise AirflowFailException(f"{type(error).__name__}: {error}") from error


def job_failure(done: JobRun, output: str) -> AirflowException:
    """Return the task's exception for a failed job.

    Args:
        done: The end of the job, with an exit code other than 0.
        output: The last lines of the job's output.

    Returns:
        An exception that Airflow retries, or `AirflowFailException`. The exit code decides.
    """
    named = [
        f"{each['pipeline']}: {each['error']}: {one_line(each)}"
        for each in done.results or ()
        if set(each) >= _ERROR
    ]
    if done.failure:
        named.append(f"{type(done.failure).__name__}: {done.failure}\n{output}")
    ended = f"the job ended with exit code {int(done.exit_code)} and no named error\n{output}"
    return _failure(done.exit_code, "\n".join(named) or ended)


def pipelines_failure(errors: Mapping[str, TidemarkError]) -> AirflowException:
    """Return the task's exception for errors of pipelines: a retry if one is retryable."""
    code = ExitCode.worst(error.exit_code for error in errors.values())
    text = "\n".join(
        f"{pipeline}: {type(error).__name__}: {error}" for pipeline, error in errors.items()
    )
    return _failure(code, text)


def _failure(exit_code: int, text: str) -> AirflowException:
    return (AirflowException if ExitCode(exit_code).retryable else AirflowFailException)(text)
