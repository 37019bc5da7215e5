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

FLAGS = (
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
  const tagAndText = element => [element.tagName, element.textContent.trim()];
  document.querySelectorAll("details").forEach(details => details.open = true);
  const elements = [...document.querySelectorAll("h1, h2, td, polyline")];
  const isSeen = element => element.getBoundingClientRect().width > 0;
  const measured = document.createElement("pre");
  measured.id = "measured";
  measured.textContent = JSON.stringify({
    fetched: performance.getEntriesByType("resource").map(e => e.name),
    wide: document.documentElement.scrollWidth,
    window: innerWidth,
    seen: elements.filter(isSeen).map(tagAndText),
    unseen: elements.filter(element => !isSeen(element)).map(tagAndText),
  });
  document.body.append(measured);
</script>"""


@dataclass(frozen=True, slots=True)
class RenderedPage:
    """A page in a browser, with all of its details open.

    Attributes:
        fetched: URLs of loaded resources.
        overflow: Number of pixels by which the page is wider than the window.
        elements: Tags and texts of visible headings, cells and lines.
        unseen: Tags and texts of invisible ones.
        messages: Messages of the browser's console.
    """

    fetched: list[str]
    overflow: int
    elements: list[tuple[str, str]]
    unseen: list[tuple[str, str]]
    messages: list[str]


def open_page(page: Path, folder: Path, *, width: int = 1000) -> RenderedPage:
    """Open a page in a window of `width` pixels, and save a screenshot to a folder."""
    measured = folder / "measured.html"
    measured.write_text(page.read_text().replace("</body>", f"{_ASK}</body>"))
    window = f"--window-size={width},1400"
    dumped = _run(folder, window, "--dump-dom", measured.as_uri())
    _run(folder, window, f"--screenshot={folder / 'page.png'}", page.as_uri())
    found = re.search(r'<pre id="measured">(.*?)</pre>', dumped.stdout, re.DOTALL)
    assert found, dumped.stderr[-2000:]
    found_page: dict[str, Any] = json.loads(unescape(found[1]))
    return RenderedPage(
        fetched=found_page["fetched"],
        overflow=found_page["wide"] - found_page["window"],
        elements=[(tag, text) for tag, text in found_page["seen"]],
        unseen=[(tag, text) for tag, text in found_page["unseen"]],
        messages=[line for line in dumped.stderr.splitlines() if "CONSOLE" in line],
    )


def document_of(url: str, folder: Path) -> str:
    """Return the HTML of a page after its scripts have run for up to ten seconds of its clock.

    Args:
        url: Address with query.
        folder: Folder for the browser's profile.
    """
    return _run(folder, "--virtual-time-budget=10000", "--dump-dom", url).stdout


def browser_program() -> str:
    """Return the path of the browser."""
    program = subprocess.run(
        ["sh", str(PROJECT / "tests" / "browser.sh")], capture_output=True, text=True, check=False
    ).stdout.strip()
    assert program, "no browser: `make setup-dev` installs one"
    return program


def _run(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run the browser with a profile in `folder`."""
    common = [*FLAGS, f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr", "--v=0"]
    return subprocess.run(
        [browser_program(), *common, *flags],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
