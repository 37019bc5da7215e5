"""Tidemark's errors as Airflow exceptions: retry, or fail now."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from tidemark.airflow.logs import log_with_fields
from tidemark.airflow.metrics import count_error, count_errors
from tidemark.app.pipelines import Outcomes
from tidemark.core.errors import ExitCode, TidemarkError, one_line


@contextmanager
def airflow_failures() -> Iterator[None]:
    """Fail the task at once on a terminal error; let Airflow retry the task on other errors.

    Log lines have fields inside the block; see `log_with_fields`.
    """
    try:
        with log_with_fields():
            yield
    except TidemarkError as error:
        count_error(error)
        if error.exit_code.retryable:
            raise
        raise AirflowFailException(f"{type(error).__name__}: {error}") from error


def raise_failed(outcomes: Outcomes) -> None:
    """Fail the task if a pipeline has failed. Airflow retries it if a retry can end differently."""
    code = outcomes.exit_code
    if code == ExitCode.OK:
        return
    count_errors(outcomes)
    failure = AirflowException if code.retryable else AirflowFailException
    raise failure(failure_text(outcomes))


def failure_text(outcomes: Outcomes) -> str:
    """Return the errors of some outcomes as text, one line for each error.

    Alarms send it. So it has no output of jobs, which may contain values of records; the log has.
    """
    named: dict[str, list[str]] = {}
    for record in outcomes.records:
        if "error" in record or record.get("exit_code"):
            is_named = "error" in record
            text = f"{record['error']}: {one_line(record)}" if is_named else record["outcome"]
            named.setdefault(text, []).append(record["pipeline"])
    for error in outcomes.failures:
        named.setdefault(f"{type(error).__name__}: {error}", [])
    lines = [
        ": ".join(filter(None, [", ".join(dict.fromkeys(each)), text]))
        for text, each in named.items()
    ]
    if not named:
        code = int(outcomes.exit_code)
        lines.append(f"the job ended with exit code {code} and no error; see the lines above")
    return "\n".join(lines)
