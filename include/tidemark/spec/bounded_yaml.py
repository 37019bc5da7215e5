"""Reads YAML files within limits of size, depth and features.

A small file can describe a huge value: ten aliases of ten aliases, nine times, are a billion nodes.
This module refuses aliases, and any file that takes more than a second or a few megabytes to read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

MOST_BYTES = 256 * 1024
MOST_LEVELS = 50
MOST_VALUES = 10_000
MOST_DIGITS = 100
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


class UnusableYaml(yaml.YAMLError):
    """The file is not YAML, or exceeds a limit.

    Attributes:
        expected: The requirement on a file.
        found: The violation in this file, with its line.
    """

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(f"expected {expected}, found {found}")
        self.expected = expected
        self.found = found


def load(path: Path) -> tuple[Any, list[tuple[str, int]]]:
    """Read one document.

    Returns:
        Its value, and the keys that occur twice in a mapping, with the line of the second key,
        which wins.

    Raises:
        Refused: The file is not YAML, not a regular file, or beyond a limit.
    """
    try:
        return _parsed(_text(path))
    except UnusableYaml:
        raise
    except (yaml.YAMLError, ValueError, OSError) as broken:
        raise UnusableYaml("YAML", " ".join(str(broken).split())) from broken


def _text(path: Path) -> str:
    if not path.is_file():
        raise UnusableYaml("a regular file", "something else")
    with path.open("rb") as stream:
        content = stream.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise UnusableYaml(f"a file of at most {MOST_BYTES:,} bytes", "a larger one")
    return content.decode()


def _parsed(text: str) -> tuple[Any, list[tuple[str, int]]]:
    loader = _Loader(text)
    try:
        return loader.get_single_data(), loader.repeated
    finally:
        loader.dispose()


class _Loader(yaml.SafeLoader):
    """Builds plain values, and checks the limits before it builds a value."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.repeated: list[tuple[str, int]] = []
        self._levels = 0
        self._values = 0

    def compose_node(self, parent: Any, index: Any) -> yaml.Node | None:
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise UnusableYaml("YAML without aliases", f"*{event.anchor} {_line(event)}")
        if self._levels == MOST_LEVELS:
            raise UnusableYaml(f"at most {MOST_LEVELS} levels", f"one more {_line(event)}")
        if self._values == MOST_VALUES:
            raise UnusableYaml(
                f"at most {MOST_VALUES:,} keys and values", f"one more {_line(event)}"
            )
        self._values += 1
        self._levels += 1
        node = super().compose_node(parent, index)
        self._levels -= 1
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if node.tag in _NUMBERS and len(node.value) > MOST_DIGITS:
            raise UnusableYaml(f"at most {MOST_DIGITS} digits", f"a longer number {_line(node)}")
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, OverflowError) as wrong:
            kind = node.tag.rpartition(":")[2]
            raise UnusableYaml(f"a value of the type {kind}", f"{wrong} {_line(node)}") from wrong

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                self.repeated.append((str(key.value), key.start_mark.line + 1))
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def _line(at: yaml.Event | yaml.Node) -> str:
    return f"in line {at.start_mark.line + 1}" if at.start_mark else "somewhere"
