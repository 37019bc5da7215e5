"""What Spark's exceptions say."""

from __future__ import annotations

import re


def condition_of(failure: Exception) -> str:
    """The name that Spark gives a failed computation, without the values; else as `root_cause`."""
    cause = root_cause(failure)
    named = re.search(r"\[[A-Z][A-Z_]+(?:\.[A-Z_]+)*\]", cause)
    return f"Spark's error {named[0]}, perhaps of a row rule" if named else cause


def root_cause(failure: Exception) -> str:
    """The last cause's first line: what a person looks for in a stack trace."""
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by:")]
    return (causes[-1] if causes else lines[0] if lines else type(failure).__name__)[:500]
