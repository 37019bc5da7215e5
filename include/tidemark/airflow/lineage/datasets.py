"""OpenLineage datasets of landed plans, checks and merges, with their facets.

Sources: OpenLineage's specification 2-0-2, its naming of datasets, and its rules for custom facets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import attr
from airflow.providers.openlineage.extractors import OperatorLineage
from openlineage.client.event_v2 import InputDataset, OutputDataset
from openlineage.client.facet_v2 import (
    DatasetFacet,
    InputDatasetFacet,
    OutputDatasetFacet,
    data_quality_assertions_dataset,
    dataset_version_dataset,
    input_statistics_input_dataset,
    output_statistics_output_dataset,
    storage_dataset,
)

from tidemark.airflow.connections import connected_app
from tidemark.airflow.lineage.columns import (
    RECORD_FIELDS,
    ColumnLineage,
    bronze_lineage,
    quarantine_lineage,
    schema_facet,
    typed_lineage,
    upsert_lineage,
)
from tidemark.airflow.lineage.places import Place, table_place, topic_place
from tidemark.app import App
from tidemark.core.accounting import Landing
from tidemark.core.origins import DecodeOrigin
from tidemark.core.plan import Plan
from tidemark.lake.data_table import DeltaDataTable
from tidemark.pipelines import Outcomes
from tidemark.quality.check_results import Severity
from tidemark.quality.errors import QualityFailed
from tidemark.spec.fields import FieldType

PRODUCER = "x-tidemark://tidemark"
FACET_SCHEMAS = "x-tidemark://openlineage/1-0-0/facets.json"
"""URI of the file facets-1-0-0.json beside this module. A changed schema has another version."""

OFFSETS = "tidemark_offsets"
MERGE = "tidemark_merge"


@attr.define
class TidemarkOffsetsInputDatasetFacet(InputDatasetFacet):
    """The plans whose records a task read from a topic or table."""

    plans: list[dict[str, Any]]

    @staticmethod
    def _get_schema() -> str:
        return f"{FACET_SCHEMAS}#/$defs/TidemarkOffsetsInputDatasetFacet"


@attr.define
class TidemarkOffsetsOutputDatasetFacet(OutputDatasetFacet):
    """The plans that a task landed in a table."""

    plans: list[dict[str, Any]]

    @staticmethod
    def _get_schema() -> str:
        return f"{FACET_SCHEMAS}#/$defs/TidemarkOffsetsOutputDatasetFacet"


@attr.define
class TidemarkMergeOutputDatasetFacet(OutputDatasetFacet):
    """The merge that brought an upsert table up to date."""

    pipeline: str
    source: dict[str, str]
    scope: str
    typedVersion: int  # noqa: N815  fields of facets are in camel case
    plans: list[int]
    undone: list[int]
    sinceVersion: int | None = None  # noqa: N815

    @staticmethod
    def _get_schema() -> str:
        return f"{FACET_SCHEMAS}#/$defs/TidemarkMergeOutputDatasetFacet"


def lineage_of(outcomes: Outcomes) -> OperatorLineage[Any, Any]:
    """Return what a task read and wrote, by its results and by the tables.

    A failed plan is left out, except for the results of a failed check.
    """
    done = [each for each in outcomes.records if _has_lineage(each)]
    landed = {each["pipeline"] for each in done if "wrote" in each}
    specs = App.from_environment().valid_specs(landed)
    task = _TaskDatasets(connected_app(*(spec.name for spec in specs if spec.reads_kafka)))
    for each in done:
        if "wrote" in each:
            task.add_landing(each["pipeline"], each["plan"])
        elif "typed_version" in each:
            task.add_merge(each["pipeline"], each)
        else:
            task.add_check(each["pipeline"], each["plan"])
    return task.lineage()


def _has_lineage(result: Mapping[str, Any]) -> bool:
    """Return whether a result is of a landed plan, of a check, or of a merge."""
    return any(name in result for name in ("wrote", "typed_version", "checks")) or (
        result.get("error") == QualityFailed.__name__
    )


@dataclass
class _Dataset:
    """One dataset of a task. Several plans of the task may have read or written it."""

    facets: dict[str, DatasetFacet] = field(default_factory=dict)
    plans: list[dict[str, Any]] = field(default_factory=list)
    version: int = -1
    records: int | None = None
    size: int | None = 0
    assertions: list[data_quality_assertions_dataset.Assertion] = field(default_factory=list)
    merge: TidemarkMergeOutputDatasetFacet | None = None

    def count(self, records: int, size: int | None = None) -> None:
        """Add rows that were read or written. An unknown size (None) makes the sum unknown."""
        self.records = (self.records or 0) + records
        self.size = None if size is None or self.size is None else self.size + size

    def all_facets(self) -> dict[str, DatasetFacet]:
        """Return the facets, with the version if it is known."""
        if self.version < 0:
            return self.facets
        newest = dataset_version_dataset.DatasetVersionDatasetFacet(str(self.version))
        return {**self.facets, "version": newest}

    def input(self, place: Place) -> InputDataset:
        """Return the dataset as an input."""
        own: dict[str, InputDatasetFacet] = {}
        if self.records is not None:
            own["inputStatistics"] = (
                input_statistics_input_dataset.InputStatisticsInputDatasetFacet(
                    rowCount=self.records
                )
            )
        if self.plans:
            own[OFFSETS] = TidemarkOffsetsInputDatasetFacet(self.plans, producer=PRODUCER)
        if self.assertions:
            own["dataQualityAssertions"] = (
                data_quality_assertions_dataset.DataQualityAssertionsDatasetFacet(self.assertions)
            )
        return InputDataset(*place, facets=self.all_facets(), inputFacets=own)

    def output(self, place: Place) -> OutputDataset:
        """Return the dataset as an output."""
        own: dict[str, OutputDatasetFacet] = {}
        if self.records is not None:
            own["outputStatistics"] = (
                output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
                    rowCount=self.records, size=self.size
                )
            )
        if self.plans:
            own[OFFSETS] = TidemarkOffsetsOutputDatasetFacet(self.plans, producer=PRODUCER)
        if self.merge:
            own[MERGE] = self.merge
        return OutputDataset(*place, facets=self.all_facets(), outputFacets=own)


class _TaskDatasets:
    """Collects the datasets of one task."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._inputs: dict[Place, _Dataset] = {}
        self._outputs: dict[Place, _Dataset] = {}

    def lineage(self) -> OperatorLineage[Any, Any]:
        """Return all datasets."""
        return OperatorLineage(
            inputs=[each.input(place) for place, each in self._inputs.items()],
            outputs=[each.output(place) for place, each in self._outputs.items()],
        )

    def add_landing(self, pipeline: str, sequence: int) -> None:
        """Add a plan of a bronze table or typed table, unless it has not landed."""
        landed = self._landed(pipeline, sequence)
        if landed is None:
            return
        add = self._add_ingest if self._app.spec(pipeline).reads_kafka else self._add_decode
        add(*landed)

    def _landed(self, pipeline: str, sequence: int) -> tuple[Plan, Landing] | None:
        """Return a plan with its landing; None if it has not landed."""
        record = self._app.control.plan_record(pipeline, sequence)
        if record is None or record.landed_originally is None:
            return None
        return record.plan, record.landed_originally

    def _add_ingest(self, plan: Plan, landing: Landing) -> None:
        spec = self._app.spec(plan.pipeline)
        bootstrap = self._app.connections.bootstrap_servers(spec.connection)[0]
        topic = topic_place(bootstrap, plan.topic)
        target, table = self._table(spec.target)
        described = _described(plan, landing, topic, target)
        columns = table.columns()
        read = self._inputs.setdefault(topic, _Dataset())
        read.facets = {
            "schema": schema_facet({n: columns[n] for n in RECORD_FIELDS if n in columns})
        }
        read.plans.append(described)
        read.count(landing.records)
        written = self._outputs.setdefault(target, _Dataset())
        written.facets = _table_facets(columns, bronze_lineage(topic, columns))
        written.plans.append(described)
        written.version = max(written.version, landing.table_version)
        written.count(landing.records, table.stored_bytes(plan.sequence))

    def _add_decode(self, plan: Plan, landing: Landing) -> None:
        spec = self._app.spec(plan.pipeline)
        live = self._app.spec(spec.ref.live)
        decode = live.decoding()
        bronze, bronze_table = self._table(live.target)
        read = self._inputs.setdefault(bronze, _Dataset())
        read.facets = _table_facets(bronze_table.columns())
        read.count(landing.records)
        if isinstance(plan.origin, DecodeOrigin):
            read.version = max(read.version, plan.origin.version)
        for target, lineage in (
            (decode.target, typed_lineage),
            (decode.quarantine_target, quarantine_lineage),
        ):
            place, table = self._table(target)
            # The ledger's landing counts the rows of both tables.
            own = table.find_landing(plan)
            if own is None:
                continue
            described = _described(plan, own, bronze, place)
            columns = table.columns()
            written = self._outputs.setdefault(place, _Dataset())
            written.facets = _table_facets(columns, lineage(bronze, columns, decode))
            written.plans.append(described)
            written.version = max(written.version, own.table_version)
            written.count(own.records, table.stored_bytes(plan.sequence))
            if target == decode.target:
                read.plans.append(_described(plan, landing, bronze, place))

    def add_check(self, pipeline: str, sequence: int) -> None:
        """Add the newest check of a plan, without values of records."""
        landed = self._landed(pipeline, sequence)
        checked = self._app.pipeline(pipeline).check_results.checked(pipeline, [sequence])
        if landed is None or not checked:
            return
        plan, landing = landed
        place, table = self._table(self._app.spec(pipeline).target)
        read = self._inputs.setdefault(place, _Dataset())
        read.facets = _table_facets(table.columns())
        read.plans.append(_described(plan, landing, None, place))
        read.version = max(read.version, landing.table_version)
        read.count(landing.records)
        read.assertions += [
            data_quality_assertions_dataset.Assertion(
                assertion=result.check,
                success=result.passed,
                column=result.column,
                severity=_SEVERITIES[result.severity],
                params={"plan": sequence},
            )
            for result in checked[0].results
        ]

    def add_merge(self, pipeline: str, merge: Mapping[str, Any]) -> None:
        """Add a merge.

        Args:
            pipeline: Name of the live pipeline.
            merge: The plain values of `MergePlan.as_record`.
        """
        live = self._app.spec(pipeline)
        decode, upsert = live.decoding(), live.upsert()
        typed_name = str(live.typed_spec().ref)
        typed, typed_table = self._table(decode.target)
        place, table = self._table(upsert.target)
        read = self._inputs.setdefault(typed, _Dataset())
        read.facets = _table_facets(typed_table.columns())
        read.version = merge["typed_version"]
        for sequence in merge["plans"]:
            if landed := self._landed(typed_name, sequence):
                plan, landing = landed
                decoded = typed_table.find_landing(plan) or landing
                read.plans.append(_described(plan, decoded, None, typed))
        columns = table.columns()
        written = self._outputs.setdefault(place, _Dataset())
        written.facets = _table_facets(columns, upsert_lineage(typed, columns, upsert))
        committed = self._app.pipeline(pipeline).upserts.table.version_of_merge(read.version)
        written.version = -1 if committed is None else committed
        written.merge = TidemarkMergeOutputDatasetFacet(
            pipeline=pipeline,
            source=typed.as_record(),
            scope=merge["scope"],
            typedVersion=read.version,
            sinceVersion=merge["since"],
            plans=merge["plans"],
            undone=merge["undone"],
            producer=PRODUCER,
        )

    def _table(self, target: str) -> tuple[Place, DeltaDataTable]:
        uri = self._app.layout.data_table(target)
        return table_place(uri), DeltaDataTable(uri)


_SEVERITIES = {Severity.CRITICAL: "error", Severity.WARNING: "warn", Severity.INFO: "info"}
"""OpenLineage's names of severities; OpenLineage defines none for `info`."""


def _described(plan: Plan, landing: Landing, source: Place | None, target: Place) -> dict[str, Any]:
    """Return a landed plan as an element of the facet `tidemark_offsets`."""
    return {
        "pipeline": plan.pipeline,
        "plan": plan.sequence,
        "kind": plan.kind.value,
        "replaces": plan.replaces,
        "topic": plan.topic,
        "topicId": plan.topic_id,
        "isolationLevel": plan.isolation_level.value,
        **({"source": source.as_record()} if source else {}),
        "target": target.as_record(),
        "tableVersion": landing.table_version,
        "records": landing.records,
        "ranges": [
            {"partition": each.partition, "start": each.start, "end": each.end}
            for each in plan.ranges
        ],
    }


def _table_facets(
    columns: Mapping[str, FieldType], lineage: ColumnLineage | None = None
) -> dict[str, DatasetFacet]:
    facets: dict[str, DatasetFacet] = {
        "schema": schema_facet(columns),
        "storage": storage_dataset.StorageDatasetFacet(storageLayer="delta", fileFormat="parquet"),
    }
    return {**facets, "columnLineage": lineage} if lineage else facets
