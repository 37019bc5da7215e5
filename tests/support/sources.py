"""Syntax trees of the project's modules, for tests that read the code."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path


def calls(files: Iterable[Path], names: Iterable[str]) -> Iterator[tuple[Path, ast.Call]]:
    """Yield the calls in files, if the text of the file has one of the names.

    Walking a tree takes most of the time, so other files are not parsed.
    """
    wanted = tuple(names)
    for file in files:
        text = file.read_text(encoding="utf-8")
        if any(name in text for name in wanted):
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Call):
                    yield file, node


def statements(file: Path) -> Iterator[ast.stmt]:
    """Yield the statements of a file at every level, which are a tenth of its nodes."""
    waiting: list[ast.AST] = [ast.parse(file.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.stmt):
            yield node
        # Statements, handlers of exceptions and cases of `match` contain statements in lists.
        for value in vars(node).values():
            if isinstance(value, list):
                waiting += [
                    each
                    for each in value
                    if isinstance(each, ast.stmt | ast.ExceptHandler | ast.match_case)
                ]
