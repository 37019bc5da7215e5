"""Locations of the tables of specs, and conflicts between them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tidemark.spec.layout import Layout
from tidemark.spec.model import PipelineSpec

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]*)(.*)", re.DOTALL)
_FORBIDDEN = re.compile(r"[%?#*\[\]{}\\@:\x00-\x1f\x7f]")
"""Characters that Spark, Hadoop and delta-rs interpret differently, and `@`, which names copies."""
_SCHEMES = {"s3a": "s3", "s3n": "s3", "abfs": "abfss", "wasb": "wasbs"}
"""Aliases of schemes in Spark's connectors."""
_LOCAL_HOSTS = ("", "localhost")


class Target(NamedTuple):
    """A table that a spec names.

    Attributes:
        file: The spec's file.
        key: The key with the table's location.
        value: The value of that key.
    """

    file: Path
    key: str
    value: str


class Conflict(NamedTuple):
    """An invalid target, with the expected and the actual value."""

    target: Target
    expected: str
    found: str


class _Location(NamedTuple):
    """The location of a folder: its store, and the names of all folders on its path.

    The names are case-folded, because some file systems ignore case.
    """

    store: str
    folders: tuple[str, ...]

    def parents(self) -> Iterator[_Location]:
        """Yield every parent folder, the nearest first."""
        for end in reversed(range(len(self.folders))):
            yield _Location(self.store, self.folders[:end])


def targets_of(file: Path, spec: PipelineSpec) -> Iterator[Target]:
    """Yield every table of a pipeline, without copies, which have an `@` in their names."""
    yield Target(file, "target", spec.target)
    if spec.decode:
        yield Target(file, "decode.target", spec.decode.target)
        yield Target(file, "decode.target, with _quarantine", spec.decode.quarantine_target)
        if spec.decode.upsert:
            yield Target(file, "decode.upsert.target", spec.decode.upsert.target)


def target_conflicts(
    specs: Mapping[Path, PipelineSpec], layout: Layout, resolve: Callable[[str], str]
) -> Iterator[Conflict]:
    """Yield invalid targets, and targets that are equal to or inside another one.

    Different spellings of a location are equal.

    Args:
        specs: Specs by file, in the order in which they were read.
        layout: The lakehouse, and the folders of Tidemark's own tables.
        resolve: Returns a local path without symbolic links.
    """
    usable: list[Target] = []
    for target in (each for file, spec in specs.items() for each in targets_of(file, spec)):
        expected = _broken_rule(target.value)
        if expected is None:
            usable.append(target)
        elif not target.key.endswith("_quarantine"):
            # The quarantine's name derives from a target that is already reported.
            yield Conflict(target, expected, repr(target.value))
    locations = [(target, _location(layout.data_table(target.value), resolve)) for target in usable]
    reserved = [_location(folder, resolve) for folder in layout.own_folders]
    yield from _reserved_locations(locations, reserved)
    first: dict[_Location, Target] = {}
    for target, location in locations:
        if location in first:
            yield Conflict(
                target, "a target that no other table has", _same(target, first[location])
            )
        first.setdefault(location, target)
    for target, location in locations:
        outer = next((first[each] for each in location.parents() if each in first), None)
        if outer:
            found = f"{target.value!r}, inside {outer.value!r} of {outer.file.name}"
            yield Conflict(target, "a target outside other tables", found)


def _reserved_locations(
    locations: Iterable[tuple[Target, _Location]], reserved: Collection[_Location]
) -> Iterator[Conflict]:
    parents = {parent for each in reserved for parent in each.parents()}
    for target, location in locations:
        inside = any(each in reserved for each in (location, *location.parents()))
        if inside or location in parents:
            expected = "a target outside the folders control and quality, and not a parent of them"
            yield Conflict(target, expected, repr(target.value))


def _same(target: Target, other: Target) -> str:
    if target.value.rstrip("/") == other.value.rstrip("/"):
        return f"{target.value!r}, as in {other.file.name}"
    return f"{target.value!r}, the same location as {other.value!r} in {other.file.name}"


def _broken_rule(target: str) -> str | None:
    """Return the rule that a target breaks; None for a valid target."""
    uri = _URI.fullmatch(target)
    path = uri[3] if uri else target
    if _FORBIDDEN.search(path) or path != path.strip():
        return "a path without % ? # * [ ] { } \\ @ : and without spaces at its ends"
    folders = path.rstrip("/").removeprefix("/").split("/")
    is_root = folders == [""]
    if (is_root and not uri) or any(folder in (".", "..") for folder in folders):
        return "a path below the lakehouse, or an absolute one, without . and .."
    if not is_root and "" in folders:
        return "a path without empty folders (//)"
    return None


def _location(uri: str, resolve: Callable[[str], str]) -> _Location:
    """Return the location of a table, equal for all spellings of its URI."""
    parts = _URI.fullmatch(uri)
    scheme = parts[1].lower() if parts else "file"
    if parts is None or (scheme == "file" and parts[2].lower() in _LOCAL_HOSTS):
        store, path = "file://", resolve(parts[3] if parts else uri)
    else:
        store, path = f"{_SCHEMES.get(scheme, scheme)}://{parts[2].lower()}", parts[3]
    folders = (_folded(name) for name in path.split("/"))
    return _Location(store, tuple(name for name in folders if name))


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()
