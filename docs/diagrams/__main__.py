"""Writes every diagram beside its source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from docs.diagrams import commit_protocol, coverage, plan_life

FOLDER = Path(__file__).parent
DIAGRAMS: Mapping[Path, Callable[[], str]] = {
    FOLDER / "commit_protocol.svg": commit_protocol.draw,
    FOLDER / "coverage.svg": coverage.draw,
    FOLDER / "plan_life.svg": plan_life.draw,
}
"""The function that draws each file."""


def main() -> None:
    """Write the files."""
    for path, draw in DIAGRAMS.items():
        path.write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
