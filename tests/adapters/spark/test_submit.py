"""What a job said, taken from what spark-submit printed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tidemark.adapters.spark.submit import RESULT_MARKER, JobRun, submit


@pytest.mark.parametrize(
    ("printed", "results"),
    [
        (f'{RESULT_MARKER}[{{"plan": 7}}]', [{"plan": 7}]),
        (f'{RESULT_MARKER}[{{"plan": 7', None),
        ("", None),
    ],
    ids=["whole", "cut short", "none"],
)
def test_a_result_line_is_no_output_and_half_of_one_is_no_result(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    printed: str,
    results: list[dict[str, int]] | None,
) -> None:
    """A driver that is killed while it prints ends with its exit code, not with our traceback."""
    program = tmp_path / "spark-submit"
    program.write_text(f"#!/bin/sh\necho first\necho '{printed}'\nexit 9\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    said: list[str] = []
    run = submit(
        Path("ingest.py"),
        [],
        name="job",
        master="local",
        settings={},
        environ={},
        say=said.append,
    )
    assert run == JobRun(exit_code=9, results=results)
    assert [line for line in said if line] == ["first"]
