"""Prometheus and promtool, as Debian packs them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

from tests.conftest import PROJECT
from tests.support.waiting import wait_until

RULES = PROJECT / "include" / "monitoring" / "prometheus-alarms.yaml"
TOKEN = "secret"


def program(name: str) -> str:
    """Return the path of a program."""
    folder = subprocess.run(
        ["sh", str(PROJECT / "tests" / "prometheus.sh")],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    assert folder, "no promtool: `make setup-dev` installs it"
    return f"{folder}/{name}"


def promtool(*arguments: str, standard_input: str | None = None) -> None:
    """Run promtool, which must find no fault."""
    done = subprocess.run(
        [program("promtool"), *arguments],
        input=standard_input,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr


@dataclass(frozen=True)
class Prometheus:
    """A running Prometheus that has scraped its target.

    Attributes:
        url: Address of its API.
    """

    url: str

    def api(self, path: str, **query: str) -> Any:
        """Return the data of an answer of the API, which must succeed."""
        with urlopen(f"{self.url}/api/v1/{path}?{urlencode(query)}", timeout=10) as answer:
            return json.load(answer)["data"]

    def values(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Return the labels and the value of each series of an expression."""
        result = self.api("query", query=expression)["result"]
        return [(each["metric"], float(each["value"][1])) for each in result]


@contextmanager
def prometheus(folder: Path, scrape: str, port: int) -> Iterator[Prometheus]:
    """Run Prometheus on a free port until the end of the block.

    Args:
        folder: An empty folder for its data and configuration.
        scrape: A configuration with a `scrape_configs` section.
        port: A free port on 127.0.0.1.
    """
    config = folder / "prometheus.yml"
    config.write_text(scrape, encoding="utf-8")
    address = f"127.0.0.1:{port}"
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(
            [
                program("prometheus"),
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={address}",
            ],
            stdout=log,
            stderr=log,
        )
    running = Prometheus(f"http://{address}")
    try:
        wait_until(lambda: _has_scraped(running), 60, 0.1, what="a scrape by Prometheus")
        yield running
    finally:
        process.terminate()
        process.wait(30)


def _has_scraped(running: Prometheus) -> bool:
    try:
        return any(value == 1 for _, value in running.values("up"))
    except OSError:
        return False
