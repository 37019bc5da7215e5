"""OpenLineage datasets of landed plans, checks and merges, with their facets.

Sources: OpenLineage's specification 2-0-2, its naming of datasets, and its rules for custom facets.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

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
from tidemark.app.app import App
from tidemark.app.pipelines import Outcomes
from tidemark.app.steps import Result
from tidemark.core.accounting import Landing
from tidemark.core.errors import TidemarkError
from tidemark.core.ledger import PlanRecord
from tidemark.core.parallel import PLANNING_THREADS, map_in_threads
from tidemark.core.plan import Plan, PlanRef
from tidemark.delta.data_table import DataTableSnapshot, DeltaDataTable
from tidemark.quality.check_results import CheckedPlan, Severity
from tidemark.quality.check_results_table import DeltaCheckResults
from tidemark.quality.errors import QualityFailed
from tidemark.silver.upsert.table import version_of_merge
from tidemark.spec.fields import FieldType
from tidemark.spec.ref import PipelineRef

log = logging.getLogger(__name__)

_MOST_PLANS = 1_000
"""Maximum number of plans of a decode or a merge in its lineage."""

PRODUCER = "x-tidemark://tidemark"
FACET_SCHEMAS = "x-tidemark://openlineage/1-0-0/facets.json"
"""URI of the file facets-1-0-0.json beside this module. A changed schema has another version."""

OFFSETS = "tidemark_offsets"
MERGE = "tidemark_merge"


@attr.define
class TidemarkOffsetsInputDatasetFacet(InputDatasetFacet):
    """The plans whose records a task read from a topic or table."""

    _additional_skip_redact: ClassVar[list[str]] = ["plans"]

    plans: list[dict[str, Any]]

    @staticmethod
    def _get_schema() -> str:
        return f"{FACET_SCHEMAS}#/$defs/TidemarkOffsetsInputDatasetFacet"


@attr.define
class TidemarkOffsetsOutputDatasetFacet(OutputDatasetFacet):
    """The plans whose records a task wrote to a table."""

    _additional_skip_redact: ClassVar[list[str]] = ["plans"]

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
    removed: int
    sinceVersion: int | None = None  # noqa: N815

    @staticmethod
    def _get_schema() -> str:
        return f"{FACET_SCHEMAS}#/$defs/TidemarkMergeOutputDatasetFacet"


def lineage_of(app: App, outcomes: Outcomes) -> OperatorLineage[Any, Any]:
    """Return what a task read and wrote, by its results and by the tables.

    A failed plan is left out, except for the results of a failed check. A pipeline whose tables
    cannot be read is left out and logged.
    """
    done = [each for each in outcomes.records if _has_lineage(each)]
    recorded = _Recorded.of(app, done)
    by_pipeline: dict[str, list[Result]] = {}
    for each in done:
        by_pipeline.setdefault(PipelineRef.parse(each["pipeline"]).name, []).append(each)

    def read(name: str) -> _Datasets:
        reader = _Reader(app, recorded)
        for each in by_pipeline[name]:
            reader.add(each)
        return reader.datasets

    datasets = _Datasets()
    found = map_in_threads(list(by_pipeline), read, PLANNING_THREADS)
    for name, own in zip(by_pipeline, found, strict=True):
        if isinstance(own, TidemarkError):
            kind = type(own).__name__
            log.warning("lineage not collected pipeline=%s error=%s message=%s", *(name, kind, own))
        else:
            datasets.add(own)
    return datasets.lineage()


def _has_lineage(result: Mapping[str, Any]) -> bool:
    """Return whether a result is of a landed plan, a check, a decode or a merge."""
    names = ("wrote", "typed_version", "checks", "quarantined")
    return any(name in result for name in names) or (result.get("error") == QualityFailed.__name__)


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

    def add(self, other: _Dataset) -> None:
        """Add what other plans read or wrote."""
        self.facets = other.facets
        self.plans += other.plans
        self.version = max(self.version, other.version)
        if other.records is not None:
            self.count(other.records, other.size)
        self.assertions += other.assertions
        self.merge = other.merge or self.merge

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


@dataclass
class _Datasets:
    """The datasets of a task, or of one pipeline of the task."""

    inputs: dict[Place, _Dataset] = field(default_factory=dict)
    outputs: dict[Place, _Dataset] = field(default_factory=dict)

    def add(self, others: _Datasets) -> None:
        """Add the datasets of another pipeline, which may have read the same topic."""
        for mine, theirs in ((self.inputs, others.inputs), (self.outputs, others.outputs)):
            for place, each in theirs.items():
                mine.setdefault(place, _Dataset()).add(each)

    def lineage(self) -> OperatorLineage[Any, Any]:
        """Return all datasets."""
        return OperatorLineage(
            inputs=[each.input(place) for place, each in self.inputs.items()],
            outputs=[each.output(place) for place, each in self.outputs.items()],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recorded:
    """Records about a task's plans, from the tables that all pipelines share.

    Attributes:
        plans: The plans of the control table.
        checks: The newest checks of the results table.
    """

    plans: Mapping[PlanRef, PlanRecord]
    checks: Mapping[PlanRef, CheckedPlan]

    @classmethod
    def of(cls, app: App, done: Sequence[Result]) -> Self:
        """Read each table once for all results of a task."""
        checked = [ref for each in done if _is_check(each) for ref in _plans_of(each)]
        return cls(
            plans=app.control.plan_records({ref for each in done for ref in _plans_of(each)}),
            checks=DeltaCheckResults(app.layout.quality_results).checked(checked),
        )

    def landed(self, ref: PlanRef) -> tuple[Plan, Landing] | None:
        """Return a plan with its landing; None if it has not landed."""
        record = self.plans.get(ref)
        if record is None or record.landed_originally is None:
            return None
        return record.plan, record.landed_originally


def _is_check(result: Result) -> bool:
    return not any(name in result for name in ("wrote", "typed_version", "quarantined"))


def _plans_of(result: Result) -> list[PlanRef]:
    """Return the bronze plans that a result is about; at most `_MOST_PLANS`, the newest ones."""
    name: str = result["pipeline"]
    plans = result["plans"] if "plans" in result else [result["plan"]]
    return [PlanRef(pipeline=name, sequence=sequence) for sequence in plans[-_MOST_PLANS:]]


class _Reader:
    """Collects the datasets of one pipeline. Reads each of its tables once.

    Attributes:
        datasets: The datasets so far.
    """

    def __init__(self, app: App, recorded: _Recorded) -> None:
        self._app = app
        self._recorded = recorded
        self._tables: dict[str, tuple[Place, DataTableSnapshot]] = {}
        self.datasets = _Datasets()
        self._inputs, self._outputs = self.datasets.inputs, self.datasets.outputs

    def add(self, result: Result) -> None:
        """Add a landed plan, a check, a decode or a merge."""
        if "typed_version" in result:
            self._add_merge(result)
            return
        if "plans" in result:
            self._add_decode(result)
            return
        add = self._add_check if _is_check(result) else self._add_ingest
        for ref in _plans_of(result):
            if landed := self._recorded.landed(ref):
                add(*landed)

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

    def _add_decode(self, result: Result) -> None:
        """Add a decode, the plain values of `Decoded.as_record`."""
        live = self._app.spec(result["pipeline"])
        decode = live.decoding()
        bronze, bronze_table = self._table(live.target)
        read = self._inputs.setdefault(bronze, _Dataset())
        read.facets = _table_facets(bronze_table.columns())
        read.count(result["records"])
        read.version = bronze_table.version
        landed = [each for ref in _plans_of(result) if (each := self._recorded.landed(ref))]
        described = [_described(*each, None, bronze) for each in landed]
        read.plans += described
        quarantined = result["quarantined"]
        for target, lineage, records, version, plans in (
            (
                *(decode.target, typed_lineage, result["records"] - quarantined),
                *(result["table_version"], described),
            ),
            (decode.quarantine_target, quarantine_lineage, quarantined, None, ()),
        ):
            place, table = self._table(target)
            columns = table.columns()
            written = self._outputs.setdefault(place, _Dataset())
            written.facets = _table_facets(columns, lineage(bronze, columns, decode))
            written.version = table.version if version is None else version
            written.count(records)
            written.plans += plans

    def _add_check(self, plan: Plan, landing: Landing) -> None:
        """Add the newest check of a plan, without values of records."""
        checked = self._recorded.checks.get(plan.ref)
        if checked is None:
            return
        place, table = self._table(self._app.spec(plan.pipeline).target)
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
                params={"plan": plan.sequence},
            )
            for result in checked.results
        ]

    def _add_merge(self, merge: Result) -> None:
        """Add a merge, the plain values of `MergePlan.as_record`."""
        live = self._app.spec(merge["pipeline"])
        decode, upsert = live.decoding(), live.upsert()
        typed, typed_table = self._table(decode.target)
        bronze = table_place(self._app.layout.data_table(live.target))
        place, table = self._table(upsert.target)
        read = self._inputs.setdefault(typed, _Dataset())
        read.facets = _table_facets(typed_table.columns())
        read.version = merge["typed_version"]
        for ref in _plans_of(merge):
            if landed := self._recorded.landed(ref):
                read.plans.append(_described(*landed, None, bronze))
        columns = table.columns()
        written = self._outputs.setdefault(place, _Dataset())
        lineage = upsert_lineage(typed, typed_table.columns(), columns, upsert)
        written.facets = _table_facets(columns, lineage)
        committed = version_of_merge(table, read.version)
        written.version = -1 if committed is None else committed
        written.merge = TidemarkMergeOutputDatasetFacet(
            pipeline=merge["pipeline"],
            source=typed.as_record(),
            scope=merge["scope"],
            typedVersion=read.version,
            sinceVersion=merge["since"],
            plans=merge["plans"][-_MOST_PLANS:],
            removed=merge["removed"],
            producer=PRODUCER,
        )

    def _table(self, target: str) -> tuple[Place, DataTableSnapshot]:
        if target not in self._tables:
            uri = self._app.layout.data_table(target)
            snapshot = DeltaDataTable(uri).snapshot()
            if snapshot is None:
                raise FileNotFoundError(f"there is no table at {uri}")
            self._tables[target] = table_place(uri), snapshot
        return self._tables[target]


_SEVERITIES = {Severity.CRITICAL: "error", Severity.WARNING: "warn", Severity.INFO: "info"}
"""OpenLineage's names of severities; OpenLineage defines none for `info`."""


def _described(plan: Plan, landing: Landing, source: Place | None, target: Place) -> dict[str, Any]:
    """Return a landed plan as an element of the facet `tidemark_offsets`.

    Args:
        plan: The plan.
        landing: Its landing as recorded, with the ranges that landed.
        source: The dataset that the task read; None if the plan landed before the task.
        target: The table that has its rows.
    """
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
            for each in landing.counts
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
