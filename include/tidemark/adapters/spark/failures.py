"""What Spark's exceptions say."""

from __future__ import annotations

import re

_NAMED = re.compile(r"\[_?[A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*\]")
_TELL_NO_VALUES = ("java.io.", "java.net.", "java.nio.", "org.apache.hadoop.", "org.apache.kafka.")
"""Packages whose exceptions tell of files and connections. The log's layout knows them as well."""


def condition_of(failure: Exception) -> str:
    """Why a computation over records failed, without anything that a record has.

    The name that Spark gives it, or the exception's; as `root_cause` where no value can be in it.
    """
    cause = root_cause(failure)
    if named := _NAMED.search(cause):
        return f"Spark's error {named[0]}, perhaps of a row rule"
    thrown = re.match(r"Caused by: ([\w.$]+)", cause)
    if thrown is None or thrown[1].startswith(_TELL_NO_VALUES):
        return cause
    return f"{thrown[1]}, perhaps of a row rule; its text, which may have a value, is kept back"


def root_cause(failure: Exception) -> str:
    """The last cause's first line: what a person looks for in a stack trace."""
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by:")]
    return (causes[-1] if causes else lines[0] if lines else type(failure).__name__)[:500]
