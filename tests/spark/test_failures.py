"""Named errors for real exceptions of Spark: the cause in one line, the stack in a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812  the usual alias

from tests.support.disks import mounted
from tests.support.waiting import wait_until
from tidemark.core.errors import SetupError, TidemarkError
from tidemark.delta.errors import EngineFailed, StorageRefused, StorageUnavailable
from tidemark.spark.failures import session_settings, spark_error
from tidemark.spec.layout import LOG_FOLDER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

VALUE = "secret-of-a-record"
CANARY = "correct-horse"


def failure_of(
    spark: SparkSession,
    computation: Callable[[], object],
    *,
    options: Mapping[str, str] | None = None,
    may_have_values: bool = False,
) -> TidemarkError:
    """Return the named error for the exception of an action."""
    with pytest.raises((PySparkException, Py4JError, OSError, ValueError)) as caught:
        computation()
    return spark_error(
        caught.value,
        "landing plan 3",
        location="/lake/events",
        settings=session_settings(spark),
        options=options,
        may_have_values=may_have_values,
    )


def write_rows(spark: SparkSession, folder: Path, rows: int = 5) -> Callable[[], object]:
    """Return a function that writes incompressible rows."""
    return lambda: spark.range(rows).selectExpr("rand(1) r").write.parquet(str(folder))


@contextmanager
def spark_log(spark: SparkSession) -> Iterator[Callable[[], str]]:
    """Capture the log of the session's JVM in this block, in the layout of its log."""
    java = spark.sparkContext._jvm
    log4j = java.org.apache.logging.log4j
    root = log4j.LogManager.getRootLogger()
    layout = root.getContext().getConfiguration().getAppender("stderr").getLayout()
    text = java.java.io.StringWriter()
    appender = log4j.core.appender.WriterAppender.createAppender(
        layout, None, text, "test", False, False
    )
    appender.start()
    root.addAppender(appender)
    try:
        yield text.toString
    finally:
        root.removeAppender(appender)


# -- storage -------------------------------------------------------------------------------------


def test_a_full_disk_raises_storage_unavailable(spark: SparkSession, tmp_path: Path) -> None:
    """Spark wraps it into "Task failed while writing rows"."""
    with mounted(tmp_path / "small", "size=64k") as disk:
        error = failure_of(spark, write_rows(spark, disk / "plan", 100_000))
    assert isinstance(error, StorageUnavailable)
    assert (error.operation, error.location) == ("landing plan 3", "/lake/events")
    assert error.reason == "No space left on device"


@pytest.mark.parametrize(
    ("options", "kind", "reason"),
    [
        ("ro", StorageRefused, "Read-only file system"),
        ("nr_inodes=2", StorageUnavailable, "No space left on device"),
    ],
)
def test_the_error_for_a_folder_that_cannot_be_created_has_the_reason(
    spark: SparkSession, tmp_path: Path, options: str, kind: type[TidemarkError], reason: str
) -> None:
    """Hadoop reports "Mkdirs failed" for every reason."""
    with mounted(tmp_path / "disk", options) as disk:
        if options.startswith("nr_inodes"):
            (disk / "only").touch()
        error = failure_of(spark, write_rows(spark, disk / "plan"))
    assert isinstance(error, kind)
    assert isinstance(error, StorageRefused | StorageUnavailable)
    assert error.location.startswith(f"{disk}/plan")
    assert error.reason == reason


def test_a_file_in_place_of_the_folder_raises_storage_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The error is the same for every user, including root."""
    (tmp_path / "events").write_text("a file")
    error = failure_of(spark, write_rows(spark, tmp_path / "events" / "plan"))
    assert isinstance(error, StorageRefused)
    assert (error.location, error.reason) == (f"{tmp_path}/events", "Not a directory")


def test_a_failed_write_of_the_driver_raises_a_storage_error(
    spark: SparkSession, tmp_path: Path
) -> None:
    """PyArrow writes rows that Spark would alter."""
    (tmp_path / "events").write_text("a file")
    error = failure_of(spark, lambda: (tmp_path / "events" / "plan").write_text("rows"))
    assert isinstance(error, StorageRefused)
    assert error.reason == "Not a directory"


# -- set-up --------------------------------------------------------------------------------------


def test_a_missing_data_source_is_a_setup_error(spark: SparkSession) -> None:
    """A retry does not bring the jar."""
    error = failure_of(spark, lambda: spark.read.format("nonexistent").load())
    assert isinstance(error, SetupError)
    assert "make setup" in error.rendered("fix")
    assert "nonexistent" in error.seen


def test_a_missing_class_is_a_setup_error(spark: SparkSession) -> None:
    """An older jar may lack the class."""
    assert spark._jvm is not None
    missing = spark._jvm.java.lang.Class
    error = failure_of(spark, lambda: missing.forName("org.example.Missing"))
    assert isinstance(error, SetupError)
    assert error.seen == "ClassNotFoundException: org.example.Missing"


def test_a_missing_module_of_the_executors_is_a_setup_error(spark: SparkSession) -> None:
    """Executors need this package and its requirements."""

    # PySpark would use type hints to select the type of the function.
    def imports(_):  # type: ignore[no-untyped-def]
        import org_example_missing  # type: ignore[import-not-found]  # noqa: F401

    used = F.udf(imports, "string")
    error = failure_of(spark, lambda: spark.range(1).select(used("id")).collect())
    assert isinstance(error, SetupError)
    assert error.seen == "ModuleNotFoundError: No module named 'org_example_missing'"


# -- everything else -----------------------------------------------------------------------------


def test_the_error_has_one_line_of_cause_and_the_path_of_the_stack(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The cause is the innermost exception."""
    broken = tmp_path / "broken.parquet"
    broken.write_text("no")
    error = failure_of(spark, lambda: spark.read.schema("id long").parquet(str(broken)).collect())
    assert isinstance(error, EngineFailed)
    assert error.reason.startswith("RuntimeException: file:")
    assert error.reason.endswith("is not a Parquet file (length is too low: 2)")
    assert "\n" not in str(error)
    assert error.as_record()["log"] == error.log
    assert error.log in error.rendered("fix")
    stack = Path(error.log).read_text()
    assert Path(error.log).parent == Path(spark.conf.get(LOG_FOLDER) or "")
    assert stack.startswith("landing plan 3\nSparkException: [FAILED_READ_FILE")
    assert stack.count("\n\tat ") > 20


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        (f"cast(concat('{VALUE}', id) AS int)", "SparkNumberFormatException [CAST_INVALID_INPUT]"),
        (
            f"java_method('java.lang.Integer', 'parseInt', concat('{VALUE}', id))",
            "NumberFormatException",
        ),
        (f"raise_error(concat('{VALUE}', id))", "SparkRuntimeException [USER_RAISED_EXCEPTION]"),
        (
            f"cast(concat('When running with master {VALUE}', id) AS int)",
            "SparkNumberFormatException [CAST_INVALID_INPUT]",
        ),
        (f"raise_error(concat('java: {VALUE}', id))", "[USER_RAISED_EXCEPTION]"),
    ],
)
def test_neither_the_error_nor_the_stack_file_contains_a_record_value(
    spark: SparkSession, sql: str, reason: str
) -> None:
    """Spark's messages contain such values."""
    rows = spark.range(3).selectExpr(f"{sql} AS x")
    error = failure_of(spark, rows.collect, may_have_values=True)
    assert isinstance(error, EngineFailed)
    assert reason in error.reason
    for text in (str(error), Path(error.log).read_text()):
        assert VALUE not in text


def test_the_value_of_a_record_is_not_in_the_log_of_spark(spark: SparkSession) -> None:
    """Spark logs the failed task, and the task that it stops because of the failure."""
    sql = f"if(id = 0, cast(concat('{VALUE}\n{VALUE}', id) AS int), 1) AS x"
    rows = spark.range(0, 2**40, 1, 2).selectExpr(sql)
    with spark_log(spark) as text:
        failure_of(spark, rows.selectExpr("count(x)").collect)
        wait_until(lambda: "TaskKilled" in text(), timeout_s=60)
        assert "org.apache.spark.SparkNumberFormatException [CAST_INVALID_INPUT]" in text()
        assert VALUE not in text()


LOGGED = {
    "org.apache.spark.SparkException: [A_B] {value}\n\tat a.b(C.java:1)": "[A_B]",
    "com.x.FooException: one\n\tat two\n{value}": "com.x.FooException",
    "Stage cancelled: Job aborted: one\n\tat two\n{value}\n\tat a.b(C.java:1)": "Stage cancelled",
    "java.io.IOException: No space left on device": "java.io.IOException: No space left on device",
    "java.io.IOException: full\n\tat a.b(C.java:1)\nCaused by: a.BError: {value}": "by: a.BError",
    "a." * 50_000 + "Exception": "a.a.",
    "a.BException: " + "\n" * 100_000 + "{value}": "a.BException",
}
"""Messages of Spark's log, and a part that the layout keeps."""


@pytest.mark.parametrize("message", LOGGED, ids=range(len(LOGGED)))
def test_a_log_message_ends_before_a_record_value(spark: SparkSession, message: str) -> None:
    """A long value, or one that looks like a stack, makes no difference."""
    log4j = spark.sparkContext._jvm.org.apache.logging.log4j
    with spark_log(spark) as text:
        log4j.LogManager.getLogger("test").error(message.replace("{value}", VALUE))
        assert LOGGED[message] in text()
        assert VALUE not in text()
        assert "C.java" not in text()
        assert text().count("\n") == text().strip().count("\n") + 1


def test_neither_the_error_nor_the_stack_file_contains_a_secret_option(spark: SparkSession) -> None:
    """Kafka's message contains the value of an invalid option."""
    options = {
        "kafka.bootstrap.servers": "127.0.0.1:1",
        "kafka.sasl.jaas.config": f'org.example.Module required password="{CANARY}";',
        "kafka.receive.buffer.bytes": CANARY,
        "assign": '{"events":[0]}',
    }
    error = failure_of(
        spark,
        spark.read.format("kafka").options(**options).load().collect,
        options=options,
    )
    assert isinstance(error, EngineFailed)
    assert "receive.buffer.bytes" in error.reason
    for text in (str(error), Path(error.log).read_text()):
        assert CANARY not in text
