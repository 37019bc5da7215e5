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

from tests.support import PROJECT
from tests.support.registry import Registry, RegistryServer
from tidemark.app.app import App
from tidemark.app.connections import connection_variable, kafka_connection
from tidemark.delta.local_files import locked
from tidemark.local.airflow_standalone import AirflowStandalone
from tidemark.local.broker import Broker, BrokerConfig, BrokerStatus
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

    def airflow(self, specs: Mapping[str, str]) -> AirflowStandalone:
        """Return an Airflow with the shared broker and the shared Spark Connect server.

        It runs until `leave_airflow` was called in each process that has called this method.

        Args:
            specs: Texts of the pipelines' specs, by name.
        """
        from tests.support import openlineage

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
        airflow = app.airflow()
        with self._airflow_users() as users:
            folder.mkdir(exist_ok=True)
            self.lineage.mkdir(exist_ok=True)
            for name, text in specs.items():
                (folder / f"{name}.yaml").write_text(text)
            airflow.start(progress=print)
            users.add(os.getpid())
        return airflow

    def leave_airflow(self) -> None:
        """Stop the Airflow unless another process uses it: idle, it slows down other tests."""
        with self._airflow_users() as users:
            users.discard(os.getpid())
            if not users:
                AirflowStandalone(self.layout, {}).stop()

    def stop(self) -> None:
        """Stop all running parts, and remove the folder."""
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, self.home)
            stack.callback(self._broker.stop)
            stack.callback(self._registry.stop)
            stack.callback(self._connect_server.stop)
            stack.callback(AirflowStandalone(self.layout, {}).stop)

    @contextmanager
    def _airflow_users(self) -> Iterator[set[int]]:
        """Yield the ids of the processes that use the Airflow, which the block may change."""
        file = self.home / "airflow.users"
        with locked(self.home / "airflow.lock"):
            users = {int(each) for each in file.read_text().split()} if file.exists() else set()
            yield users
            file.write_text(" ".join(map(str, users)))

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
