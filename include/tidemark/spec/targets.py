"""Locations of the tables of specs, and conflicts between them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tidemark.spec.layout import Layout
from tidemark.spec.model import PipelineSpec

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]*)(.*)", re.DOTALL)
_REFUSED = re.compile(r"[%?#*\[\]{}\\@:\x00-\x1f\x7f]")
"""Characters that Spark, Hadoop and delta-rs read differently, and `@`, which names copies."""
_SCHEMES = {"s3a": "s3", "s3n": "s3", "abfs": "abfss", "wasb": "wasbs"}
"""Other names of a scheme in Spark's connectors."""
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
    """A problem of a target."""

    target: Target
    expected: str
    found: str


class _Place(NamedTuple):
    """A folder, by its store and the folders above it.

    Comparisons of names ignore case, because some file systems do.
    """

    store: str
    folders: tuple[str, ...]

    def above(self) -> Iterator[_Place]:
        """Every folder around it, the nearest first."""
        for end in reversed(range(len(self.folders))):
            yield _Place(self.store, self.folders[:end])


def targets_of(file: Path, spec: PipelineSpec) -> Iterator[Target]:
    """Yield every table of a pipeline; copies are beside its bronze table, with an `@`."""
    yield Target(file, "target", spec.target)
    if spec.decode:
        yield Target(file, "decode.target", spec.decode.target)
        beside = spec.decode.quarantine_target
        yield Target(file, "decode.target, with _quarantine", beside)
        if spec.decode.upsert:
            yield Target(file, "decode.upsert.target", spec.decode.upsert.target)


def target_conflicts(
    specs: Mapping[Path, PipelineSpec], layout: Layout, resolve: Callable[[str], str]
) -> Iterator[Conflict]:
    """Yield the problems of the targets of some specs, in any spelling.

    Args:
        specs: By file, in the order in which they were read.
        layout: Has the lakehouse, and the folders of Tidemark's own tables.
        resolve: Returns a local path without symbolic links.
    """
    usable: list[Target] = []
    for target in (each for file, spec in specs.items() for each in targets_of(file, spec)):
        expected = _spelling(target.value)
        if expected is None:
            usable.append(target)
        elif not target.key.endswith("_quarantine"):
            # The quarantine's name follows from a target that is reported already.
            yield Conflict(target, expected, repr(target.value))
    places = [(target, _place(layout.data_table(target.value), resolve)) for target in usable]
    own = [_place(folder, resolve) for folder in layout.own_folders]
    yield from _own_tables(places, own)
    first: dict[_Place, Target] = {}
    for target, place in places:
        if place in first:
            yield Conflict(target, "a target of its own", _as_in(target, first[place]))
        first.setdefault(place, target)
    for target, place in places:
        above = next((first[each] for each in place.above() if each in first), None)
        if above:
            expected = "a target outside other tables"
            inside = f"{target.value!r}, inside {above.value!r} of {above.file.name}"
            yield Conflict(target, expected, inside)


def _own_tables(
    places: Iterable[tuple[Target, _Place]], own: Iterable[_Place]
) -> Iterator[Conflict]:
    reserved = set(own)
    around = {place for each in reserved for place in each.above()}
    for target, place in places:
        if place in around or not reserved.isdisjoint((place, *place.above())):
            expected = "a target outside the folders control and quality, and not around them"
            yield Conflict(target, expected, repr(target.value))


def _as_in(target: Target, other: Target) -> str:
    if target.value.rstrip("/") == other.value.rstrip("/"):
        return f"{target.value!r}, as in {other.file.name}"
    return f"{target.value!r}, the same place as {other.value!r} in {other.file.name}"


def _spelling(target: str) -> str | None:
    """Return the rule that a target breaks; None for a valid target."""
    uri = _URI.fullmatch(target)
    path = uri[3] if uri else target
    if _REFUSED.search(path) or path != path.strip():
        return "a path without % ? # * [ ] { } \\ @ : and outer spaces"
    folders = path.rstrip("/").removeprefix("/").split("/")
    is_root = folders == [""]
    if (is_root and not uri) or any(folder in (".", "..") for folder in folders):
        return "a path below the lakehouse, or an absolute one, without . and .."
    if not is_root and "" in folders:
        return "a path without empty folders (//)"
    return None


def _place(uri: str, resolve: Callable[[str], str]) -> _Place:
    """Return the location of a table, the same for all spellings."""
    parts = _URI.fullmatch(uri)
    scheme = parts[1].lower() if parts else "file"
    if parts is None or (scheme == "file" and parts[2].lower() in _LOCAL_HOSTS):
        store, path = "file://", resolve(parts[3] if parts else uri)
    else:
        store, path = f"{_SCHEMES.get(scheme, scheme)}://{parts[2].lower()}", parts[3]
    folders = (_folded(name) for name in path.split("/"))
    return _Place(store, tuple(name for name in folders if name))


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()
