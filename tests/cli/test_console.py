"""`tidemark console` as a process: its link, its cookie, its bearer token, and its port."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from tests.support.file_lake import home_lake
from tidemark.cli.console import HOST, _listen

pytestmark = pytest.mark.slow

TOKEN = "token-of-the-test"


def test_the_link_logs_in_and_the_token_reads_metrics_only(tmp_path: Path) -> None:
    """The name of the cookie has the port, because browsers send cookies to all ports."""
    home_lake(tmp_path)
    environ = {
        **os.environ,
        "TIDEMARK_HOME": str(tmp_path),
        "TIDEMARK_LAKEHOUSE": str(tmp_path / "lakehouse"),
        "TIDEMARK_PIPELINES": str(tmp_path / "pipelines"),
        "TIDEMARK_CONSOLE_TOKEN": TOKEN,
    }
    command = [str(Path(sys.executable).with_name("tidemark")), "console", "--port", "0", "--json"]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as console:
        try:
            assert console.stdout is not None
            printed = "".join(iter(console.stdout.readline, "}\n"))
            address, link = json.loads(f"{printed}}}").values()
            with httpx2.Client(base_url=address, trust_env=False, timeout=30) as client:
                assert client.get("/").status_code == 401
                bearer = {"Authorization": f"Bearer {TOKEN}"}
                pages = ("/metrics", "/health", "/", "/pipelines/events/records")
                statuses = [client.get(page, headers=bearer).status_code for page in pages]
                assert statuses == [200, 200, 403, 403]
                # The name of a host that resolves to this machine, as in DNS rebinding.
                foreign = client.get("/health", headers={**bearer, "Host": "example.test"})
                assert foreign.status_code == 400
                assert client.head(link).status_code == 403
                assert client.get(link).status_code == 303
                assert list(client.cookies) == [f"tidemark_console_{address.rpartition(':')[2]}"]
                assert client.get("/").status_code == 200
        finally:
            console.terminate()


def test_the_port_accepts_connections_before_the_link_is_printed() -> None:
    """A request to the link waits for the server instead of being refused."""
    with _listen(0) as listening, socket.create_connection((HOST, listening.getsockname()[1])):
        assert listening.getsockname()[1] > 0
