"""The commands of docs/how-to/connections.md start a schema registry without Docker."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests.conftest import PROJECT
from tests.support.waiting import wait_until
from tidemark.silver.typed.registry import ConfluentRegistry
from tidemark.spark.sockets import free_ports

_HEADING = "### A registry on this machine"
_PORT = "8085"
_FOLDER = ".tidemark/apicurio"


@pytest.fixture
def blocks(tmp_path: Path) -> list[str]:
    """The blocks of the section, with a port and a folder of this test."""
    (port,) = free_ports("127.0.0.1", 1)
    page = (PROJECT / "docs" / "how-to" / "connections.md").read_text(encoding="utf-8")
    section = page.partition(_HEADING)[2]
    text = section.replace(_PORT, str(port)).replace(_FOLDER, str(tmp_path))
    return re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def url(blocks: list[str], tmp_path: Path) -> Iterator[str]:
    """The URL of the registry that the page starts; `make registry` has run before the tests."""
    commands = blocks[0].replace("make registry", "true", 1)
    found = re.search(r"http://[^\"]+", blocks[1])
    assert found
    with (tmp_path / "log").open("wb") as log:
        started = subprocess.Popen(
            ["bash", "-euc", commands], cwd=PROJECT, stdout=log, stderr=log, start_new_session=True
        )
        try:
            wait_until(lambda: _answers(started, found[0]), timeout_s=120)
            yield found[0]
        finally:
            os.killpg(started.pid, signal.SIGTERM)
            started.wait(60)


def _answers(started: subprocess.Popen[bytes], url: str) -> bool:
    assert started.poll() is None
    try:
        with urlopen(f"{url}/subjects", timeout=10) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


@pytest.mark.registry
def test_the_commands_of_the_page_start_a_registry_and_register_a_schema(
    blocks: list[str], url: str
) -> None:
    ran = subprocess.run(["bash", "-euc", blocks[2]], capture_output=True, text=True, check=True)
    schema_id = json.loads(ran.stdout)["id"]
    schema = ConfluentRegistry("schema_registry_default", {"url": url}).schema(schema_id)
    assert schema is not None
    assert schema.kind == "AVRO"
