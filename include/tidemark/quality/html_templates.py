"""HTML pages from Jinja templates. Values are escaped, and their invisible characters are shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from tidemark.core.texts import visible

TEMPLATES = Path(__file__).parent / "templates"
"""Templates of the report and of Data Docs, and the style sheet of all pages."""


def html_environment(*folders: Path) -> jinja2.Environment:
    """Return an environment for the templates of some folders.

    It keeps compiled templates, so a module creates its environment once.

    Args:
        folders: Folders of the templates. The first one that has a name wins.
    """
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _shown(value: Any) -> Any:
    # Markup is never a value from tables or records. Any other object may contain such values.
    return value if isinstance(value, Markup) else visible(str(value))
