"""Errors of queries."""

from __future__ import annotations

from typing import Self

from tidemark.core.errors import CaseTexts, TerminalError


class InvalidQuery(CaseTexts, TerminalError):
    """DuckDB cannot run the query."""

    @classmethod
    def of_statement(cls, reason: str) -> Self:
        """A statement is wrong."""
        return cls(
            finding=f"The query failed: {reason}",
            advice=(
                "Correct the query. `tidemark sql --tables` lists the tables, and the statement "
                "`DESCRIBE TABLE_NAME` the columns of one."
            ),
        )

    @classmethod
    def of_table(cls, table: str, reason: str, similar: tuple[str, ...]) -> Self:
        """The query names a table that does not exist, or a name that several tables have."""
        if similar:
            advice = f"Use {' or '.join(similar)}."
        else:
            advice = "Correct the name, or fill the table first, for example with `tidemark run`."
        return cls(
            finding=f"The table name {table} cannot be resolved: {reason}.",
            advice=f"{advice} `tidemark sql --tables` lists all tables.",
        )
