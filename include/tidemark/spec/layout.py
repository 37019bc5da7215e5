"""Paths of all files and tables."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

LOG_FOLDER = "spark.tidemark.logs"
"""The Spark setting that contains `Layout.logs`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Folders of a checkout (`project`) and of its running state (`home`).

    Attributes:
        project: Root of the checkout, with dags/, jobs/ and include/.
        home: Folder of the running state: broker data, lakehouse, Airflow. By default `.tidemark`
            in the project; the demo and the tests have homes of their own.
        lakehouse_root: Path or object-store URI of all tables; None for `home`/lakehouse.
    """

    project: Path
    home: Path
    lakehouse_root: str | None = None

    @property
    def specs(self) -> Path:
        """Pipeline specs, one YAML file each."""
        return self.project / "include" / "pipelines"

    @property
    def expectations(self) -> Path:
        """Quality suites, one JSON file each."""
        return self.project / "include" / "expectations"

    def suite(self, name: str) -> Path:
        """File of a quality suite."""
        return self.expectations / f"{name}.json"

    @property
    def jobs(self) -> Path:
        """The spark-submit entry points."""
        return self.project / "jobs"

    @property
    def dags(self) -> Path:
        """The DAG files."""
        return self.project / "dags"

    @property
    def jvm(self) -> Path:
        """JVM parts fetched by `make setup`, shared by every home of the checkout."""
        return self.project / ".tidemark" / "jvm"

    @property
    def spark_jars(self) -> Path:
        """Jars that go before Spark's own class path."""
        return self.jvm / "spark"

    @property
    def store_jars(self) -> tuple[Path, ...]:
        """Folders of jars for S3, if it is set up: downloaded ones, and Tidemark's own classes."""
        own = sorted(jar.parent for jar in self.jvm.glob("stores/*/own/*.jar"))
        return tuple(folder for each in own for folder in (each.with_name("jars"), each))

    @property
    def kafka_jars(self) -> Path:
        """Jars of the embedded broker and Kafka's tools."""
        return self.jvm / "kafka"

    @property
    def class_archive(self) -> Path:
        """Class-data-sharing archive that shortens the start of short Spark jobs."""
        return self.jvm / "spark.jsa"

    @property
    def broker(self) -> Path:
        """Data, logs and process ids of the embedded broker."""
        return self.home / "broker"

    @property
    def spark(self) -> Path:
        """Folder with token, settings and log of the Spark Connect server."""
        return self.home / "spark"

    @property
    def spark_warehouse(self) -> Path:
        """Folder of Spark's own catalog, which Tidemark does not use."""
        return self.home / "spark-warehouse"

    @property
    def airflow(self) -> Path:
        """AIRFLOW_HOME of `make up` and the demo."""
        return self.home / "airflow"

    @property
    def logs(self) -> Path:
        """Java stacks of Spark failures, one file each."""
        return self.home / "logs"

    @property
    def log_copies(self) -> Path:
        """Copies of logs and of the control table in object stores; can be removed at any time."""
        return self.home / "log_copies"

    @property
    def lakehouse(self) -> str:
        """Path or URI of all tables."""
        return self.lakehouse_root or str(self.home / "lakehouse")

    @property
    def own_folders(self) -> tuple[str, ...]:
        """Folders of Tidemark's own tables and files; a pipeline's table must be elsewhere."""
        in_home = (
            *(self.broker, self.spark, self.spark_warehouse, self.airflow, self.logs),
            self.log_copies,
        )
        in_project = (self.specs.parent, self.jobs, self.dags, self.jvm)
        files = map(str, (*in_home, self.data_docs, *in_project))
        return f"{self.lakehouse}/control", f"{self.lakehouse}/quality", *files

    @property
    def control_table(self) -> str:
        """The external offset store."""
        return f"{self.lakehouse}/control/offset_ranges"

    @property
    def status_table(self) -> str:
        """Delta table with the newest status of each pipeline."""
        return f"{self.lakehouse}/control/status"

    @property
    def status_history(self) -> str:
        """Delta table with the recorded statuses of the last month."""
        return f"{self.lakehouse}/control/status_history"

    @property
    def schema_table(self) -> str:
        """Delta table that caches schemas of registries by id."""
        return f"{self.lakehouse}/control/schemas"

    @property
    def quality_results(self) -> str:
        """Delta table of check results."""
        return f"{self.lakehouse}/quality/results"

    @property
    def data_docs(self) -> Path:
        """Pages of Great Expectations, a folder for each pipeline."""
        return self.home / "data_docs"

    def data_table(self, target: str) -> str:
        """Return the location of a spec's `target`; relative paths are below the lakehouse."""
        if "://" in target or target.startswith("/"):
            return target
        return f"{self.lakehouse}/{target}"


def spec_files(folder: Path) -> list[Path]:
    """Return the spec files of a folder, sorted. Each has the name of its pipeline."""
    return sorted((*folder.glob("*.yaml"), *folder.glob("*.yml")))
