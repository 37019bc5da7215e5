"""The text of HTML pages."""

from __future__ import annotations

import re
from html import unescape


def text_of(html: str) -> str:
    """Return the text of a page's body, or of a part of a page, with single spaces."""
    body = html.rpartition("<body>")[2]
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", body)).split())
