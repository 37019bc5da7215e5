"""The broker, registry, Spark Connect server and Airflow that all workers of a test run share.

The first worker that needs a part starts it. Pytest's main process stops all parts when it ends,
even after an interrupt. Tests that kill or configure a part start their own.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support import PROJECT, openlineage
from tests.support.registry import Registry, RegistryServer
from tidemark.app import App
from tidemark.connections import connection_variable, kafka_connection
from tidemark.dev.airflow_standalone import AirflowStandalone
from tidemark.dev.broker import Broker, BrokerConfig, BrokerStatus
from tidemark.lake.local_files import locked
from tidemark.spark.engine import Server
from tidemark.spark.server import SparkServer
from tidemark.spark.settings import server_settings
from tidemark.spec.layout import Layout


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of one test run; each method starts its part unless the part already runs.

    Attributes:
        home: Folder of the parts' files.
    """

    home: Path

    @classmethod
    def of_this_run(cls) -> Parts:
        """Return parts in a new folder."""
        return cls(Path(tempfile.mkdtemp(prefix="tidemark-tests-")))

    @property
    def layout(self) -> Layout:
        """This checkout, with the folder of the run."""
        return Layout(project=PROJECT, home=self.home)

    @property
    def lineage(self) -> Path:
        """Folder of the OpenLineage events of the shared Airflow."""
        return self.home / "lineage"

    def broker(self) -> BrokerStatus:
        """Return one Kafka node."""
        return self._broker.start()

    def registry(self) -> Registry:
        """Return a schema registry that keeps its schemas in memory."""
        return self._registry.start()

    def connect_server(self) -> Server:
        """Return a Spark Connect server."""
        self._connect_server.start(lambda _: None)
        found = self._connect_server.running()
        assert found is not None
        return found

    @contextmanager
    def airflow(self, specs: Mapping[str, str]) -> Iterator[AirflowStandalone]:
        """Run an Airflow with the shared broker and the shared Spark Connect server.

        The last of concurrent blocks stops it, because an idle Airflow slows down other tests.

        Args:
            specs: Texts of the pipelines' specs, by name.
        """
        self.connect_server()
        folder = self.home / "pipelines"
        app = App(
            environ={
                **os.environ,
                "TIDEMARK_HOME": str(self.home),
                "TIDEMARK_PIPELINES": str(folder),
                connection_variable("kafka_default"): kafka_connection(self.broker().bootstrap),
                # Airflow chooses the password of `ada`, whose role is viewer.
                "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin,ada:viewer",
                **openlineage.settings(self.lineage),
            }
        )
        airflow, lock = app.airflow(), self.home / "airflow.lock"
        with locked(lock):
            folder.mkdir(exist_ok=True)
            self.lineage.mkdir(exist_ok=True)
            for name, text in specs.items():
                (folder / f"{name}.yaml").write_text(text)
            airflow.start(progress=print)
            self._add_users(1)
        try:
            yield airflow
        finally:
            with locked(lock):
                if self._add_users(-1) == 0:
                    airflow.stop()

    def stop(self) -> None:
        """Stop all running parts, and remove the folder."""
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, self.home)
            stack.callback(self._broker.stop)
            stack.callback(self._registry.stop)
            stack.callback(self._connect_server.stop)
            stack.callback(AirflowStandalone(self.layout, {}).stop)

    def _add_users(self, change: int) -> int:
        """Change the number of blocks that use the Airflow, and return it."""
        file = self.home / "airflow.users"
        users = (int(file.read_text()) if file.exists() else 0) + change
        file.write_text(str(users))
        return users

    @property
    def _broker(self) -> Broker:
        return Broker(BrokerConfig(home=self.layout.broker, jars=self.layout.kafka_jars))

    @property
    def _registry(self) -> RegistryServer:
        return RegistryServer(self.home / "registry")

    @property
    def _connect_server(self) -> SparkServer:
        settings = {
            "spark.master": "local[2]",
            "spark.driver.memory": "2g",
            "spark.sql.shuffle.partitions": "2",
        }
        return SparkServer(self.layout.spark, os.environ, server_settings(self.layout, settings))
