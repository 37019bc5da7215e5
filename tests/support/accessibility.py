"""Rules of accessibility (WCAG 2.1, levels A and AA, and best practices).

The script axe-core checks most of them. `_reflow` checks what axe-core does not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any
from zipfile import ZipFile

from tests.conftest import PROJECT
from tests.support.chromium import Tab

_BROKEN_WORDS = """[...document.querySelectorAll("th")].filter(cell => {
  const range = document.createRange();
  const texts = [...cell.childNodes].filter(node => node.nodeType === Node.TEXT_NODE);
  return texts.some(node => [...node.data.matchAll(/[^\\s-]+/g)].some(word => {
    range.setStart(node, word.index);
    range.setEnd(node, word.index + word[0].length);
    return new Set([...range.getClientRects()].map(line => line.top)).size > 1;
  }));
}).map(cell => cell.textContent)"""
_TAGS = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice")


@cache
def _axe() -> str:
    """Return the script of axe-core."""
    (jar,) = (PROJECT / ".tidemark" / "axe" / "axe").glob("*.jar")
    with ZipFile(jar) as files:
        return files.read("axe.min.js").decode()


def violations(tab: Tab) -> list[str]:
    """Return the rules that the open page breaks, each with its elements.

    The script comes from the browser, so the page's content security policy permits it.
    """
    if not tab.value("typeof axe === 'object'"):
        tab.value(f"{_axe()}; true")
    options = {"runOnly": {"type": "tag", "values": _TAGS}, "resultTypes": ["violations"]}
    found: dict[str, Any] = tab.value(f"axe.run(document, {json.dumps(options)})")
    of_axe = [
        f"{rule['id']} ({len(rule['nodes'])} elements): {_first(rule['nodes'])}"
        for rule in found["violations"]
    ]
    return [*of_axe, *_reflow(tab)]


def _reflow(tab: Tab) -> list[str]:
    """Return whether the page is wider than its window, and the headers that break in a word."""
    too_wide = tab.value("document.documentElement.scrollWidth - innerWidth")
    broken = tab.value(_BROKEN_WORDS)
    return [
        *([f"reflow: the page is {too_wide} px wider than its window"] if too_wide > 0 else []),
        *(f"reflow: a header cell breaks in a word: {text}" for text in broken),
    ]


def _first(nodes: Sequence[Mapping[str, Any]]) -> str:
    """Describe the first element that breaks a rule."""
    node = nodes[0]
    return f"{node['target']} {node['html'][:200]} {node.get('failureSummary', '')}"
