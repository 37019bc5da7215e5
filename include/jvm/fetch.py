"""Download the jars of an ivy.xml into a folder, and check their SHA-256.

Apache Ivy, which PySpark contains, resolves and downloads the jars into a separate folder. If all
checksums are right, each jar is moved into place. After an interruption, each jar is the old or the
new one, and a concurrent process never finds the folder empty.

Run it with the Python that has PySpark: `.venv/bin/python include/jvm/fetch.py`. It imports only
the standard library, because the Docker image installs the jars before Tidemark. Exit code 0: every
jar is in place. 1: the error output has the reason.
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
"""Number of downloaded jars between two lines of progress, in logs and pipes."""


class FetchFailed(Exception):
    """The jars could not be installed; the message has the cause and the fix."""


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
        """Ivy's settings file beside ivy.xml; without it, Ivy uses its defaults."""
        return self.ivy_file.with_name("ivysettings.xml")

    @property
    def stamp(self) -> Path:
        """File that identifies the ivy.xml and the checksums of the installed jars.

        Its modification time changes only with the set of jars. Older files that depend on the
        jars are out of date.
        """
        return self.folder / "verified"

    def identity(self) -> str:
        """Return the content of the stamp."""
        digest = hashlib.sha256(self.ivy_file.read_bytes())
        digest.update(self.checksums.read_bytes())
        return digest.hexdigest()

    def configurations(self) -> tuple[str, ...]:
        """Return the names of ivy.xml's configurations, such as `spark` and `kafka`."""
        try:
            found = ElementTree.parse(self.ivy_file).getroot().iter("conf")
        except ElementTree.ParseError as problem:
            raise FetchFailed(
                f"{self.ivy_file.name} is not well-formed XML: {problem}"
            ) from problem
        return tuple(conf.attrib["name"] for conf in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Differences between a folder of jars and the checksums; names are `<folder>/<jar>`."""

    missing: tuple[str, ...]
    extra: tuple[str, ...]
    differing: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.missing or self.extra or self.differing)

    @property
    def unverified(self) -> tuple[str, ...]:
        """Files that exist and are not the recorded jars."""
        return self.extra + self.differing

    def __str__(self) -> str:
        groups = {
            "missing": self.missing,
            "not in the checksums": self.extra,
            "not of the recorded SHA-256": self.differing,
        }
        return "; ".join(f"{what}: {', '.join(names)}" for what, names in groups.items() if names)


def read_checksums(path: Path) -> dict[str, str]:
    """Return the SHA-256 of each `<folder>/<jar>`, from lines of `<sha256>  <folder>/<jar>`.

    Raises:
        FetchFailed: A line has another form.
    """
    sums = {}
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        match = re.fullmatch(r"([0-9a-f]{64})  ([\w.-]+/[\w.-]+\.(?:jar|tar\.gz))", line)
        if match is None:
            raise FetchFailed(f"{path.name} line {number}: expected `<sha256>  <folder>/<jar>`")
        sums[match[2]] = match[1]
    return sums


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def jars_in(folder: Path, configurations: tuple[str, ...]) -> dict[str, Path]:
    """Return every file of the configurations' folders by `<configuration>/<name>`."""
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


def keep_verified(parts: Parts) -> bool:
    """Remove files that are not the recorded jars; return whether no jar is missing."""
    found = jars_in(parts.folder, parts.configurations())
    difference = compare(found, read_checksums(parts.checksums))
    if difference.unverified:
        say(f"JVM parts: removed from {parts.folder}: {difference}")
    for name in difference.unverified:
        found[name].unlink()
    return not difference and _read(parts.stamp) == parts.identity()


def install(parts: Parts, incoming: Path) -> None:
    """Move downloaded jars into place if all of them are right; otherwise remove the wrong ones.

    Raises:
        FetchFailed: The files of `incoming` differ from the checksums. No file was moved.
    """
    found = jars_in(incoming, parts.configurations())
    difference = compare(found, read_checksums(parts.checksums))
    if difference:
        for name in difference.unverified:
            _remove_with_cache(found[name])
        raise FetchFailed(
            f"JVM parts differ from {parts.checksums.name}: {difference}. No file was installed, "
            "and the wrong files were removed from Ivy's cache. Run `make setup` again. If the "
            "error repeats, the Maven repository has other jars"
        )
    for name, path in found.items():
        destination = parts.folder / name
        destination.parent.mkdir(parents=True, exist_ok=True)
        path.replace(destination)
    parts.stamp.write_text(parts.identity())


def _remove_with_cache(jar: Path) -> None:
    """Remove a jar and its copies in Ivy's cache, so that Ivy downloads it again."""
    content = sha256(jar)
    for cached in IVY_CACHE.glob(f"*/*/*/{jar.name}"):
        if sha256(cached) == content:
            cached.unlink()
    jar.unlink()


def find_ivy() -> Path:
    """Return the path of PySpark's Ivy jar, without importing PySpark.

    Raises:
        FetchFailed: This Python has no PySpark, or its PySpark has no Ivy.
    """
    spec = find_spec("pyspark")
    places = list(spec.submodule_search_locations or ()) if spec else []
    jars = [jar for place in places for jar in Path(place, "jars").glob("ivy-*.jar")]
    if not jars:
        raise FetchFailed(
            f"JVM parts: {sys.executable} has no PySpark with Ivy. Run `make setup`, or use "
            ".venv/bin/python"
        )
    return jars[0]


def find_java() -> str:
    """Return the path of `java` in JAVA_HOME, else on PATH.

    Raises:
        FetchFailed: No `java` was found.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home, "bin", "java")) if home else "java")
    if java is None:
        raise FetchFailed(
            f"JVM parts: no java {f'in JAVA_HOME ({home})' if home else 'on PATH'}. Install Java 17"
        )
    return java


def retrieve(parts: Parts, incoming: Path, total: int | None = None) -> None:
    """Download the jars that Ivy's cache lacks, and copy all jars to `incoming`.

    Raises:
        FetchFailed: Ivy failed. The message ends with Ivy's last lines.
    """
    pattern = f"{incoming}/[conf]/[artifact]-[revision](-[classifier]).[ext]"
    command = [find_java(), "-cp", str(find_ivy()), "org.apache.ivy.Main"]
    if parts.settings.exists():
        command += ["-settings", str(parts.settings)]
    command += ["-ivy", str(parts.ivy_file), "-confs", *parts.configurations()]
    command += ["-retrieve", pattern]
    last: deque[str] = deque(maxlen=15)
    downloaded = 0
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=parts.folder
    ) as ivy:
        for line in ivy.stdout or ():
            last.append(line.rstrip())
            if "[SUCCESSFUL ]" in line:
                downloaded += 1
                _show_downloaded(downloaded, total)
    if downloaded and sys.stdout.isatty():
        say("")
    if ivy.returncode != 0:
        raise FetchFailed(
            "JVM parts: Ivy could not download them. Check the network and run the same command "
            "again; finished downloads are kept. Ivy's last lines:\n  " + "\n  ".join(last)
        )


def _show_downloaded(downloaded: int, total: int | None) -> None:
    """Show the number of downloaded jars: in place on a terminal, else in some lines.

    Args:
        downloaded: Number of downloaded jars.
        total: Number of all jars, some of which may be in Ivy's cache; None if it is not known.
    """
    text = f"      {downloaded}{f' of {total}' if total else ''} jars downloaded"
    if sys.stdout.isatty():
        sys.stdout.write(f"\r{text}")
        sys.stdout.flush()
    elif downloaded % PROGRESS_EVERY == 0:
        say(text)


@contextmanager
def locked_incoming(folder: Path) -> Iterator[Path]:
    """Yield an empty folder on the same file system, to one process at a time; remove it after."""
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
    """Download and check the jars, unless all of them are installed.

    Raises:
        FetchFailed: A jar could not be downloaded, or it is not the recorded one.
    """
    if keep_verified(parts):
        return
    with locked_incoming(parts.folder) as incoming:
        if keep_verified(parts):  # Another process has installed them meanwhile.
            return
        say(heading)
        total = len(read_checksums(parts.checksums))
        retrieve(parts, incoming, total)
        install(parts, incoming)
    say(f"      {total} jars installed, with the recorded checksums")


def write_checksums(parts: Parts) -> None:
    """Download the jars of ivy.xml, record their checksums, and install them.

    Raises:
        FetchFailed: Ivy failed.
    """
    with locked_incoming(parts.folder) as incoming:
        retrieve(parts, incoming)
        found = jars_in(incoming, parts.configurations())
        parts.checksums.write_text(
            "".join(f"{sha256(path)}  {name}\n" for name, path in sorted(found.items()))
        )
        install(parts, incoming)
        keep_verified(parts)
    say(f"{parts.checksums.name}: {len(found)} jars recorded. Review the change.")


def say(line: str) -> None:
    """Print a line, and flush it."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _read(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


def main(arguments: list[str] | None = None) -> int:
    """Install the jars of the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "--parts", type=Path, default=HERE, help="folder with ivy.xml and checksums.sha256"
    )
    parser.add_argument(
        "--into",
        type=Path,
        default=PROJECT / ".tidemark" / "jvm",
        help="folder of the jars; default: .tidemark/jvm",
    )
    parser.add_argument(
        "--write-checksums",
        action="store_true",
        help="download the jars of ivy.xml, and record their checksums as the right ones",
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
    except (FetchFailed, OSError) as problem:
        sys.stderr.write(f"{problem}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
