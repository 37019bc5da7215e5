"""Mutations of the package: a marker comment names a place, an operation changes it on import.

A marker is a comment `# fence: its-name`. It is at the end of the line where the place begins, or
on a separate line above it. The place is the first of these:

* the statement that begins on the line (its expression is the condition of an `if`, or the value
  of an assignment or a return),
* the keyword argument that begins on the line,
* the last outermost expression on the line. It is an argument, an element, an operand of `and` or
  `or`, a value of a dict, or the condition or source of a comprehension.

With `-p tests.faults.mutation`, pytest imports the package with the mutation of the fence that the
variable `TIDEMARK_FENCE` names. Nothing is copied, and no compiled file is written.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import io
import os
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Protocol

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "include" / "tidemark"
VARIABLE = "TIDEMARK_FENCE"
_MARKER = re.compile(r"# fence: ([a-z0-9]+(?:-[a-z0-9]+)*)$")

_LIKE_MARKER = re.compile(r"#\s*fence\b\s*:", re.IGNORECASE)


class UnfitOperation(Exception):
    """The operation cannot be applied to the place that is marked."""


# -- markers -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """A marker comment in the package.

    Attributes:
        name: The name of the fence.
        file: The file that contains it.
        line: The line, counted from 1, on which the marked place begins.
    """

    name: str
    file: Path
    line: int


def markers(package: Path = PACKAGE) -> list[Marker]:
    """Return every marker of the package, in the order of files and lines."""
    return [
        Marker(name=name, file=file, line=line)
        for file in sorted(package.rglob("*.py"))
        if _LIKE_MARKER.search(source := file.read_text())
        for name, line in marks(source)
    ]


def marks(source: str) -> Iterator[tuple[str, int]]:
    """Yield the names of markers, each with the line of the code that it marks.

    Raises:
        ValueError: A comment looks like a marker and is not one.
    """
    pending: list[str] = []
    line = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if _LIKE_MARKER.search(token.string) and not _MARKER.search(token.string):
                raise ValueError(f"not of the form `# fence: its-name`: {token.string}")
            if found := _MARKER.search(token.string):
                if line == token.start[0]:
                    yield found[1], line
                else:
                    pending.append(found[1])
        elif token.type not in _LAYOUT:
            line = token.end[0]
            yield from ((name, token.start[0]) for name in pending)
            pending.clear()


_LAYOUT = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


# -- places --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """Place of a node in the tree.

    Attributes:
        parent: The parent of the node.
        field: The parent's field that contains it.
        index: Its index in that field, if the field is a list.
    """

    parent: ast.AST
    field: str
    index: int | None

    @property
    def node(self) -> ast.AST:
        """Return the node at this place."""
        found = getattr(self.parent, self.field)
        node = found if self.index is None else found[self.index]
        assert isinstance(node, ast.AST)
        return node

    @property
    def siblings(self) -> list[ast.AST]:
        """Return the list that contains the node.

        Raises:
            UnfitOperation: The node is not in a list.
        """
        if self.index is None:
            raise UnfitOperation(f"{self.field} of {type(self.parent).__name__} is not a list")
        siblings: list[ast.AST] = getattr(self.parent, self.field)
        return siblings

    def put(self, node: ast.AST) -> None:
        """Replace the node at this place."""
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            self.siblings[self.index] = node


_EXPRESSIONS = {
    (ast.Call, "args"),
    (ast.List, "elts"),
    (ast.Tuple, "elts"),
    (ast.Set, "elts"),
    (ast.Dict, "values"),
    (ast.BoolOp, "values"),
    (ast.comprehension, "ifs"),
    (ast.comprehension, "iter"),
}
"""Parents and fields of expressions that can be marked."""


def find(tree: ast.Module, line: int) -> Place:
    """Return the place that a marker on a line marks.

    Raises:
        UnfitOperation: There is none on the line.
    """
    begin = [place for place in _places(tree) if getattr(place.node, "lineno", None) == line]
    statements = [place for place in begin if isinstance(place.node, ast.stmt)]
    keywords = [place for place in begin if isinstance(place.node, ast.keyword)]
    # Parents come before their children, so an expression inside an earlier one is not outermost.
    outermost: list[Place] = []
    for place in begin:
        can_be_marked = (type(place.parent), place.field) in _EXPRESSIONS
        is_inside = any(place.node in ast.walk(before.node) for before in outermost)
        if can_be_marked and not is_inside and getattr(place.node, "end_lineno", None) == line:
            outermost.append(place)
    found = statements[:1] or keywords[:1] or outermost[-1:]
    if not found:
        raise UnfitOperation(f"no statement, keyword argument or expression begins on line {line}")
    return found[0]


def _places(node: ast.AST) -> Iterator[Place]:
    """Yield all places below a node, parents first, in the order of the source."""
    for field, value in ast.iter_fields(node):
        children = value if isinstance(value, list) else [value]
        for index, child in enumerate(children):
            if isinstance(child, ast.AST):
                yield Place(node, field, index if isinstance(value, list) else None)
                yield from _places(child)


# -- operations ----------------------------------------------------------------------------------


class Operation(Protocol):
    """A change of the tree."""

    def apply(self, place: Place) -> None:
        """Change the node at a place.

        Raises:
            UnfitOperation: The operation does not fit the node.
        """


@dataclass(frozen=True, slots=True)
class Drop:
    """Remove a statement, keyword argument, argument, element, operand or condition."""

    def apply(self, place: Place) -> None:
        """Remove the node; a body without a statement has a `pass`."""
        siblings = place.siblings
        assert place.index is not None
        match place.parent:
            case ast.If(orelse=[ast.If() as only]) if only is place.node:
                raise UnfitOperation("use Never() for an elif: the branches after it stay")
            case ast.BoolOp(op=op):
                # A neutral operand, because a single operand does not compile.
                place.put(ast.Constant(isinstance(op, ast.And)))
                return
            case ast.Dict(keys=keys):
                del keys[place.index]
        del siblings[place.index]
        if not siblings and place.field in ("body", "finalbody"):
            siblings.append(ast.Pass())


@dataclass(frozen=True, slots=True)
class MoveUp:
    """Move a statement before earlier statements of its block.

    Attributes:
        statements: The number of earlier statements.
    """

    statements: int = 1

    def apply(self, place: Place) -> None:
        """Move the statement."""
        siblings, index = place.siblings, place.index
        if not isinstance(place.node, ast.stmt) or index is None or index < self.statements:
            raise UnfitOperation(f"fewer than {self.statements} statements are before the place")
        siblings.insert(index - self.statements, siblings.pop(index))


@dataclass(frozen=True, slots=True)
class Replace:
    """Replace an expression by a literal, which contains no name of the package.

    Attributes:
        literal: The text of the literal.

    Raises:
        ValueError: The text is not a literal.
    """

    literal: str

    def __post_init__(self) -> None:
        ast.literal_eval(self.literal)

    def apply(self, place: Place) -> None:
        """Replace the expression."""
        _expression(place).put(ast.parse(self.literal, mode="eval").body)


@dataclass(frozen=True, slots=True)
class Argument:
    """Replace a call by one of its positional arguments.

    Attributes:
        index: The index of the argument, counted from 0.
    """

    index: int

    def apply(self, place: Place) -> None:
        """Replace the call."""
        target = _expression(place)
        arguments = target.node.args if isinstance(target.node, ast.Call) else []
        first = arguments[: self.index + 1]
        if len(first) <= self.index or any(isinstance(each, ast.Starred) for each in first):
            raise UnfitOperation(f"the place has no positional argument {self.index}")
        target.put(first[-1])


@dataclass(frozen=True, slots=True)
class LeftOperand:
    """Replace a binary operation, such as `a + b`, by its left operand."""

    def apply(self, place: Place) -> None:
        """Replace the operation."""
        target = _expression(place)
        if not isinstance(target.node, ast.BinOp):
            raise UnfitOperation(f"{type(target.node).__name__} is not a binary operation")
        target.put(target.node.left)


def _expression(place: Place) -> Place:
    """Return the place of the marked expression.

    It is the condition of an `if`, or the value of another statement or a keyword argument.
    """
    match place.node:
        case ast.expr():
            return place
        case ast.If():
            return Place(place.node, "test", None)
        case ast.Assign() | ast.AnnAssign() | ast.AugAssign() | ast.Expr() | ast.keyword():
            return Place(place.node, "value", None)
        case ast.Return(value=ast.expr()):
            return Place(place.node, "value", None)
        case _:
            raise UnfitOperation(f"{type(place.node).__name__} has no value")


@dataclass(frozen=True, slots=True)
class Never:
    """Make the condition of an `if` or `elif` false."""

    def apply(self, place: Place) -> None:
        """Replace the condition."""
        _decide(place, value=False)


@dataclass(frozen=True, slots=True)
class Always:
    """Make the condition of an `if` or `elif` true."""

    def apply(self, place: Place) -> None:
        """Replace the condition."""
        _decide(place, value=True)


def _decide(place: Place, *, value: bool) -> None:
    if not isinstance(place.node, ast.If):
        raise UnfitOperation(f"{type(place.node).__name__} is not an if")
    place.node.test = ast.Constant(value)


# -- modules -------------------------------------------------------------------------------------


def mutate(source: str, line: int, operation: Operation) -> ast.Module:
    """Return the tree of a module with an operation applied to the place that a line marks.

    Raises:
        UnfitOperation: The operation does not fit the place.
    """
    tree = ast.parse(source)
    before = ast.dump(tree)
    operation.apply(find(tree, line))
    if ast.dump(tree) == before:
        raise UnfitOperation("the operation changes nothing")
    return ast.fix_missing_locations(tree)


def module_name(file: Path) -> str:
    """Return the name under which a file of the package is imported."""
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@dataclass(frozen=True, slots=True)
class _Loader(importlib.abc.Loader):
    """Loader that executes compiled code as the module."""

    code: CodeType

    def exec_module(self, module: ModuleType) -> None:
        exec(self.code, module.__dict__)


@dataclass(frozen=True, slots=True)
class _Finder(importlib.abc.MetaPathFinder):
    """Finder of the mutated module."""

    marker: Marker
    code: CodeType

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None, /
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != module_name(self.marker.file):
            return None
        folders = [str(self.marker.file.parent)] if self.marker.file.stem == "__init__" else None
        return importlib.util.spec_from_file_location(
            fullname,
            self.marker.file,
            loader=_Loader(self.code),
            submodule_search_locations=folders,
        )


def install(marker: Marker, operation: Operation) -> None:
    """Import the package with the mutation from now on.

    Raises:
        UnfitOperation: The operation does not fit, or the module is already imported.
    """
    if module_name(marker.file) in sys.modules:
        raise UnfitOperation(f"{module_name(marker.file)} is already imported")
    tree = mutate(marker.file.read_text(), marker.line, operation)
    code = compile(tree, marker.file, "exec", dont_inherit=True)
    sys.meta_path.insert(0, _Finder(marker, code))


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Install the mutation before a conftest imports the package."""
    if name := os.environ.get(VARIABLE):
        from tests.faults.fences import FENCES

        (fence,) = (fence for fence in FENCES if fence.marker == name)
        (marker,) = (marker for marker in markers() if marker.name == name)
        install(marker, fence.operation)
