"""Tables in a terminal: folded, never shortened."""

from __future__ import annotations

import pytest

from tidemark.cli import output

LONG = "orders_of_every_shop_of_the_whole_group"
COLUMNS = ("pipeline", "lag", "committed offset", "behind", "state")
ROW = (LONG, 1_234_567_890, 12_345_678, "3 d 18 h", "RunwayTooShort, LagTooLarge, PlanStuck")


def printed(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[list[str], list[list[str]]]:
    """Print the row in a terminal; return the lines, and the lines of each cell below the head."""
    monkeypatch.setattr(output.out, "width", width)
    output.print_table("Pipelines", COLUMNS, [ROW])
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split("│")[1:-1] for line in lines if line.startswith("│")]
    return lines, [[cell.strip() for cell in column] for column in zip(*rows, strict=True)]


@pytest.mark.parametrize("width", [40, 60, 80, 160])
def test_a_table_fits_into_the_terminal_and_shortens_no_value(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, cells = printed(width, monkeypatch, capsys)
    assert max(map(len, lines)) <= width
    texts = ["".join(column).replace(" ", "") for column in cells]
    expected = (LONG, "1,234,567,890", "12,345,678", "3d18h", ROW[-1])
    assert texts == [str(each).replace(" ", "") for each in expected]


def test_numbers_and_times_stay_in_one_line_of_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Long texts fold, and the header of a number has one word a line."""
    lines, cells = printed(80, monkeypatch, capsys)
    assert [column[0] for column in cells[1:4]] == ["1,234,567,890", "12,345,678", "3 d 18 h"]
    assert [len(column) - column.count("") for column in cells[1:4]] == [1, 1, 1]
    head = "\n".join(lines)
    assert "committed offset" not in head
    assert "committed" in head
