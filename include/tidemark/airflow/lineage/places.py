"""Names of datasets. Source: the naming of datasets in OpenLineage's specification."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from tidemark.spec.targets import SCHEME_ALIASES

_WITH_ROOT = ("file", "hdfs")
"""Schemes whose names of datasets keep the leading slash; object stores have keys."""


class Place(NamedTuple):
    """Namespace and name of a dataset."""

    namespace: str
    name: str

    def as_record(self) -> dict[str, str]:
        """Return the place as plain values."""
        return self._asdict()


def topic_place(bootstrap: str, topic: str) -> Place:
    """Return the place of a topic.

    Args:
        bootstrap: A bootstrap server, as `host:port`.
        topic: Topic name.
    """
    return Place(f"kafka://{bootstrap}", topic)


def table_place(uri: str) -> Place:
    """Return the place of a table.

    Args:
        uri: Absolute path, or URI of an object store. No location of a table has credentials.
    """
    parts = urlsplit(uri)
    scheme = SCHEME_ALIASES.get(parts.scheme, parts.scheme) or "file"
    path = parts.path.rstrip("/")
    if scheme == "file":
        return Place("file", path)
    return Place(
        f"{scheme}://{parts.netloc}", path if scheme in _WITH_ROOT else path.lstrip("/") or "/"
    )
