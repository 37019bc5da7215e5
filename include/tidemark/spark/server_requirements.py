"""Requirements of a Spark Connect server that lands the same data as spark-submit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.metadata import version
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from tidemark.core.errors import SetupError
from tidemark.delta.errors import storage_error
from tidemark.delta.storage import table_folder
from tidemark.spark.connect import RESTART_ADVICE, server_error, session_loss
from tidemark.spark.stores import log_store
from tidemark.spark.workers import CODE_DIGEST, worker_code_digest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidemark.spark.connect import ConnectSessions

_JARS = {
    "the Kafka source": "spark-sql-kafka-0-10",
    "Delta Lake": "delta-spark",
    "Avro": "spark-avro",
}


def check_requirements(
    sessions: ConnectSessions,
    *,
    java_properties: Mapping[str, str],
    redaction: str,
    locations: Iterable[str],
    runs_python: bool,
) -> None:
    """Refuse a server that would land different data than spark-submit, or none.

    Args:
        sessions: Sessions on the server.
        java_properties: Java properties that the server's JVM must have, with their values.
        redaction: Regular expression that the server's `spark.redaction.string.regex` must contain.
        locations: Folders or URIs of tables, which client and server must both see.
        runs_python: Whether the server's Python workers must have this package.

    Raises:
        SetupError: The first check that fails.
        EngineUnavailable, SetupError: As `ConnectSessions.shared` raises them.
    """
    from pyspark.errors import PySparkException

    try:
        session = sessions.shared()
        checks = _Checks(str(sessions.server), session)
        checks.versions()
        checks.jars()
        checks.delta_catalog()
        checks.java(java_properties)
        checks.redaction(redaction)
        for location in dict.fromkeys(locations):
            checks.log_store(location)
            checks.files(location)
        if runs_python:
            checks.workers()
    except PySparkException as failure:
        raise server_error(sessions.server, failure) from None


class _Checks:
    def __init__(self, engine: str, session: SparkSession) -> None:
        self._engine = engine
        self._session = session

    def versions(self) -> None:
        """Check the versions: client and server exchange plans in a format of one version."""
        for name, seen in (("pyspark", self._session.version), ("delta-spark", self._delta())):
            if seen != version(name):
                raise self._unsuitable(
                    f"it runs {name} {seen or 'of an unknown version'}", f"{name} {version(name)}"
                )

    def _delta(self) -> str | None:
        from pyspark.errors import AnalysisException

        try:
            return self._evaluate("reflect('io.delta.package', 'VERSION')")
        except AnalysisException:
            # The server has no such class.
            return None

    def jars(self) -> None:
        """Check the sources of Spark that jobs use."""
        from pyspark.errors import AnalysisException
        from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own docs use
        from pyspark.sql.avro.functions import from_avro

        kafka = self._session.read.format("kafka").options(
            **{"kafka.bootstrap.servers": "localhost:9", "subscribe": "none"}
        )
        frames: dict[str, Any] = {
            "the Kafka source": lambda: kafka.load(),
            "Avro": lambda: self._session.range(0).select(from_avro(F.lit(b""), '"int"')),
        }
        for name, make_frame in frames.items():
            try:
                frame: DataFrame = make_frame()
                _ = frame.schema
            except AnalysisException:
                raise self._unsuitable(
                    f"its class path lacks {name}", f"the jar {_JARS[name]} on its class path"
                ) from None

    def delta_catalog(self) -> None:
        """Check the extension and the catalog of Delta, which provide MERGE and time travel."""
        for key, needed in (
            ("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension"),
            ("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"),
        ):
            self._require_setting(key, needed)

    def java(self, properties: Mapping[str, str]) -> None:
        """Check the Java properties that limit the memory for one broken record."""
        for key, needed in properties.items():
            seen = self._evaluate(f"reflect('java.lang.System', 'getProperty', '{key}')")
            if seen != needed:
                raise self._unsuitable(
                    f"its Java property {key} is {seen}", f"the Java option -D{key}={needed}"
                )
            for process in ("driver", "executor"):
                self._require_setting(f"spark.{process}.extraJavaOptions", f"-D{key}={needed}")

    def redaction(self, needed: str) -> None:
        """Check the redaction: the server writes plans with their options to its log and pages."""
        for key in ("spark.redaction.string.regex", "spark.sql.redaction.string.regex"):
            self._require_setting(key, needed)

    def log_store(self, location: str) -> None:
        """Check that Spark's commits to S3 are conditional."""
        if setting := log_store(location):
            self._require_setting(*setting)

    def files(self, location: str) -> None:
        """Check that client and server read each other's files."""
        from pyarrow.fs import FileSelector
        from pyspark.errors import PySparkException

        files, folder = table_folder(location)
        name = f"_tidemark_probe_{uuid4().hex}"
        place = f"{folder}/{name}"
        try:
            files.create_dir(f"{place}/client")
            with files.open_output_stream(f"{place}/client/probe.txt") as stream:
                stream.write(name.encode())
            seen = self._session.read.text(f"{location}/{name}/client").collect()
            if [row[0] for row in seen] != [name]:
                raise self._unshared_files(location)
            self._session.range(1).write.parquet(f"{location}/{name}/server")
            written = files.get_file_info(FileSelector(f"{place}/server"))
            if not any(each.base_name.endswith(".parquet") for each in written):
                raise self._unshared_files(location)
        except PySparkException as failure:
            if session_loss(failure):
                raise
            raise self._unshared_files(location) from None
        except FileNotFoundError:
            raise self._unshared_files(location) from None
        except OSError as failed:
            kind = storage_error(failed.errno)
            if kind is None:
                raise
            operation, reason = "writing a probe", str(failed.strerror or failed)
            raise kind(location=location, operation=operation, reason=reason) from failed
        finally:
            with suppress(OSError):
                files.delete_dir(place)

    def workers(self) -> None:
        """Check the code of the workers: Spark sends Python functions by name."""
        seen = worker_code_digest(self._session)
        if seen != CODE_DIGEST:
            raise self._unsuitable(
                "its Python workers have another version of tidemark"
                if seen
                else "its Python workers have no tidemark",
                "the same version of tidemark in the Python of its workers (spark.pyspark.python)",
            )

    def _unshared_files(self, location: str) -> SetupError:
        return self._unsuitable(
            f"it does not see the files of this machine at {location}",
            "storage that client and server share, with the same user",
        )

    def _require_setting(self, key: str, needed: str) -> None:
        seen = self._session.conf.get(key, None)
        if needed not in (seen or ""):
            raise self._unsuitable(f"its {key} is {seen or 'not set'}", f"{key}={needed}")

    def _evaluate(self, expression: str) -> str | None:
        row = self._session.sql(f"SELECT {expression}").first()
        return None if row is None else row[0]

    def _unsuitable(self, problem: str, needed: str) -> SetupError:
        return SetupError.of_engine(
            engine=self._engine, mismatch=problem, needed=needed, advice=RESTART_ADVICE
        )
