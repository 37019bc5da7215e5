"""Reads YAML files within limits of size, depth and features.

With aliases a small file can describe a huge value, so this module refuses them. The limits keep
the time below a second and the memory at a few megabytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

MAX_BYTES = 256 * 1024
MAX_LEVELS = 50
MAX_VALUES = 10_000
MAX_DIGITS = 100
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


class UnusableYaml(yaml.YAMLError):
    """The file is not YAML, or exceeds a limit.

    Attributes:
        expected: The requirement on a file.
        found: The violation in this file, with its line if it is known.
    """

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(f"expected {expected}, found {found}")
        self.expected = expected
        self.found = found


def load(path: Path) -> tuple[Any, list[tuple[str, int]]]:
    """Read one document.

    Returns:
        The value, and the keys that occur twice in a mapping, each with the line of the second
        occurrence. The value of the second occurrence is returned.

    Raises:
        UnusableYaml: The file is not YAML, not a regular file, or exceeds a limit.
    """
    try:
        loader = _Loader(_text(path))
        return loader.get_single_data(), loader.repeated
    except UnusableYaml:
        raise
    except yaml.MarkedYAMLError as error:
        raise UnusableYaml("YAML", _place_and_problem(error)) from error
    except (yaml.YAMLError, ValueError, OSError) as error:
        raise UnusableYaml("YAML", " ".join(str(error).split())) from error


def _place_and_problem(error: yaml.MarkedYAMLError) -> str:
    """Return the place and the problem of an error, and the line of the surrounding block."""
    problem = str(error.problem or error.context)
    if error.problem_mark is None:
        return problem
    line, column = error.problem_mark.line + 1, error.problem_mark.column + 1
    text = f"an error in line {line}, column {column}: {problem}"
    if error.context_mark is None or error.context_mark.line + 1 == line:
        return text
    return f"{text}; the block with the error starts in line {error.context_mark.line + 1}"


def _text(path: Path) -> str:
    if not path.is_file():
        raise UnusableYaml("a regular file", "no file, or another kind of file")
    with path.open("rb") as stream:
        content = stream.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise UnusableYaml(f"a file of at most {MAX_BYTES:,} bytes", "a larger one")
    return content.decode()


class _Loader(yaml.SafeLoader):
    """Checks the limits before it builds a value.

    Attributes:
        repeated: The repeated keys of `load`.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.repeated: list[tuple[str, int]] = []
        self._levels = 0
        self._values = 0

    def compose_node(self, parent: Any, index: Any) -> yaml.Node | None:
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise UnusableYaml("YAML without aliases", f"*{event.anchor} {_line(event)}")
        if self._levels == MAX_LEVELS:
            raise UnusableYaml(f"at most {MAX_LEVELS} levels", f"one more {_line(event)}")
        if self._values == MAX_VALUES:
            raise UnusableYaml(
                f"at most {MAX_VALUES:,} keys and values", f"one more {_line(event)}"
            )
        self._values += 1
        self._levels += 1
        node = super().compose_node(parent, index)
        self._levels -= 1
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if node.tag in _NUMBERS and len(node.value) > MAX_DIGITS:
            raise UnusableYaml(f"at most {MAX_DIGITS} digits", f"a longer number {_line(node)}")
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, OverflowError) as error:
            kind = node.tag.rpartition(":")[2]
            raise UnusableYaml(f"a value of the type {kind}", f"{error} {_line(node)}") from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in keys:
                self.repeated.append((str(key.value), key.start_mark.line + 1))
            keys.add(key.value)
        return super().construct_mapping(node, deep=deep)


def _line(node: yaml.Event | yaml.Node) -> str:
    return f"in line {node.start_mark.line + 1}" if node.start_mark else "in an unknown line"
