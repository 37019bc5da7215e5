"""Locations of the tables of specs, and conflicts between them."""

from __future__ import annotations

import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from tidemark.core.texts import counted
from tidemark.spec.errors import Problem
from tidemark.spec.layout import Layout
from tidemark.spec.model import PipelineSpec
from tidemark.spec.ref import PipelineKind, PipelineRef

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]*)(.*)", re.DOTALL)
_FORBIDDEN = re.compile(r"[%?#*\[\]{}\\@:\x00-\x1f\x7f]")
"""Characters that Spark, Hadoop and delta-rs interpret differently, and the `@` of references."""
SCHEME_ALIASES = {"s3a": "s3", "s3n": "s3", "abfs": "abfss", "wasb": "wasbs"}
"""Aliases of schemes in Spark's connectors."""
S3_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
"""Variables that select another server than Amazon's for `s3://`; the first one counts."""

_AZURE = ("abfss", "wasbs")
"""Schemes of Azure, without aliases."""
_HDFS_PORT = ":8020"
"""The default port of HDFS."""
_LOCAL_HOSTS = ("", "localhost")
_AUTHORITY = re.compile(r"(\[[^]@]*\]|[^@:\[]*)(:[0-9]*)?")
_AZURE_AUTHORITY = re.compile(rf"([^@:]*@)?{_AUTHORITY.pattern}")
"""In Azure, the part before the `@` is a container."""
WITHOUT_CREDENTIALS = "a URI without user, password or query"
CREDENTIALS = "a URI with a user, a password or a query"
"""Stands for such a URI in messages, which must not contain secrets."""
WITHOUT_SPACES = "a URI without spaces"
OUTSIDE_OWN_FOLDERS = "a target outside Tidemark's own folders, and around none of them"


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


class _Claim(IntEnum):
    """How well a table of a pipeline is known. The best-known table of a conflict is valid."""

    INVALID = 0
    """The spec has another problem, so the pipeline cannot run."""
    NEW = 1
    """The control table has no event of the pipeline."""
    PIPELINE = 2
    """The control table has events of the pipeline. The table is derived, and has none."""
    TABLE = 3
    """The control table has events of the bronze table."""
    OWNER = 4
    """The table exists, and its property `tidemark.pipeline` names the pipeline."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Target:
    """A table that a spec names.

    Attributes:
        file: File of the spec.
        order: Position among the targets of all specs; that of a spec's own table is the first.
        key: The key with the location.
        table: The table, as events and the property `tidemark.pipeline` name it.
        value: The location in the spec.
        location: The location, equal for all spellings.
        claim: How well the table is known.
    """

    file: Path
    order: int
    key: str
    table: PipelineRef
    value: str
    location: _Location
    claim: _Claim

    def is_invalid_beside(self, other: _Target) -> bool:
        """Return whether a conflict with another target makes this target invalid."""
        if self.file == other.file:
            return self.order > other.order
        return self.claim <= other.claim

    def is_undecided_beside(self, other: _Target) -> bool:
        """Return whether events leave a conflict with a target of another spec open.

        A derived table has no events. If its pipeline has some, events of the other table do not
        decide against the derived table.
        """
        lower, higher = sorted((self, other), key=lambda each: each.claim)
        if self.file == other.file or lower.claim is _Claim.INVALID:
            return False
        return lower.claim is higher.claim or lower.claim is _Claim.PIPELINE

    def problem(self, others: Sequence[_Target]) -> Problem:
        """Return the problem of this target, from the targets that make it invalid."""
        other = max(others, key=lambda each: (each.file == self.file, each.claim))
        if other.location == self.location:
            expected = "a target that no other table has"
            is_same = self.value.rstrip("/") == other.value.rstrip("/")
            relation = "as in" if is_same else f"the same location as {other.value!r} in"
        elif other.location in self.location.parents():
            expected, relation = "a target outside other tables", f"inside {other.value!r} of"
        else:
            expected, relation = "a target around no other table", f"around {other.value!r} of"
        found = f"{self.value!r}, {relation} {other.file.name}"
        if len(others) > 1:
            found += f" (and {counted(len(others) - 1, 'further conflict')})"
        return Problem.of(self.file, self.key, expected, found + self._reason(other))

    def _reason(self, other: _Target) -> str:
        """Return what decides against this target: existing tables, or the control table."""
        if self.file == other.file or other.claim is _Claim.INVALID:
            return ""
        if other.claim is _Claim.OWNER:
            both = self.claim is _Claim.OWNER
            owner = other.file.stem
            return "; both tables exist" if both else f"; the existing table belongs to {owner}"
        if other.claim is _Claim.NEW:
            return "" if self.claim < other.claim else "; neither pipeline is in the control table"
        if self.claim is other.claim:
            return "; both pipelines are in the control table"
        what = "the table of " if self.claim is _Claim.PIPELINE else ""
        return f"; only {what}{other.file.stem} is in the control table"


def target_problems(specs: Mapping[Path, PipelineSpec], layout: Layout) -> Iterator[Problem]:
    """Yield problems of invalid targets, and of targets in or around Tidemark's own folders.

    Args:
        specs: Specs by file.
        layout: The lakehouse, and Tidemark's own folders.
    """
    reserved = {_location(folder): folder for folder in layout.own_folders}
    around = {parent: folder for each, folder in reserved.items() for parent in each.parents()}
    for file, key, value in _values(specs):
        if expected := _broken_rule(value):
            # The quarantine's name derives from a target that is already reported.
            if not key.endswith("_quarantine"):
                found = CREDENTIALS if has_credentials(value) else repr(value)
                yield Problem.of(file, key, expected, found)
            continue
        uri = layout.data_table(value)
        if has_spaces(uri):
            if not key.endswith("_quarantine"):
                yield Problem.of(file, key, WITHOUT_SPACES, repr(uri))
            continue
        location = _location(uri)
        places = (location, *location.parents())
        outer = next((reserved[each] for each in places if each in reserved), None)
        if outer or location in around:
            relation = f"in {outer}" if outer else f"around {around[location]}"
            found = f"{value!r}, {relation}"
            yield Problem.of(file, key, OUTSIDE_OWN_FOLDERS, found)


def target_conflicts(
    specs: Mapping[Path, PipelineSpec],
    layout: Layout,
    *,
    recorded: Collection[str],
    table_owner: Callable[[str, Collection[Path]], str | None],
    invalid: Collection[str],
) -> Iterator[Problem]:
    """Yield problems of targets equal to, inside or around another one.

    Different spellings of a location are equal. A conflict makes every target invalid except the
    one that is better known than all others, so a new spec cannot stop an existing pipeline. Where
    the events of the control table do not decide, the existing tables do.

    Args:
        specs: Specs by file.
        layout: The lakehouse.
        recorded: Names of all pipelines in the control table.
        table_owner: Returns the property `tidemark.pipeline` of the table at a location, which
            decides about the specs in some files.
        invalid: Names of files with other problems.
    """

    def settled(target: _Target) -> _Target:
        undecided = [each for each in by_events.get(target, ()) if target.is_undecided_beside(each)]
        if not undecided:
            return target
        files = [target.file, *(each.file for each in undecided)]
        owner = table_owner(layout.data_table(target.value), files)
        return replace(target, claim=_Claim.OWNER) if owner == str(target.table) else target

    targets = [
        _Target(
            file=file,
            order=order,
            key=key,
            table=(table := _table(specs[file], key)),
            value=value,
            location=_location(layout.data_table(value)),
            claim=_claim(file, table, recorded=recorded, invalid=invalid),
        )
        for order, (file, key, value) in enumerate(_values(specs))
        if _broken_rule(value) is None
    ]
    by_events = _conflicts(targets)
    for target, others in _conflicts(map(settled, targets)).items():
        if winners := [each for each in others if target.is_invalid_beside(each)]:
            yield target.problem(winners)


def _values(specs: Mapping[Path, PipelineSpec]) -> Iterator[tuple[Path, str, str]]:
    """Yield the file, the key and the value of each target."""
    for file, spec in specs.items():
        for key, value in spec.targets.items():
            yield file, key, value


def _table(spec: PipelineSpec, key: str) -> PipelineRef:
    """Return the table of a target. The quarantine belongs to its typed table."""
    kinds = {"target": PipelineKind.LIVE, "decode.upsert.target": PipelineKind.UPSERT}
    return spec.ref.of_kind(kinds.get(key, PipelineKind.TYPED))


def _claim(
    file: Path, table: PipelineRef, *, recorded: Collection[str], invalid: Collection[str]
) -> _Claim:
    """Return how well a table is known from events."""
    if file.stem != table.name:
        return _Claim.INVALID
    if table.name in recorded:
        return _Claim.TABLE if table.kind is PipelineKind.LIVE else _Claim.PIPELINE
    return _Claim.INVALID if file.name in invalid else _Claim.NEW


def _conflicts(targets: Iterable[_Target]) -> Mapping[_Target, Sequence[_Target]]:
    """Return the targets at, inside or around the location of each target with a conflict."""
    at: defaultdict[_Location, list[_Target]] = defaultdict(list)
    for target in targets:
        at[target.location].append(target)
    found: defaultdict[_Target, list[_Target]] = defaultdict(list)
    for location, same in at.items():
        outer = [each for parent in location.parents() for each in at.get(parent, ())]
        for target in same:
            found[target] += [*(each for each in same if each is not target), *outer]
            for each in outer:
                found[each].append(target)
    return {target: others for target, others in found.items() if others}


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


def has_spaces(location: str) -> bool:
    """Whether the URI of a table has white space. PyArrow cannot parse such a URI, only a path."""
    return "://" in location and any(map(str.isspace, location))


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
        scheme, authority, path = SCHEME_ALIASES.get(scheme, scheme), parts[2].lower(), parts[3]
        if scheme in _AZURE:
            # The two interfaces of an account show the same containers.
            scheme, authority = "azure", authority.replace(".blob.", ".dfs.")
        elif scheme == "hdfs":
            authority = authority.removesuffix(_HDFS_PORT)
        store = f"{scheme}://{authority}"
    folded = unicodedata.normalize("NFC", path).casefold()
    return _Location(store, tuple(name for name in folded.split("/") if name))
