"""Create the class data archive with which the JVMs of Spark jobs start faster.

    .venv/bin/python include/jvm/archive.py

A JVM that starts Spark loads and checks about 17,000 classes in its first seconds. JDK 17 can map
them from an archive instead (JEP 350). The archive contains the classes that a training run loads:
the jobs `ingest` and `check` for a few records of an embedded broker.

The JVM ignores an archive of other jars without a message. Jobs without the archive are slower and
otherwise the same, so a failure prints a warning and does not fail the set-up.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tidemark.app.app import App
from tidemark.app.connections import LOCAL_CONNECTION, connection_variable, kafka_connection
from tidemark.core.errors import ExitCode
from tidemark.delta.local_files import locked
from tidemark.local.broker import home_broker
from tidemark.local.producer import produce
from tidemark.spark.engine import Submit
from tidemark.spark.submit import (
    conf_arguments,
    job_arguments,
    pyspark_folder,
    search_path,
    submit,
)
from tidemark.spec.layout import Layout

PIPELINE = "training"
SAMPLE = "prices"
RECORDS = 1_000
_SHARED = "-XX:SharedArchiveFile="
_FROM_ARCHIVE = "shared objects file (top)"
_LAST_LINES = 3


class ArchiveFailed(Exception):
    """The archive could not be created; the message has the cause."""


def identity(layout: Layout) -> str:
    """Return a digest of the class path's jars, their sizes and times, and the JVM's version."""
    digest = hashlib.sha256(str(layout.project).encode())
    for jar in (*_jars(layout.spark_jars), *_jars(pyspark_folder() / "jars")):
        stat = jar.stat()
        digest.update(f"{jar} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    version = subprocess.run([_java(), "-version"], capture_output=True, check=True)
    digest.update(version.stderr)
    return digest.hexdigest()


def create(layout: Layout, archive: Path) -> None:
    """Run the training job on a broker of its own, and keep the classes that it loads.

    Raises:
        ArchiveFailed: The job failed, or the JVM does not use the archive.
    """
    with (
        # On the disk of the archive, which replaces an older one at once.
        tempfile.TemporaryDirectory(prefix=".archive-", dir=layout.jvm) as folder,
        # Elsewhere, because no table may be in a folder of Tidemark.
        tempfile.TemporaryDirectory(prefix="tidemark-archive-") as home,
    ):
        created = Path(folder) / archive.name
        printed: list[str] = []
        say("      starting a broker with records")
        with _training_app(layout, Path(home)) as app:
            plan = app.pipeline(PIPELINE).planner.plan("set-up").plan
            if plan is None:
                raise ArchiveFailed("the training topic is empty")
            say("      running a small job, whose classes the archive gets")
            run = submit(
                Path(__file__).with_name("training.py"),
                job_arguments([plan.ref]),
                name="tidemark-archive",
                engine=Submit("local[2]"),
                settings=_with_jvm_options(
                    app, [f"-XX:ArchiveClassesAtExit={created}", "-XX:TieredStopAtLevel=1"]
                ),
                environ=app.environ,
                print_line=printed.append,
            )
            if run.exit_code != ExitCode.OK or not created.exists():
                raise ArchiveFailed(f"the training job wrote none: {_end(*printed)}")
            say("      checking the archive")
            if _classes_from(created, app, Path(folder) / "classes.log") == 0:
                raise ArchiveFailed("the JVM does not use it")
        created.replace(archive)


@contextmanager
def _training_app(layout: Layout, home: Path) -> Iterator[App]:
    """Yield a Tidemark with its own broker, one pipeline, and a topic with records."""
    specs = home / "pipelines"
    specs.mkdir()
    spec = f'name: {PIPELINE}\ntopic: {SAMPLE}\nschedule: "@once"\nstart: earliest\n'
    (specs / f"{PIPELINE}.yaml").write_text(spec)
    places = {
        "TIDEMARK_PROJECT": str(layout.project),
        "TIDEMARK_HOME": str(home),
        "TIDEMARK_LAKEHOUSE": str(home / "lakehouse"),
        "TIDEMARK_PIPELINES": str(specs),
    }
    broker = home_broker(App.from_environment(places).layout)
    try:
        bootstrap = broker.start().bootstrap
        client = {"bootstrap.servers": bootstrap, "log_level": "3"}
        produce(client, SAMPLE, records=RECORDS)
        connection = {connection_variable(LOCAL_CONNECTION): kafka_connection(bootstrap)}
        yield App.from_environment({**places, **connection})
    finally:
        broker.stop()


def _with_jvm_options(app: App, options: Iterable[str]) -> Mapping[str, str]:
    """Return the settings of a job with other JVM options, and without those of the archive."""
    settings = dict(app.engines.submit_settings(app.spec(PIPELINE)))
    key = "spark.driver.extraJavaOptions"
    kept = [each for each in settings[key].split() if not each.startswith(_SHARED)]
    settings[key] = " ".join([*kept, *options])
    return settings


def _classes_from(archive: Path, app: App, log: Path) -> int:
    """Return how many classes a JVM with the class path of a job loads from the archive."""
    settings = _with_jvm_options(app, [f"{_SHARED}{archive}", f"-Xlog:class+load:file={log}"])
    program = str(Path(sys.executable).parent / "spark-submit")
    done = subprocess.run(
        [program, *conf_arguments(settings), "--version"],
        check=False,
        capture_output=True,
        text=True,
        env={**app.environ, "PATH": search_path(app.environ)},
    )
    if done.returncode != 0:
        raise ArchiveFailed(f"spark-submit ended with {done.returncode}: {_end(done.stderr)}")
    return log.read_text().count(_FROM_ARCHIVE)


def ensure(layout: Layout, heading: str) -> None:
    """Create the archive, unless one of the same jars and JVM exists.

    Raises:
        ArchiveFailed: The archive could not be created.
    """
    archive, stamp = layout.class_archive, layout.class_archive.with_suffix(".made-for")
    wanted = identity(layout)
    # One process at a time creates the archive; another waits and finds it.
    with locked(layout.jvm / ".archive-lock"):
        if archive.exists() and stamp.exists() and stamp.read_text() == wanted:
            return
        say(heading)
        stamp.unlink(missing_ok=True)
        create(layout, archive)
        stamp.write_text(wanted)


def say(line: str) -> None:
    """Print a line, and flush it."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _end(*printed: str) -> str:
    return " | ".join("\n".join(printed).strip().splitlines()[-_LAST_LINES:])


def _jars(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.jar"))


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home, "bin", "java")) if home else "java")
    if java is None:
        raise ArchiveFailed("there is no java")
    return java


def main(arguments: list[str] | None = None) -> int:
    """Create the archive if it is missing. Return 0 after a failure too: jobs run without it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--heading", default="Class archive", help="text to print before the work")
    options = parser.parse_args(arguments)
    try:
        ensure(App.from_environment().layout, options.heading)
    except Exception as problem:  # noqa: BLE001  (a job without the archive is only slower)
        sys.stderr.write(f"warning: jobs start slower without a class archive: {problem}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
