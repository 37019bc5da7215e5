"""Tables in a terminal: wrapped at spaces, never shortened."""

from __future__ import annotations

import pytest

from tidemark.cli import output, run

LONG = "orders_of_every_shop_of_the_whole_group"
COLUMNS = ("pipeline", "lag", "committed offset", "behind", "state")
ROW = ("orders", 1_234_567_890, 12_345_678, "3 d 18 h", "RunwayTooShort, LagTooLarge, PlanStuck")


def printed(
    row: tuple[object, ...],
    width: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> tuple[list[str], list[list[str]]]:
    """Print the row in a terminal; return the lines, and the lines of each cell below the head."""
    monkeypatch.setattr(output.out, "width", width)
    output.print_table("Pipelines", COLUMNS, [row])
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split("│")[1:-1] for line in lines if line.startswith("│")]
    return lines, [
        [cell.strip() for cell in column if cell.strip()] for column in zip(*rows, strict=True)
    ]


@pytest.mark.parametrize("width", [100, 160])
def test_a_table_that_folds_a_very_long_word_shortens_no_value(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, cells = printed((LONG, *ROW[1:]), width, monkeypatch, capsys)
    assert max(map(len, lines)) <= width
    assert "".join(cells[0]) == LONG
    assert " ".join(cells[4]) == ROW[4]


@pytest.mark.parametrize("width", [72, 80])
def test_a_table_wraps_texts_at_spaces_and_keeps_short_values_in_one_line(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The header of a number has one word a line."""
    lines, cells = printed(ROW, width, monkeypatch, capsys)
    assert max(map(len, lines)) <= width
    assert cells[:4] == [["orders"], ["1,234,567,890"], ["12,345,678"], ["3 d 18 h"]]
    assert [word for line in cells[4] for word in line.split()] == str(ROW[4]).split()
    head = "\n".join(lines)
    assert "committed offset" not in head
    assert "committed" in head


@pytest.mark.parametrize("width", [60, 66])
def test_a_table_without_room_for_lines_between_its_columns_has_none(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Short values wrap at spaces if the table without these lines is still too wide."""
    lines, _ = printed(ROW, width, monkeypatch, capsys)
    assert max(map(len, lines)) <= width
    head, first = (line.split() for line in lines[2:4])
    assert head == ["pipeline", "lag", "offset", "behind", "state"]
    assert first[:3] == ["orders", "1,234,567,890", "12,345,678"]


@pytest.mark.parametrize("width", [40, 50])
def test_a_narrow_terminal_shows_each_value_on_a_line_of_its_own(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, _ = printed((LONG, *ROW[1:]), width, monkeypatch, capsys)
    assert max(map(len, lines)) <= width
    assert [line.rstrip() for line in lines if line.startswith(("lag", "committed"))] == [
        "lag               1,234,567,890",
        "committed offset  12,345,678",
    ]
    text = "".join(line[18:].strip() for line in lines[1:])
    assert text.replace(" ", "") == "".join([LONG, *map(output._cell, ROW[1:])]).replace(" ", "")


def test_the_summary_of_a_run_fits_into_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The outcome of a complete run is its publication status."""
    monkeypatch.setattr(output.out, "width", 80)
    steps = [
        {"step": "ingest", "records": 508, "wrote": True},
        {"step": "check", "outcome": "passed"},
        {"step": "decode", "records": 508, "quarantined": 35},
        {"step": "upsert", "scope": "all records"},
        {"step": "publish", "status": "published", "published": True},
    ]
    run.print_summary([{"pipeline": "payments", "plan": 1, "steps": steps}])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    (row,) = (line for line in lines if line.startswith("payments"))
    assert row.split() == [
        "payments",
        "1",
        "published",
        "508",
        "passed",
        "473",
        "35",
        "all",
        "records",
    ]


@pytest.mark.parametrize(
    ("steps", "outcome", "checked"),
    [
        ([("check", "QualityFailed"), ("publish", "blocked")], "blocked", "failed"),
        ([("check", "SpecError"), ("publish", "not checked")], "not checked", "-"),
        ([("check", None), ("check", "QualityFailed")], "check failed", "failed, passed"),
        ([("check", None), ("publish", "rejected")], "rejected", "passed"),
        ([("decode", "SpecError"), ("publish", "published")], "decode failed", "-"),
        ([("ingest", None)], "done", "-"),
    ],
)
def test_the_outcome_of_a_run_is_a_hidden_plan_or_the_step_that_failed(
    steps: list[tuple[str, str | None]],
    outcome: str,
    checked: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A check that ended without a result counts as no check."""
    shown: list[dict[str, object]] = []
    for step, result in steps:
        if step == "publish":
            visible = result in ("published", "released")
            shown.append({"step": step, "status": result, "published": visible})
        elif result is None:
            shown.append({"step": step, "outcome": "passed", "records": 1, "wrote": True})
        else:
            texts = dict.fromkeys(("problem", "expected", "actual", "fix", "see"), "text")
            shown.append({"step": step, "error": result, **texts})
    run.print_summary([{"pipeline": "payments", "plan": 1, "steps": shown}])
    (row,) = (line for line in capsys.readouterr().out.splitlines() if "payments" in line)
    cells = [cell.strip() for cell in row.split("│")]
    assert (cells[3], cells[5]) == (outcome, checked)


def test_the_summary_counts_the_records_that_a_failed_decode_has_landed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    texts = dict.fromkeys(("problem", "expected", "actual", "fix", "see"), "text")
    failed = {"step": "decode", "records": 5, "quarantined": 1, "error": "EngineFailed", **texts}
    run.print_summary([{"pipeline": "payments", "plan": 1, "steps": [failed]}])
    (row,) = (line for line in capsys.readouterr().out.splitlines() if "payments" in line)
    cells = [cell.strip() for cell in row.split("│")]
    assert (cells[3], cells[6], cells[7]) == ("decode failed", "4", "1")
