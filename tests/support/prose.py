"""Reads the prose of a source tree: docstrings, comments, messages, pages."""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import accumulate
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

CODE = "CODE"
"""Replaces a code span or an interpolated value."""

_LITERAL = "\b"
_FOLDERS = ("include", "jobs", "dags", "bench", "tests", "docs", ".ci")
_SCRIPTS = {"Makefile", "Dockerfile", ".env.example", "run"}
_SCRIPT_SUFFIXES = {".sh", ".toml", ".in", ".properties"}
_YAML_SUFFIXES = {".yaml", ".yml"}
_TEMPLATE_SUFFIXES = {".html", ".j2"}
_SKIPPED_FOLDERS = {"__pycache__", ".ruff_cache"}
_SKIPPED_FILES = {"tests/language.yaml"}

_PAGES = MarkdownIt("commonmark").enable("table")
_SPAN = re.compile(r"``[^`]+``|`[^`]+`")
_VALUE = re.compile(r"\{\{.*?\}\}", flags=re.DOTALL)
_BLOCK_TAG = re.compile(r"\{%.*?%\}|\{#.*?#\}|<!--.*?-->", flags=re.DOTALL)
_MARKUP = re.compile(r"<[^>]*>")
_COMMENT = re.compile(r"(?:^|\s)#+(?:\s+(.*))?$")
# A string of Python or a comment. A scan is much faster than `tokenize`.
_STRING_OR_COMMENT = re.compile(
    r'''"""(?:\\.|[^\\])*?"""|'{3}(?:\\.|[^\\])*?'{3}'''
    r"""|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|\#[^\n]*""",
    flags=re.DOTALL,
)
# An item of a list, a comment in SQL, or an entry of a section such as "Args:".
_NEW_BLOCK = re.compile(r"\s*(?:[-*] |-- |\d+\. |\*{0,2}\w+(?: \([^)]*\))?: |[A-Z]\w+:$)")
_DIRECTIVE = re.compile(r"(?:noqa|type: ignore|fence: |pragma|mypy: |ruff: |!/)")


class Kind(StrEnum):
    """The place of a passage."""

    PAGE = "page"
    DOCSTRING = "docstring"
    COMMENT = "comment"
    STRING = "string"
    NAME = "name"
    TEMPLATE = "template"


@dataclass(frozen=True, kw_only=True)
class Passage:
    """One paragraph, item, table cell, comment, string or test name.

    Attributes:
        path: The file, relative to the root.
        kind: The place of the text.
        lines: Number and text of each line, without line breaks.
    """

    path: str
    kind: Kind
    lines: tuple[tuple[int, str], ...]

    @cached_property
    def text(self) -> str:
        """The lines, joined by spaces."""
        return " ".join(text for _, text in self.lines)

    def line_at(self, index: int) -> int:
        """Return the line number of a character of `text`."""
        lengths = [len(text) + 1 for _, text in self.lines]
        starts = [0, *accumulate(lengths)]
        return self.lines[bisect_right(starts, index, hi=len(self.lines)) - 1][0]


def passages(root: Path) -> Iterator[Passage]:
    """Yield the prose of a source tree.

    Yields:
        Passages of Python modules, Markdown pages, templates, YAML files, scripts and settings.
        Code blocks are left out, and code spans replaced by `CODE`.
    """
    for path in _files(root):
        name = path.relative_to(root).as_posix()
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".md":
            yield from page(name, text)
        elif path.suffix == ".py":
            yield from module(name, text)
        elif path.suffix in _TEMPLATE_SUFFIXES:
            yield from template(name, text)
        else:
            yield from script(name, text)


def pages(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each Markdown page."""
    for path in _files(root):
        if path.suffix == ".md":
            yield path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")


def _files(root: Path) -> Sequence[Path]:
    """Return the files with prose, in order."""
    nested = (path for folder in _FOLDERS for path in (root / folder).rglob("*"))
    return sorted(
        path
        for path in (*root.glob("*"), *nested)
        if path.is_file()
        and not _SKIPPED_FOLDERS.intersection(path.parts)
        and path.relative_to(root).as_posix() not in _SKIPPED_FILES
        and (
            path.name in _SCRIPTS
            or path.suffix
            in {".md", ".py", *_SCRIPT_SUFFIXES, *_YAML_SUFFIXES, *_TEMPLATE_SUFFIXES}
        )
    )


# -- Markdown --------------------------------------------------------------------------------------


def page(name: str, text: str) -> Iterator[Passage]:
    """Yield the headings, paragraphs, items and table cells of a page."""
    for token in _PAGES.parse(text):
        if token.type == "inline" and token.map:
            lines = list(_inline_lines(token.children or (), token.map[0] + 1))
            yield Passage(path=name, kind=Kind.PAGE, lines=tuple(lines))


def _inline_lines(tokens: Iterable[Token], first: int) -> Iterator[tuple[int, str]]:
    line, parts = first, list[str]()
    for token in tokens:
        if token.type in {"softbreak", "hardbreak"}:
            yield line, "".join(parts)
            line, parts = line + 1, []
        elif token.type == "code_inline":
            parts.append(CODE)
        elif token.type == "text":
            parts.append(token.content)
    yield line, "".join(parts)


# -- Python ----------------------------------------------------------------------------------------


def module(name: str, text: str) -> Iterator[Passage]:
    """Yield the docstrings, comments, strings and test names of a Python module."""
    nodes = _nodes(ast.parse(text))
    docstrings = {id(node) for node in _docstrings(nodes)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) in docstrings:
                yield from _blocks(name, Kind.DOCSTRING, node.lineno, node.value)
            elif _is_prose(node.value):
                yield from _blocks(name, Kind.STRING, node.lineno, node.value, node.end_lineno)
        elif isinstance(node, ast.JoinedStr):
            joined = "".join(
                str(part.value) if isinstance(part, ast.Constant) else CODE for part in node.values
            )
            if _is_prose(joined):
                yield from _blocks(name, Kind.STRING, node.lineno, joined, node.end_lineno)
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            words = node.name.removeprefix("test_").replace("_", " ")
            yield Passage(path=name, kind=Kind.NAME, lines=((node.lineno, words),))
    yield from _comments(name, _python_comments(text))


def _nodes(tree: ast.AST) -> Sequence[ast.AST]:
    """Return the nodes of a tree that can have prose, without those inside of f-strings.

    `ast.walk` takes four times as long.
    """
    nodes = [tree]
    # The loop also reads the nodes that it appends.
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            continue
        for value in vars(node).values():
            if isinstance(value, list):
                nodes += [each for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST) and not isinstance(value, ast.Name | ast.expr_context):
                nodes.append(value)
    return nodes


def _docstrings(nodes: Iterable[ast.AST]) -> Iterator[ast.Constant]:
    """Yield the strings that are statements: docstrings, also those of attributes."""
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value


def _is_prose(text: str) -> bool:
    return len(re.findall(r"[A-Za-z]{2,}", text)) >= 2 and " " in text.strip()


def _blocks(
    name: str, kind: Kind, first: int, text: str, last: int | None = None
) -> Iterator[Passage]:
    """Yield the paragraphs, items and entries of a text, without examples.

    An example is a paragraph after Click's mark for literal text. A string that is written in parts
    on several lines has the line of its first part.
    """
    lines = text.split("\n")
    exact = last is None or last - first >= len(lines) - 1
    block = list[tuple[int, str]]()
    for index, line in enumerate(lines):
        if block and (not line.strip() or _NEW_BLOCK.match(line)):
            if block[0][1] != _LITERAL:
                yield _block(name, kind, block)
            block = []
        if line.strip():
            block.append((first + index if exact else first, line.strip()))
    if block and block[0][1] != _LITERAL:
        yield _block(name, kind, block)


def _block(name: str, kind: Kind, lines: Sequence[tuple[int, str]]) -> Passage:
    """Return a passage, with its code spans replaced."""
    marked = "\n".join(line for _, line in lines)
    plain = _SPAN.sub(lambda span: CODE + "\n" * span.group().count("\n"), marked).split("\n")
    numbers = (number for number, _ in lines)
    return Passage(path=name, kind=kind, lines=tuple(zip(numbers, plain, strict=True)))


# -- comments and templates ------------------------------------------------------------------------


@dataclass(frozen=True)
class _Comment:
    """The text of a comment, and whether it follows code on its line."""

    line: int
    text: str
    follows_code: bool


def _python_comments(text: str) -> Iterator[_Comment]:
    line, counted = 1, 0
    for match in _STRING_OR_COMMENT.finditer(text):
        if match[0].startswith("#"):
            begin = match.start()
            line, counted = line + text.count("\n", counted, begin), begin
            before = text[text.rfind("\n", 0, begin) + 1 : begin].strip()
            yield _Comment(line, match[0].lstrip("#").strip(), bool(before))


def _script_comments(text: str) -> Iterator[_Comment]:
    for number, line in enumerate(text.splitlines(), start=1):
        comment = _COMMENT.search(line)
        if comment and comment.group(1):
            yield _Comment(number, comment.group(1).strip(), bool(line[: comment.start()].strip()))


def script(name: str, text: str) -> Iterator[Passage]:
    """Yield the comments of a YAML file, a script or a file of settings."""
    yield from _comments(name, _script_comments(text))


def _comments(name: str, comments: Iterable[_Comment]) -> Iterator[Passage]:
    """Yield comments that follow code, and blocks of comments on consecutive lines."""
    block = list[tuple[int, str]]()
    for comment in comments:
        if not comment.text or _DIRECTIVE.match(comment.text):
            continue
        if comment.follows_code:
            yield _block(name, Kind.COMMENT, [(comment.line, comment.text)])
            continue
        if block and (comment.line != block[-1][0] + 1 or _NEW_BLOCK.match(comment.text)):
            yield _block(name, Kind.COMMENT, block)
            block = []
        block.append((comment.line, comment.text))
    if block:
        yield _block(name, Kind.COMMENT, block)


def template(name: str, text: str) -> Iterator[Passage]:
    """Yield the text of a template between its blocks."""
    plain = _BLOCK_TAG.sub(lambda tag: "\f" + "\n" * tag.group().count("\n"), text)
    plain = _MARKUP.sub(" ", _VALUE.sub(CODE, plain))
    for number, line in enumerate(plain.split("\n"), start=1):
        for part in filter(_is_prose, line.split("\f")):
            yield Passage(path=name, kind=Kind.TEMPLATE, lines=((number, part.strip()),))
