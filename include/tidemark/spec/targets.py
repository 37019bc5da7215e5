"""Locations of the tables of specs, and conflicts between them."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tidemark.spec.errors import Problem
from tidemark.spec.layout import Layout
from tidemark.spec.model import PipelineSpec

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]*)(.*)", re.DOTALL)
_FORBIDDEN = re.compile(r"[%?#*\[\]{}\\@:\x00-\x1f\x7f]")
"""Characters that Spark, Hadoop and delta-rs interpret differently, and `@`, which names copies."""
SCHEME_ALIASES = {"s3a": "s3", "s3n": "s3", "abfs": "abfss", "wasb": "wasbs"}
"""Aliases of schemes in Spark's connectors."""
_AZURE = ("abfss", "wasbs")
"""Schemes of Azure, without aliases."""
_LOCAL_HOSTS = ("", "localhost")
_AUTHORITY = re.compile(r"(\[[^]@]*\]|[^@:\[]*)(:[0-9]*)?")
_AZURE_AUTHORITY = re.compile(rf"([^@:]*@)?{_AUTHORITY.pattern}")
"""In Azure, the part before the `@` is a container."""
WITHOUT_CREDENTIALS = "a URI without user, password or query"
CREDENTIALS = "a URI with a user, a password or a query"
"""Stands for such a URI in messages, which must not contain secrets."""


class _Target(NamedTuple):
    """A table that a spec names: the spec's file, the key with the location, and its value."""

    file: Path
    key: str
    value: str

    @property
    def shown(self) -> str:
        """The value in messages."""
        return CREDENTIALS if has_credentials(self.value) else repr(self.value)

    def problem(self, expected: str, found: str) -> Problem:
        return Problem.of(self.file, self.key, expected, found)


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


def target_problems(specs: Mapping[Path, PipelineSpec], layout: Layout) -> Iterator[Problem]:
    """Yield problems of invalid targets, and of targets equal to or inside another one.

    Different spellings of a location are equal.

    Args:
        specs: Specs by file, in the order in which they were read.
        layout: The lakehouse, and the folders of Tidemark's own tables.
    """
    locations: list[tuple[_Target, _Location]] = []
    for file, spec in specs.items():
        for key, value in spec.targets.items():
            target = _Target(file, key, value)
            expected = _broken_rule(value)
            if expected is None:
                locations.append((target, _location(layout.data_table(value))))
            elif not key.endswith("_quarantine"):
                # The quarantine's name derives from a target that is already reported.
                yield target.problem(expected, target.shown)
    reserved = {_location(folder) for folder in layout.own_folders}
    around = {parent for each in reserved for parent in each.parents()}
    first: dict[_Location, _Target] = {}
    for target, location in locations:
        if location in around or not reserved.isdisjoint((location, *location.parents())):
            expected = "a target outside the folders control and quality, and not a parent of them"
            yield target.problem(expected, repr(target.value))
        other = first.setdefault(location, target)
        if other is not target:
            yield target.problem("a target that no other table has", _same(target, other))
    for target, location in locations:
        outer = next((first[each] for each in location.parents() if each in first), None)
        if outer:
            found = f"{target.value!r}, inside {outer.value!r} of {outer.file.name}"
            yield target.problem("a target outside other tables", found)


def _same(target: _Target, other: _Target) -> str:
    if target.value.rstrip("/") == other.value.rstrip("/"):
        return f"{target.value!r}, as in {other.file.name}"
    return f"{target.value!r}, the same location as {other.value!r} in {other.file.name}"


def has_credentials(location: str) -> bool:
    """Whether the URI of a table has a user, a password or a query, such as an access token.

    delta-rs ignores the user and its password, PyArrow uses them, and Hadoop refuses them.
    Locations are also text of errors, logs, events and pages, which must not contain secrets.
    """
    scheme, is_uri, rest = location.partition("://")
    authority = rest.partition("/")[0]
    azure = SCHEME_ALIASES.get(scheme.lower(), scheme.lower()) in _AZURE
    valid = (_AZURE_AUTHORITY if azure else _AUTHORITY).fullmatch(authority)
    return bool(is_uri) and (valid is None or "?" in rest or "#" in rest)


def _broken_rule(target: str) -> str | None:
    """Return the rule that a target breaks; None for a valid target."""
    if has_credentials(target):
        return WITHOUT_CREDENTIALS
    uri = _URI.fullmatch(target)
    path = uri[3] if uri else target
    if _FORBIDDEN.search(path) or path != path.strip():
        return "a path without % ? # * [ ] { } \\ @ : and without spaces at its ends"
    folders = path.rstrip("/").removeprefix("/").split("/")
    is_root = folders == [""]
    if (is_root and not uri) or any(folder in (".", "..") for folder in folders):
        return "a path without . and .., either below the lakehouse or absolute"
    if not is_root and "" in folders:
        return "a path without empty folders (//)"
    return None


def _location(uri: str) -> _Location:
    """Return the location of a table, equal for all spellings of its URI."""
    parts = _URI.fullmatch(uri)
    scheme = parts[1].lower() if parts else "file"
    if parts is None or (scheme == "file" and parts[2].lower() in _LOCAL_HOSTS):
        store, path = "file://", os.path.realpath(parts[3] if parts else uri)
    else:
        store, path = f"{SCHEME_ALIASES.get(scheme, scheme)}://{parts[2].lower()}", parts[3]
    folded = unicodedata.normalize("NFC", path).casefold()
    return _Location(store, tuple(name for name in folded.split("/") if name))
