"""Names of the tables of a home in SQL: `bronze/prices` of the lakehouse is `bronze.prices`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property

from tidemark.delta.delta_errors import translate_delta_errors
from tidemark.delta.table_io import open_if_exists
from tidemark.spec.layout import Layout
from tidemark.spec.model import PipelineSpec

PUBLISHED = "published"
"""Schema of the published views, which have the names of their pipelines."""

_SIMILAR_NAMES = 3
_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")


def quoted(identifier: str) -> str:
    """Return an identifier in double quotes, for DuckDB."""
    escaped = identifier.replace('"', '""')
    return f'"{escaped}"'


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """Name of a table: its folder in the lakehouse, and the last folder of its path.

    Attributes:
        schema: The folder; the whole path of the folder for a table outside the lakehouse.
        table: The last folder.
    """

    schema: str
    table: str

    def __str__(self) -> str:
        parts = (self.schema, self.table) if self.schema else (self.table,)
        return ".".join(part if _PLAIN.fullmatch(part) else quoted(part) for part in parts)

    @property
    def dotted(self) -> str:
        """The parts without quotes, as one identifier."""
        return f"{self.schema}.{self.table}" if self.schema else self.table

    @property
    def spellings(self) -> tuple[str, str]:
        """The name without and with its schema, for comparisons without regard to case."""
        return self.table.casefold(), self.dotted.casefold()


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeTable:
    """A table of the lakehouse, or the published view of one.

    Attributes:
        name: Name in SQL.
        location: Path or URI of the table. The table may not exist yet.
        published: For a published view, the pipeline that writes the table; else None.
    """

    name: TableName
    location: str
    published: str | None = None


@dataclass(frozen=True)
class Catalog:
    """The tables of a home.

    Attributes:
        tables: All tables and published views, by name.
        control: The control table, which has the decisions of published views.
    """

    tables: Sequence[LakeTable]
    control: LakeTable

    @cached_property
    def _tables_by_short_name(self) -> Counter[str]:
        return Counter(each.name.table.casefold() for each in self.tables if each.published is None)

    def has_short_name(self, table: LakeTable) -> bool:
        """Return whether the name without its schema means this table alone.

        A published view has no short name.
        """
        is_single = self._tables_by_short_name[table.name.table.casefold()] == 1
        return is_single and table.published is None

    def data_table_of(self, view: LakeTable) -> LakeTable:
        """Return the table that a published view reads."""
        return next(
            each
            for each in self.tables
            if each.published is None and each.location == view.location
        )

    def similar(self, name: str) -> list[TableName]:
        """Return the names that resemble a text, the closest first."""
        names = {
            text: each.name
            for each in self.tables
            for text in each.name.spellings[each.published is not None :]
        }
        close = get_close_matches(name.casefold(), names, n=_SIMILAR_NAMES, cutoff=0.8)
        return list(dict.fromkeys(names[text] for text in close))

    def named(self, table: str) -> list[LakeTable]:
        """Return the tables with this name, which may lack the schema."""
        wanted = table.replace('"', "").casefold()
        return [each for each in self.tables if wanted in each.name.spellings]


def catalog(layout: Layout, pipelines: Iterable[PipelineSpec]) -> Catalog:
    """Return the tables of a home.

    Args:
        layout: The folders of the home.
        pipelines: Specs of all pipelines.
    """
    own = [
        layout.control_table,
        layout.status_table,
        layout.status_history,
        layout.schema_table,
        layout.quality_results,
    ]
    found: dict[TableName, LakeTable] = {}
    for location in own:
        name = _name_of(location, layout)
        found[name] = LakeTable(name=name, location=location)
    for spec in pipelines:
        for location in map(layout.data_table, spec.targets.values()):
            name = _name_of(location, layout)
            found[name] = LakeTable(name=name, location=location)
        name = TableName(PUBLISHED, spec.name)
        view = LakeTable(name=name, location=layout.data_table(spec.target), published=spec.name)
        # A pipeline's table may have the name of another pipeline's view.
        found.setdefault(name, view)
    control = found[_name_of(layout.control_table, layout)]
    return Catalog(tables=[found[name] for name in sorted(found)], control=control)


def _name_of(location: str, layout: Layout) -> TableName:
    path = location.rstrip("/").removeprefix(f"{layout.lakehouse.rstrip('/')}/")
    schema, _, table = path.rpartition("/")
    return TableName(schema, table)


def recorded_pipelines(control_table: str) -> list[str]:
    """Return the texts of all pipelines in the control table, from the table's log alone."""
    with translate_delta_errors(control_table, "reading the control table"):
        table = open_if_exists(control_table)
        partitions = [] if table is None else table.partitions()
    return sorted({each["pipeline"] for each in partitions})
