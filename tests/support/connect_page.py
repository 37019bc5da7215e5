"""Reads the page of a Spark Connect server about its sessions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.request import ProxyHandler, build_opener

from tidemark.spark.sockets import free_ports


@dataclass(frozen=True, slots=True)
class ConnectPage:
    """The page of a server's sessions.

    Attributes:
        port: Port of the server's pages.
    """

    port: int

    @classmethod
    def anywhere(cls) -> ConnectPage:
        """Return a page on a free port."""
        return cls(*free_ports("127.0.0.1", 1))

    @property
    def settings(self) -> dict[str, str]:
        """Spark settings that make a server serve the page."""
        return {"spark.ui.enabled": "true", "spark.ui.port": str(self.port)}

    def sessions(self) -> int:
        """Return the number of open sessions."""
        return self._shown(r"(\d+)\s+session\(s\) are online")

    def requests(self) -> int:
        """Return the number of running operations of sessions."""
        return self._shown(r"running\s+(\d+)\s+Request\(s\)")

    def _shown(self, pattern: str) -> int:
        opener = build_opener(ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{self.port}/connect/", timeout=30) as answer:
            page = answer.read().decode()
        found = re.search(pattern, page)
        assert found, page
        return int(found[1])
