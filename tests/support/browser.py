"""Opens pages in a real browser."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

from tests.conftest import PROJECT

_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--hide-scrollbars",
)
_ASK = """<script>
  const told = element => [element.tagName, element.textContent.trim()];
  document.querySelectorAll("details").forEach(details => details.open = true);
  const elements = [...document.querySelectorAll("h1, h2, td, polyline")];
  const isSeen = element => element.getBoundingClientRect().width > 0;
  const asked = document.createElement("pre");
  asked.id = "asked";
  asked.textContent = JSON.stringify({
    fetched: performance.getEntriesByType("resource").map(e => e.name),
    wide: document.documentElement.scrollWidth,
    window: innerWidth,
    seen: elements.filter(isSeen).map(told),
    unseen: elements.filter(element => !isSeen(element)).map(told),
  });
  document.body.append(asked);
</script>"""


@dataclass(frozen=True, slots=True)
class Seen:
    """A page in a browser, with all of its details open.

    Attributes:
        fetched: URLs of loaded resources.
        overflow: Number of pixels by which the page is wider than the window.
        elements: Tags and texts of visible headings, cells and lines.
        unseen: Tags and texts of invisible ones.
        words: Messages of the browser's console.
    """

    fetched: list[str]
    overflow: int
    elements: list[tuple[str, str]]
    unseen: list[tuple[str, str]]
    words: list[str]


def seen(page: Path, folder: Path, *, width: int = 1000) -> Seen:
    """Open a page in a window of `width` pixels, and save a screenshot to a folder."""
    asked = folder / "asked.html"
    asked.write_text(page.read_text().replace("</body>", f"{_ASK}</body>"))
    program = subprocess.run(
        ["sh", str(PROJECT / "tests" / "browser.sh")], capture_output=True, text=True, check=False
    ).stdout.strip()
    assert program, "no browser: `make setup-dev` installs one"
    common = [program, *_FLAGS, f"--user-data-dir={folder / 'profile'}"]
    common += [f"--window-size={width},1400", "--enable-logging=stderr", "--v=0"]
    dumped = _run([*common, "--dump-dom", asked.as_uri()])
    _run([*common, f"--screenshot={folder / 'page.png'}", page.as_uri()])
    found = re.search(r'<pre id="asked">(.*?)</pre>', dumped.stdout, re.DOTALL)
    assert found, dumped.stderr[-2000:]
    told: dict[str, Any] = json.loads(unescape(found[1]))
    return Seen(
        fetched=told["fetched"],
        overflow=told["wide"] - told["window"],
        elements=[(tag, text) for tag, text in told["seen"]],
        unseen=[(tag, text) for tag, text in told["unseen"]],
        words=[line for line in dumped.stderr.splitlines() if "CONSOLE" in line],
    )


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
