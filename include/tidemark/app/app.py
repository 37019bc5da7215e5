"""`App`: the settings and connections of one home, and a factory of `Pipeline` objects.

Only this module reads Tidemark's settings from the environment. Exceptions are options of commands,
the console's token and the format of log lines. A function imports the heavy libraries that it
needs: a DAG file that reads the specs loads only the YAML parser.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tidemark.app.adapters import Adapters, utc_now
from tidemark.app.connections import (
    LOCAL_CONNECTION,
    SPARK_CONNECTION,
    Connections,
    connection_variable,
    spark_connection,
)
from tidemark.app.engines import Engines
from tidemark.core.errors import InvalidReference, SetupError, TidemarkError
from tidemark.delta.kept_files import keep_files_in
from tidemark.spark.engine import Server
from tidemark.spark.sessions import ApplicationSessions, Sessions
from tidemark.spec.errors import UnknownPipeline
from tidemark.spec.layout import Layout
from tidemark.spec.model import PipelineSpec
from tidemark.spec.ref import PipelineKind, PipelineRef
from tidemark.spec.targets import CREDENTIALS, WITHOUT_CREDENTIALS, has_credentials, has_spaces

if TYPE_CHECKING:
    from tidemark.app.pipeline import Pipeline
    from tidemark.bronze.ingest.protocols import ControlTable
    from tidemark.delta.control_repair import DeltaControlRepair
    from tidemark.delta.data_table import DeltaDataTable
    from tidemark.kafka.topics import KafkaTopics
    from tidemark.local.airflow_standalone import AirflowStandalone
    from tidemark.local.failpoints import FailPoint
    from tidemark.ops.maintenance.service import Maintenance
    from tidemark.ops.report.cluster import ClusterReport
    from tidemark.spec.loading import SpecFolder
    from tidemark.sql.tables import Catalog

_Adapter = TypeVar("_Adapter")


@dataclass(frozen=True)
class App:
    """Tidemark on one machine.

    Attributes:
        environ: The environment; tests and DAGs pass their own.
        sessions: Provides the Spark sessions of jobs.
        kafka_timeout_s: As in `Adapters`.
        find_connection: As `find` of `Connections`; None for the variables `AIRFLOW_CONN_<ID>`.
    """

    environ: Mapping[str, str]
    sessions: Sessions = field(default_factory=ApplicationSessions)
    kafka_timeout_s: float | None = None
    find_connection: Callable[[str], str | None] | None = None

    @classmethod
    def from_environment(cls, extra: Mapping[str, str] | None = None) -> App:
        """Return the app of this process; `extra` wins over the process's variables."""
        return cls(environ={**os.environ, **(extra or {})})

    @cached_property
    def layout(self) -> Layout:
        """Folders, by TIDEMARK_PROJECT, TIDEMARK_HOME and TIDEMARK_LAKEHOUSE.

        Raises:
            SetupError: The URI of the lakehouse has credentials or spaces.
        """
        project = Path(self.environ.get("TIDEMARK_PROJECT", Path(__file__).parents[3])).resolve()
        home = Path(self.environ.get("TIDEMARK_HOME", project / ".tidemark")).resolve()
        lakehouse = self.environ.get("TIDEMARK_LAKEHOUSE")
        if lakehouse and has_credentials(lakehouse):
            raise SetupError(
                finding="TIDEMARK_LAKEHOUSE contains credentials or a query.",
                needed=WITHOUT_CREDENTIALS,
                seen=CREDENTIALS,
                advice="Remove them from the variable, and give credentials by the machine's role "
                "or the storage's own variables (docs/how-to/storage.md).",
            )
        if lakehouse and has_spaces(lakehouse):
            raise SetupError(
                finding=f"TIDEMARK_LAKEHOUSE is a URI with spaces: {lakehouse!r}.",
                advice="Set the variable to a URI without spaces.",
            )
        if lakehouse and "://" not in lakehouse:
            lakehouse = str(Path(lakehouse).resolve())
        layout = Layout(project=project, home=home, lakehouse_root=lakehouse)
        keep_files_in(layout.log_copies)
        return layout

    # -- pipelines ---------------------------------------------------------------------------------

    def pipeline(self, ref: PipelineRef | str, sessions: Sessions | None = None) -> Pipeline:
        """Return a pipeline.

        Args:
            ref: The pipeline.
            sessions: Provides the Spark sessions; None for the ones of this app.

        Raises:
            UnknownPipeline, SpecError: There is no valid spec of this name.
            InvalidReference: The reference names another table of a pipeline, such as
                `prices@typed`; the spec defines no such table; or no table can have this name.
        """
        from tidemark.app.pipeline import Pipeline

        spec = self.spec(ref)
        if not spec.reads_kafka:
            raise InvalidReference.of_typed(spec.name, spec.origin)
        return Pipeline(
            Adapters(
                spec=spec,
                layout=self.layout,
                connections=self.connections,
                sessions=sessions or self.sessions,
                control=self.control,
                wrap=self.wrap_adapter,
                now=utc_now,
                kafka_timeout_s=self.kafka_timeout_s,
            )
        )

    def pipeline_of(self, ref: PipelineRef | str, sessions: Sessions | None = None) -> Pipeline:
        """Return the pipeline of one of its tables, such as `prices` of `prices@typed`."""
        return self.pipeline(self.spec(ref).ref.live, sessions)

    def table_version(self, ref: PipelineRef | str) -> int:
        """Return the newest version of a table; -1 if it does not exist."""
        return self._table(ref).version()

    def may_have_changed_rows(self, ref: PipelineRef | str, since: int) -> bool:
        """Return whether rows of a table may have changed after a version."""
        return self._table(ref).may_have_changed_rows(since)

    def _table(self, ref: PipelineRef | str) -> DeltaDataTable:
        from tidemark.delta.data_table import DeltaDataTable

        return DeltaDataTable(self.layout.data_table(self.spec(ref).target))

    def spec(self, ref: PipelineRef | str) -> PipelineSpec:
        """Return the spec of a pipeline, or of one of its other tables.

        Raises:
            UnknownPipeline, SpecError, InvalidReference: As `pipeline`.
        """
        ref = PipelineRef.parse(ref) if isinstance(ref, str) else ref
        if ref.name not in self.specs:
            if ref.name in self.spec_folder.broken:
                raise self.spec_folder.broken[ref.name]
            # The name may be in a file with another name.
            self.spec_folder.check()
            raise UnknownPipeline(pipeline=str(ref), known=tuple(self.specs))
        live = self.specs[ref.name]
        match ref.kind:
            case PipelineKind.LIVE:
                return live
            case PipelineKind.TYPED:
                return live.typed_spec()
            case PipelineKind.UPSERT:
                return live.upsert_spec()
            case PipelineKind.QUARANTINE:
                rule = "NAME, NAME@typed or NAME@upsert"
                raise InvalidReference.of_name(rule=rule, seen=repr(str(ref)))

    @property
    def specs_path(self) -> Path:
        """Folder of the pipeline specs, by TIDEMARK_PIPELINES."""
        specs = self.environ.get("TIDEMARK_PIPELINES")
        return Path(specs).resolve() if specs else self.layout.specs

    @cached_property
    def spec_folder(self) -> SpecFolder:
        """Every pipeline spec.

        Raises:
            SpecError: The folder does not exist.
        """
        from tidemark.spec.loading import load_specs

        return load_specs(self.specs_path, self.layout, self.recorded_pipelines, self.table_owner)

    def recorded_pipelines(self) -> list[str]:
        """Return the names of all pipelines in the control table."""
        from tidemark.sql.tables import recorded_pipelines

        return recorded_pipelines(self.layout.control_table)

    @staticmethod
    def table_owner(uri: str) -> str | None:
        """Return the pipeline that a table's property names; None without a table or property."""
        from tidemark.delta.table_checks import table_owner

        return table_owner(uri)

    @property
    def specs(self) -> Mapping[str, PipelineSpec]:
        """Every valid spec of `spec_folder`, by name."""
        return self.spec_folder.specs

    def valid_specs(self, refs: Iterable[str]) -> list[PipelineSpec]:
        """Return the specs of some tables, without tables that no valid spec defines.

        The next step refuses these and continues with the others.
        """
        specs = []
        for ref in refs:
            with suppress(TidemarkError):
                specs.append(self.spec(ref))
        return specs

    # -- what pipelines share ----------------------------------------------------------------------

    @cached_property
    def connections(self) -> Connections:
        """The connections of this home."""
        return Connections(self.find_connection or self._variable, self._local_bootstrap)

    def _variable(self, connection: str) -> str | None:
        return self.environ.get(connection_variable(connection))

    @cached_property
    def engines(self) -> Engines:
        """Engines of Spark jobs."""
        return Engines(self.layout, self.environ)

    @cached_property
    def control(self) -> ControlTable:
        """The control table."""
        from tidemark.delta.control_table import DeltaControlTable

        return self.wrap_adapter("control", DeltaControlTable(self.layout.control_table))

    def control_repair(self) -> DeltaControlRepair:
        """Return the repair of the control table's files. Needs neither a JVM nor Kafka."""
        from tidemark.delta.control_repair import DeltaControlRepair

        return DeltaControlRepair(self.layout.control_table)

    # -- maintenance and queries -------------------------------------------------------------------

    def data_tables(self, *pipelines: str) -> list[str]:
        """Return the tables that `maintenance` accepts, of some pipelines or of all.

        A name such as `prices@typed` stands for this table alone.
        """
        tables = []
        for spec in map(self.spec, pipelines or self.specs):
            tables.append(spec.name)
            if spec.decode and spec.ref.kind is PipelineKind.LIVE:
                kinds = [PipelineKind.TYPED, PipelineKind.QUARANTINE]
                kinds += [PipelineKind.UPSERT] if spec.has_upsert else []
                tables += [str(spec.ref.of_kind(kind)) for kind in kinds]
        return tables

    def maintenance(self, table: str) -> Maintenance:
        """Return the maintenance of one of `data_tables`. Needs no JVM."""
        ref = PipelineRef.parse(table)
        return self.pipeline(ref.live).maintenance(ref.kind)

    def shared_maintenance(self) -> list[Maintenance]:
        """Return the maintenance of the tables that pipelines share."""
        from tidemark.ops.maintenance.service import shared_maintenance

        return shared_maintenance(self.layout, self.wrap_adapter, utc_now)

    def sql_tables(self) -> Catalog:
        """Return the tables that SQL can name: those of all valid specs, and the shared ones."""
        from tidemark.sql.tables import catalog

        return catalog(self.layout, self.specs.values())

    def cluster(self, connection: str, timeout_seconds: float = 30.0) -> ClusterReport:
        """Return reports about a connection's Kafka cluster and the pipelines that read it."""
        from tidemark.kafka.cluster import KafkaClusterReader
        from tidemark.ops.report.cluster import ClusterReport

        reader = KafkaClusterReader(self.connections.kafka_config(connection), timeout_seconds)
        specs = tuple(self.specs.values())
        return ClusterReport(connection, reader, specs, self.connections.addresses)

    def topics(self, connection: str) -> KafkaTopics:
        """Return the topics of a connection's Kafka cluster, to create and to sample them."""
        from tidemark.kafka.topics import KafkaTopics

        return KafkaTopics(self.connections.kafka_config(connection))

    # -- the Airflow and the broker of this home ---------------------------------------------------

    def airflow(self, *, port: int = 0) -> AirflowStandalone:
        """Return the Airflow of this home, with the connections of this environment."""
        from tidemark.local.airflow_standalone import AirflowStandalone

        environ = {**self.connections.variables([LOCAL_CONNECTION]), **self.environ}
        spark = self.engines.server().status()
        if spark.running:
            connection = spark_connection(Server.parse(spark.address))
            environ.setdefault(connection_variable(SPARK_CONNECTION), connection)
        return AirflowStandalone(self.layout, environ, port=port)

    def _local_bootstrap(self) -> str | None:
        from tidemark.local.broker import home_broker

        status = home_broker(self.layout).status()
        return status.bootstrap if status.running else None

    # -- tests of crashes --------------------------------------------------------------------------

    @cached_property
    def _fail_point(self) -> FailPoint | None:
        """The fail point of TIDEMARK_FAIL_AT; None without this variable (local/failpoints.py)."""
        text = self.environ.get("TIDEMARK_FAIL_AT")
        if text is None:
            return None
        from tidemark.local.failpoints import FailPoint

        return FailPoint(text)

    def wrap_adapter(self, name: str, adapter: _Adapter, /) -> _Adapter:
        return self._fail_point.wrap(name, adapter) if self._fail_point else adapter
