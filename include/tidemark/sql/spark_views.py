"""The tables of a home as temporary views of a Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.delta.published_view import Engine, published_view
from tidemark.delta.table_io import open_if_exists
from tidemark.sql.tables import Catalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def create_views(session: SparkSession, catalog: Catalog) -> list[str]:
    """Create temporary views of all tables that exist, and return their names in SQL.

    A temporary view of Spark has no schema: the name of `bronze.prices` contains the dot. Each
    query of a view reads the newest version of the table.
    """
    names = []
    has_decisions = open_if_exists(catalog.control.location) is not None
    for table in catalog.tables:
        if open_if_exists(table.location) is None:
            continue
        if table.published is None:
            query = f"SELECT * FROM delta.{_quoted(table.location)}"
        elif has_decisions:
            query = published_view(
                table.published, table.location, catalog.control.location, Engine.SPARK
            )
        else:
            continue
        views = [_quoted(table.name.dotted)]
        if table.name.schema and catalog.has_short_name(table):
            views.append(_quoted(table.name.table))
        for view in views:
            session.sql(f"CREATE OR REPLACE TEMPORARY VIEW {view} AS {query}")
        names.append(views[-1])
    return names


def _quoted(identifier: str) -> str:
    escaped = identifier.replace("`", "``")
    return f"`{escaped}`"
