"""Compile the Java sources of a folder into a jar, with the compiler that Spark contains.

    .venv/bin/python include/jvm/build.py include/jvm/stores/s3 .tidemark/jvm/stores/s3/own

The compiler is Janino, with which Spark compiles its queries, so set-up needs no JDK. Janino
supports Java without generic types. Exit code 0: the jar is up to date. 1: the error output has the
reason.
"""

from __future__ import annotations

import argparse
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JError

from tidemark.delta.local_files import locked
from tidemark.spark.submit import pyspark_folder

HERE = Path(__file__).resolve().parent
JVM = HERE.parents[1] / ".tidemark" / "jvm"
JAR = "tidemark.jar"


class BuildFailed(Exception):
    """The jar could not be made; the message has the cause."""


def ensure(sources: Path, into: Path) -> None:
    """Compile the sources, unless the jar is newer than the sources and the installed jars.

    Args:
        sources: Folder of the files `*.java`.
        into: Folder of the jar, beside the folder `jars`.

    Raises:
        BuildFailed: A source is wrong, or there is no Java.
    """
    files = sorted(sources.glob("*.java"))
    if not files:
        return
    # Jars keep the times of their download; the stamps of fetch.py change with them.
    stamps = [pyspark_folder(), JVM / "verified", into.parent / "verified"]
    into.mkdir(parents=True, exist_ok=True)
    with locked(into / ".lock"):
        jar = into / JAR
        if jar.exists() and jar.stat().st_mtime > max(
            each.stat().st_mtime for each in (*files, *stamps)
        ):
            return
        used = [
            *pyspark_folder().glob("jars/*.jar"),
            *JVM.glob("spark/*.jar"),
            *into.parent.glob("jars/*.jar"),
        ]
        classes: dict[str, bytes] = {}
        with java(used) as gateway:
            for file in files:
                classes.update(_compiled(gateway, file))
        incoming = jar.with_suffix(".incoming")
        with zipfile.ZipFile(incoming, "w") as archive:
            for name, content in sorted(classes.items()):
                archive.writestr(f"{name.replace('.', '/')}.class", content)
        incoming.replace(jar)


def _compiled(gateway: JavaGateway, file: Path) -> Mapping[str, bytes]:
    """Return the classes of a source by their names."""
    compiler = gateway.jvm.org.codehaus.janino.SimpleCompiler()
    try:
        compiler.cook(str(file), file.read_text())
    except Py4JError as wrong:
        raise BuildFailed(str(wrong)) from wrong
    bytecodes: Mapping[str, Any] = compiler.getBytecodes()
    return {name: bytes(bytecodes[name]) for name in bytecodes}


@contextmanager
def java(jars: Iterable[Path]) -> Iterator[JavaGateway]:
    """Yield a JVM with these jars."""
    (py4j,) = pyspark_folder().glob("jars/py4j-*.jar")
    started = launch_gateway(
        jarpath=str(py4j),
        classpath=":".join(map(str, jars)),
        # JAVA_HOME, else the PATH, as everywhere in the set-up.
        java_path=None,
        die_on_exit=True,
        enable_auth=True,
    )
    port, token = started[:2]
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
    try:
        yield gateway
    finally:
        gateway.shutdown()


def main(arguments: list[str] | None = None) -> int:
    """Make the jar of the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("sources", type=Path, help="folder of the files *.java")
    parser.add_argument("into", type=Path, help="folder of the jar")
    options = parser.parse_args(arguments)
    try:
        ensure(options.sources.absolute(), options.into.absolute())
    except (BuildFailed, LookupError, OSError, ValueError, Py4JError) as problem:
        sys.stderr.write(f"{problem}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
