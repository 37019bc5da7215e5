"""Make the class-data-sharing archive that every Spark job of Tidemark starts with.

    .venv/bin/python include/jvm/archive.py

A JVM that starts Spark spends most of its first seconds loading and checking about 17,000 classes.
JDK 17 can keep them in a file that is mapped instead (JEP 350). The classes worth keeping are those
that real jobs load, so they are run: the embedded broker, a few records, both of jobs/.

The JVM uses an archive only together with the jars of its creation, and otherwise ignores it
silently. So an archive is harmless, and without it jobs are only slower. Therefore a failure here
does not fail a set-up: it prints one line of warning.
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
from importlib.util import find_spec
from pathlib import Path

from tidemark.app import App
from tidemark.connections import LOCAL_CONNECTION, connection_variable, kafka_connection
from tidemark.core.errors import ExitCode
from tidemark.dev.broker import home_broker
from tidemark.dev.producer import produce
from tidemark.lake.local_files import locked
from tidemark.spark.engine import Submit
from tidemark.spark.submit import conf_arguments, plan_arguments, search_path, submit
from tidemark.spec.layout import Layout

PIPELINE = "training"
SAMPLE = "prices"
RECORDS = 1_000
_SHARED = "-XX:SharedArchiveFile="
_FROM_ARCHIVE = "shared objects file (top)"
_LAST_WORDS = 3


class NoArchive(Exception):
    """The archive could not be made; the message is the reason."""


def identity(layout: Layout) -> str:
    """Return a digest of the jars of the class path with their times, and of the JVM."""
    digest = hashlib.sha256(str(layout.project).encode())
    for jar in (*_jars(layout.spark_jars), *_jars(_pyspark() / "jars")):
        stat = jar.stat()
        digest.update(f"{jar} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    told = subprocess.run([_java(), "-version"], capture_output=True, check=True)
    digest.update(told.stderr)
    return digest.hexdigest()


def make(layout: Layout, archive: Path) -> None:
    """Run the jobs on a broker of their own and keep the classes that they loaded.

    Raises:
        NoArchive: The job failed, or a JVM refuses the archive.
    """
    with tempfile.TemporaryDirectory(prefix=".archive-", dir=layout.jvm) as folder:
        made = Path(folder) / archive.name
        said: list[str] = []
        with _training_app(layout, Path(folder)) as app:
            plan = app.pipeline(PIPELINE).planner.plan("set-up").plan
            if plan is None:
                raise NoArchive("the training topic is empty")
            run = submit(
                Path(__file__).with_name("training.py"),
                plan_arguments([plan.ref]),
                name="tidemark-archive",
                engine=Submit("local[2]"),
                settings=_with_jvm_options(
                    app, [f"-XX:ArchiveClassesAtExit={made}", "-XX:TieredStopAtLevel=1"]
                ),
                environ=app.environ,
                print_line=said.append,
            )
            if run.exit_code != ExitCode.OK or not made.exists():
                raise NoArchive(f"the training job left none: {_end(*said)}")
            if _classes_taken(app, made, Path(folder) / "classes.log") == 0:
                raise NoArchive("the JVM does not take it")
        made.replace(archive)


@contextmanager
def _training_app(layout: Layout, home: Path) -> Iterator[App]:
    """A Tidemark with a broker, a filled topic and one pipeline of its own."""
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
    """The settings of a job, with other JVM options than those that take the archive."""
    settings = dict(app.engines.submit_settings(app.spec(PIPELINE)))
    key = "spark.driver.extraJavaOptions"
    kept = [each for each in settings[key].split() if not each.startswith(_SHARED)]
    settings[key] = " ".join([*kept, *options])
    return settings


def _classes_taken(app: App, archive: Path, log: Path) -> int:
    """How many classes a JVM with the class path of a job takes from the archive."""
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
        raise NoArchive(f"spark-submit ended with {done.returncode}: {_end(done.stderr)}")
    return log.read_text().count(_FROM_ARCHIVE)


def ensure(layout: Layout, heading: str) -> None:
    """Make an archive that fits; print and do nothing if one exists.

    Raises:
        NoArchive: It could not be made.
    """
    archive, stamp = layout.class_archive, layout.class_archive.with_suffix(".made-for")
    wanted = identity(layout)
    # One process at a time makes the archive; another waits and finds it.
    with locked(layout.jvm / ".archive-lock"):
        if archive.exists() and stamp.exists() and stamp.read_text() == wanted:
            return
        say(heading)
        stamp.unlink(missing_ok=True)
        make(layout, archive)
        stamp.write_text(wanted)


def say(line: str) -> None:
    """Show one line of progress at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _end(*said: str) -> str:
    return " | ".join("\n".join(said).strip().splitlines()[-_LAST_WORDS:])


def _jars(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.jar"))


def _pyspark() -> Path:
    found = find_spec("pyspark")
    if found is None or not found.submodule_search_locations:
        raise NoArchive(f"{sys.executable} has no PySpark")
    return Path(next(iter(found.submodule_search_locations)))


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home, "bin", "java")) if home else "java")
    if java is None:
        raise NoArchive("there is no java")
    return java


def main(arguments: list[str] | None = None) -> int:
    """Make the archive if it is missing; always 0, because everything works without it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--heading", default="Class archive", help="text to print before the work")
    options = parser.parse_args(arguments)
    try:
        ensure(App.from_environment().layout, options.heading)
    except Exception as problem:  # noqa: BLE001  (a job without the archive is slower, not wrong)
        sys.stderr.write(f"warning: jobs start slower, no class archive was made: {problem}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
