"""What Spark's exceptions say."""

from __future__ import annotations


def root_cause(failure: Exception) -> str:
    """The last cause's first line: what a person looks for in a stack trace."""
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by:")]
    return (causes[-1] if causes else lines[0] if lines else type(failure).__name__)[:500]
