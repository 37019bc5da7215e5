"""The engine of Spark jobs: selection, settings, and checks of a Spark Connect server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tidemark.spark.engine import (
    TOKEN_VARIABLE,
    Engine,
    Server,
    Submit,
    engine_of,
    without_secrets,
)
from tidemark.spark.stores import check_log_stores, class_path_variable, endpoint_settings
from tidemark.spec.layout import Layout
from tidemark.spec.model import PipelineSpec

if TYPE_CHECKING:
    from tidemark.spark.server import SparkServer


@dataclass(frozen=True)
class Engines:
    """The engines that a home can use.

    Attributes:
        layout: Folders and tables of the home.
        environ: The environment, which may have the token of a server.
    """

    layout: Layout
    environ: Mapping[str, str]

    def select(self, master: str | None = None) -> Engine:
        """Return the engine of jobs.

        Args:
            master: A Spark master, or the address of a Spark Connect server. None is the server of
                this home while it runs, else spark-submit on this machine. An invalid address
                raises SetupError.
        """
        if master is None:
            return self.server().running() or Submit("local[*]")
        engine = engine_of(master, self.environ.get(TOKEN_VARIABLE, ""))
        return self.with_own_token(engine) if isinstance(engine, Server) else engine

    def with_own_token(self, server: Server) -> Server:
        """Return the server of this home with the token of its file, or another server unchanged.

        Raises SetupError if another version of this package started the server of this home.
        """
        if server.token or not self._is_own(server):
            return server
        running = self.server().running()
        return replace(server, token=running.token) if running else server

    def server(
        self, *, port: int = 0, records: int | None = None, log_to_file: bool = True
    ) -> SparkServer:
        """Return the Spark Connect server of this home.

        Args:
            port: Its port; 0 selects a free port.
            records: Largest possible number of records of one job, which selects the settings of
                the JVM of a new server; None if it is unknown.
            log_to_file: Whether it logs to a file of its folder, else to standard error.
        """
        from tidemark.spark.server import SparkServer
        from tidemark.spark.settings import server_settings

        settings = server_settings(
            self.layout,
            endpoint_settings(self.environ),
            records=records,
            log_to_file=log_to_file,
        )
        environ = {**self.environ, **class_path_variable(self.layout, self.environ)}
        return SparkServer(self.layout.spark, environ, settings, port=port)

    def check(self, server: Server, specs: Sequence[PipelineSpec]) -> None:
        """Raise an error if some pipelines cannot use a Spark Connect server.

        The error is EngineUnavailable if the server does not answer, else SetupError.
        `tidemark spark start` has already checked the server of this home.
        """
        from tidemark.spark.connect import connect_sessions

        for spec in specs:
            if spec.spark:
                with connect_sessions(server, spec.spark) as sessions:
                    sessions.shared()
        if not self._is_own(server) or self.server().running() != server:
            self.check_requirements(server, specs)

    def check_requirements(self, server: Server, specs: Sequence[PipelineSpec] = ()) -> None:
        """Check all requirements of a Spark Connect server; raises the errors of `check`."""
        from tidemark.spark.connect import connect_sessions
        from tidemark.spark.server import REDACTION
        from tidemark.spark.server_requirements import check_requirements
        from tidemark.spark.settings import AVRO_LIMITS

        tables = [table for spec in specs for table in self._tables(spec)]
        elsewhere = [each for each in tables if not each.startswith(f"{self.layout.lakehouse}/")]
        with connect_sessions(server, {}) as sessions:
            check_requirements(
                sessions,
                java_properties=AVRO_LIMITS,
                redaction=REDACTION,
                locations=[self.layout.lakehouse, *elsewhere],
                runs_python=any(spec.decode and spec.decode.uses_python for spec in specs),
            )

    def submit_settings(self, spec: PipelineSpec, offsets: int | None = None) -> dict[str, str]:
        """Return the `--conf` settings of a job by spark-submit.

        Args:
            spec: The pipeline of the job, or one of several with the same Spark settings.
            offsets: Maximum number of offsets that the job reads, which selects the settings of the
                JVM; None if it is unknown.

        Raises:
            SetupError: A table is in S3, whose jars are not set up.
        """
        settings = self.application_settings(spec.spark, offsets)
        check_log_stores([self.layout.lakehouse, *self._tables(spec)], settings)
        return settings

    def application_settings(
        self, overrides: Mapping[str, str], offsets: int | None = None
    ) -> dict[str, str]:
        """Return the settings of an application; see `submit_settings`."""
        from tidemark.spark.settings import submit_settings

        return submit_settings(
            self.layout, {**endpoint_settings(self.environ), **overrides}, offsets
        )

    def application_environment(self) -> dict[str, str]:
        """Return the environment of an application: the process's without secrets, and the jars."""
        variables = class_path_variable(self.layout, self.environ)
        return {**without_secrets(self.environ), **variables}

    def _tables(self, spec: PipelineSpec) -> list[str]:
        return [self.layout.data_table(target) for target in spec.targets.values()]

    def _is_own(self, server: Server) -> bool:
        return self.server().status().address == f"sc://{server.host}:{server.port}"
