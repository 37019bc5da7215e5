"""Bring the JVM parts of an ivy.xml to a folder, and let nothing in that is not in the checksums.

Apache Ivy does the resolving; PySpark ships it, so no Maven is needed. Jars are retrieved to a
separate folder, checked there, and moved into place one by one. An interrupted run leaves either
the old jar or the new one, and a concurrent process never finds the folder empty.

Standard library only. Run it with the Python that has PySpark: `.venv/bin/python
include/jvm/fetch.py`. Exit code 0: every jar is in place and checked. 1: one line has the reason.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[1]
IVY_CACHE = Path.home() / ".ivy2" / "cache"
PROGRESS_EVERY = 10
"""Artifacts between two lines of progress."""


class Refused(Exception):
    """One line for the user: the finding, the requirement, the fix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The required jars and their folder.

    Attributes:
        ivy_file: The list of dependencies; its configurations are the folders.
        checksums: Lines of `<sha256>  <folder>/<jar>`, as sha256sum writes them.
        folder: The parent of the folders of jars.
    """

    ivy_file: Path
    checksums: Path
    folder: Path

    @property
    def settings(self) -> Path:
        """Ivy's settings, beside the list; where there are none Ivy's own hold."""
        return self.ivy_file.with_name("ivysettings.xml")

    @property
    def stamp(self) -> Path:
        """The file that identifies the ivy.xml and checksums of the jars in place.

        Its time changes only with the set of jars: files that depend on the jars and are older
        must be created again.
        """
        return self.folder / "verified"

    def identity(self) -> str:
        """The content of the stamp."""
        digest = hashlib.sha256(self.ivy_file.read_bytes())
        digest.update(self.checksums.read_bytes())
        return digest.hexdigest()

    def configurations(self) -> tuple[str, ...]:
        """The names of ivy.xml's configurations: `spark`, `kafka`."""
        try:
            found = ElementTree.parse(self.ivy_file).getroot().iter("conf")
        except ElementTree.ParseError as problem:
            raise Refused(f"{self.ivy_file.name} is not well-formed XML: {problem}") from problem
        return tuple(conf.attrib["name"] for conf in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The differences of a folder of jars from the checksums; names are `<folder>/<jar>`."""

    missing: tuple[str, ...]
    extra: tuple[str, ...]
    differing: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.missing or self.extra or self.differing)

    @property
    def unverified(self) -> tuple[str, ...]:
        """Existing files that must not be used."""
        return self.extra + self.differing

    def __str__(self) -> str:
        groups = {
            "missing": self.missing,
            "not in the checksums": self.extra,
            "not of the recorded SHA-256": self.differing,
        }
        return "; ".join(f"{what}: {', '.join(names)}" for what, names in groups.items() if names)


def read_checksums(path: Path) -> dict[str, str]:
    """Read `<sha256>  <folder>/<jar>` lines into jar -> sha256.

    Raises:
        Refused: A line is not of that form.
    """
    sums = {}
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        match = re.fullmatch(r"([0-9a-f]{64})  ([\w.-]+/[\w.-]+\.(?:jar|tar\.gz))", line)
        if match is None:
            raise Refused(f"{path.name} line {number}: expected `<sha256>  <folder>/<jar>`")
        sums[match[2]] = match[1]
    return sums


def sha256(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def jars_in(folder: Path, configurations: tuple[str, ...]) -> dict[str, Path]:
    """Every file of every configuration's folder, by `<configuration>/<name>`."""
    return {
        f"{name}/{path.name}": path
        for name in configurations
        for path in sorted((folder / name).glob("*"))
    }


def compare(found: Mapping[str, Path], sums: Mapping[str, str]) -> Difference:
    """Compare files with the checksums."""
    return Difference(
        missing=tuple(sorted(sums.keys() - found.keys())),
        extra=tuple(sorted(found.keys() - sums.keys())),
        differing=tuple(
            sorted(name for name in sums.keys() & found.keys() if sha256(found[name]) != sums[name])
        ),
    )


def in_place(parts: Parts) -> bool:
    """Return whether every jar exists and is right; remove jars that must not be used."""
    found = jars_in(parts.folder, parts.configurations())
    difference = compare(found, read_checksums(parts.checksums))
    if difference.unverified:
        say(f"JVM parts: removed from {parts.folder}: {difference}")
    for name in difference.unverified:
        found[name].unlink()
    return not difference and _read(parts.stamp) == parts.identity()


def admit(parts: Parts, incoming: Path) -> None:
    """Move retrieved jars into place if every one of them is right; otherwise remove the bad ones.

    Raises:
        Refused: `incoming` is not exactly the set of the checksums. Nothing was moved.
    """
    found = jars_in(incoming, parts.configurations())
    difference = compare(found, read_checksums(parts.checksums))
    if difference:
        for name in difference.unverified:
            _forget(found[name])
        raise Refused(
            f"JVM parts refused: {difference}. Nothing was put in place, and the bad files were "
            "removed from the Ivy cache. Run `make setup` again. If the error repeats, the "
            f"repository serves other jars than {parts.checksums.name} records"
        )
    for name, path in found.items():
        destination = parts.folder / name
        destination.parent.mkdir(parents=True, exist_ok=True)
        path.replace(destination)
    parts.stamp.write_text(parts.identity())


def _forget(jar: Path) -> None:
    """Remove a jar and the copies of it that Ivy's cache would hand out the next time."""
    content = sha256(jar)
    for cached in IVY_CACHE.glob(f"*/*/*/{jar.name}"):
        if sha256(cached) == content:
            cached.unlink()
    jar.unlink()


def find_ivy() -> Path:
    """The Ivy jar inside PySpark, found without importing PySpark.

    Raises:
        Refused: This Python has no PySpark, or a PySpark without Ivy.
    """
    spec = find_spec("pyspark")
    places = list(spec.submodule_search_locations or ()) if spec else []
    jars = [jar for place in places for jar in Path(place, "jars").glob("ivy-*.jar")]
    if not jars:
        raise Refused(
            f"JVM parts: {sys.executable} has no PySpark with Ivy in it; run `make setup`, or use "
            ".venv/bin/python"
        )
    return jars[0]


def find_java() -> str:
    """The `java` of JAVA_HOME, else of PATH.

    Raises:
        Refused: There is none.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home, "bin", "java")) if home else "java")
    if java is None:
        raise Refused(
            f"JVM parts: no java {f'in JAVA_HOME ({home})' if home else 'on PATH'}; install Java 17"
        )
    return java


def retrieve(parts: Parts, incoming: Path) -> None:
    """Let Ivy resolve, download what its cache lacks, and copy the jars to `incoming`.

    Raises:
        Refused: Ivy failed; the message ends with Ivy's last lines.
    """
    pattern = f"{incoming}/[conf]/[artifact]-[revision](-[classifier]).[ext]"
    command = [find_java(), "-cp", str(find_ivy()), "org.apache.ivy.Main"]
    if parts.settings.exists():
        command += ["-settings", str(parts.settings)]
    command += ["-ivy", str(parts.ivy_file), "-confs", *parts.configurations()]
    command += ["-retrieve", pattern]
    last: deque[str] = deque(maxlen=15)
    fetched = 0
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=parts.folder
    ) as ivy:
        assert ivy.stdout is not None  # noqa: S101  (PIPE was requested)
        for line in ivy.stdout:
            last.append(line.rstrip())
            if "[SUCCESSFUL ]" in line:
                fetched += 1
                if fetched % PROGRESS_EVERY == 0:
                    say(f"      {fetched} jars downloaded")
    if ivy.returncode != 0:
        raise Refused(
            "JVM parts: Ivy could not resolve them; check the network, then run the same command "
            "again (finished downloads are kept). Ivy's last lines:\n  " + "\n  ".join(last)
        )


@contextmanager
def aside(folder: Path) -> Iterator[Path]:
    """An empty folder on the same file system, held by one process at a time, removed after."""
    folder.mkdir(parents=True, exist_ok=True)
    incoming = folder / ".incoming"
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(incoming, ignore_errors=True)
        incoming.mkdir()
        try:
            yield incoming
        finally:
            shutil.rmtree(incoming, ignore_errors=True)


def ensure(parts: Parts, heading: str) -> None:
    """Retrieve and check every jar; print and download nothing if all are in place.

    Raises:
        Refused: It could not be done.
    """
    if in_place(parts):
        return
    with aside(parts.folder) as incoming:
        if in_place(parts):  # another process did it while this one waited
            return
        say(heading)
        retrieve(parts, incoming)
        admit(parts, incoming)
    say(f"      {len(read_checksums(parts.checksums))} jars in place, checksums right")


def write_checksums(parts: Parts) -> None:
    """Resolve ivy.xml and record the checksums of its jars, for a review of the changed file.

    Raises:
        Refused: Ivy failed.
    """
    with aside(parts.folder) as incoming:
        retrieve(parts, incoming)
        found = jars_in(incoming, parts.configurations())
        parts.checksums.write_text(
            "".join(f"{sha256(path)}  {name}\n" for name, path in sorted(found.items()))
        )
        admit(parts, incoming)
        in_place(parts)  # removes jars of the former list
    say(f"{parts.checksums.name}: {len(found)} jars recorded; review the change before committing")


def say(line: str) -> None:
    """Show one line of progress at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _read(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line, do it, and turn a refusal into one message and exit code 1."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "--parts", type=Path, default=HERE, help="folder with ivy.xml and checksums.sha256"
    )
    parser.add_argument("--into", type=Path, default=PROJECT / ".tidemark" / "jvm")
    parser.add_argument(
        "--write-checksums",
        action="store_true",
        help="record the jars that ivy.xml resolves to now as the right ones",
    )
    parser.add_argument("--heading", default="JVM parts", help="text to print before the work")
    options = parser.parse_args(arguments)
    parts = Parts(
        ivy_file=options.parts.absolute() / "ivy.xml",
        checksums=options.parts.absolute() / "checksums.sha256",
        folder=options.into.absolute(),
    )
    try:
        write_checksums(parts) if options.write_checksums else ensure(parts, options.heading)
    except (Refused, OSError) as problem:
        sys.stderr.write(f"{problem}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
