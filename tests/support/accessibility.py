"""Rules of accessibility (WCAG 2.1, levels A and AA, and best practices), checked by axe-core."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any
from zipfile import ZipFile

from tests.conftest import PROJECT
from tests.support.chromium import Tab

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
    return [
        f"{rule['id']} ({len(rule['nodes'])} elements): {_first(rule['nodes'])}"
        for rule in found["violations"]
    ]


def _first(nodes: Sequence[Mapping[str, Any]]) -> str:
    """Describe the first element that breaks a rule."""
    node = nodes[0]
    return f"{node['target']} {node['html'][:200]} {node.get('failureSummary', '')}"
