"""Errors of queries."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.core.errors import TerminalError


@dataclass(kw_only=True, eq=False)
class InvalidQuery(TerminalError):
    """DuckDB cannot run the query."""

    reason: str

    problem = "The query failed: {reason}"
    fix = (
        "Correct the query. `tidemark sql --tables` lists the tables, and the statement `DESCRIBE "
        "TABLE_NAME` the columns of one."
    )


@dataclass(kw_only=True, eq=False)
class UnknownTable(TerminalError):
    """The query names a table that does not exist, or a name that several tables have."""

    table: str
    reason: str
    similar: tuple[str, ...]

    problem = "The table name {table} cannot be resolved: {reason}."
    fix = "{advice} `tidemark sql --tables` lists all tables."

    @property
    def advice(self) -> str:
        """The names to use, if any are similar."""
        if self.similar:
            return f"Use {' or '.join(self.similar)}."
        return "Correct the name, or fill the table first, for example with `tidemark run`."
