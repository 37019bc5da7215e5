"""Sphinx configuration of the documentation site (`make docs`).

The pages stay plain Markdown that GitHub can show. At build time this module appends the parts that
are made from the code or come from outside this folder. It also points links at the site.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import typer
from typer.cli import get_docs_for_click

from tidemark import cli

PROJECT = Path(__file__).resolve().parent.parent

project = "Tidemark"
project_copyright = "the Tidemark authors"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_static"]
root_doc = "index"

smartquotes = False
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "separated"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
# A single backquote in a docstring is code.
default_role = "code"
add_module_names = False
python_use_unqualified_type_names = True
viewcode_line_numbers = True

html_theme = "furo"
html_title = "Tidemark"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_search_scorer = str(Path(__file__).with_name("_static") / "scorer.js")
html_show_sphinx = False
html_show_copyright = False
html_show_sourcelink = False
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#0b5c8a",
        "color-brand-content": "#0b5c8a",
        "font-stack": "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif",
    },
    "dark_css_variables": {"color-brand-primary": "#7cc4ee", "color-brand-content": "#7cc4ee"},
}

OUTSIDE = {
    "CHANGELOG.md": "reference/changes",
    "bench/README.md": "explanation/benchmarks",
    "bench/RESULTS.md": "explanation/results",
}
"""Pages outside this folder, and their places on the site."""

_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
_EXAMPLES = re.compile(r"(?:^tidemark .*\n(?:^  .*\n)*)+(?=\n)", flags=re.MULTILINE)


def setup(app: Any) -> None:
    """Register the changes of pages at build time."""
    app.connect("source-read", _complete)


def _complete(_: Any, page: str, source: list[str]) -> None:
    """Change the source of a page in place: a list with one text."""
    outside = {place: path for path, place in OUTSIDE.items()}
    if page == "index":
        text = (PROJECT / "README.md").read_text(encoding="utf-8")
        readme = text.partition("\n## Documentation\n")[0]
        # Sphinx does not follow the paths of pictures in HTML.
        readme = readme.replace('="docs/_static/', '="_static/')
        pages = _with_links_of_site(source[0].partition("\n")[2], PROJECT / "docs")
        source[0] = _with_links_of_site(readme, PROJECT) + pages
    elif page in outside:
        path = PROJECT / outside[page]
        source[0] = _with_links_of_site(path.read_text(encoding="utf-8"), path.parent)
    else:
        source[0] = _with_links_of_site(source[0], (PROJECT / "docs" / page).parent)
    if page == "reference/commands":
        source[0] += _commands()
    if page == "adr/README":
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\n0*\n```\n"


def _with_links_of_site(text: str, folder: Path) -> str:
    """Return a page with its links to other files of the project as absolute links of the site."""

    def link(found: re.Match[str]) -> str:
        if ":" in found[2]:
            return found[0]
        path = os.path.relpath((folder / found[2]).resolve(), PROJECT)
        if path in OUTSIDE:
            target = f"/{OUTSIDE[path]}.md"
        elif path == "docs/adr":
            target = "/adr/README.md"
        elif path.startswith("docs/"):
            target = path.removeprefix("docs")
        else:
            return found[0]
        return f"{found[1]}{target}{found[3] or ''}{found[4]}"

    return _LINK.sub(link, text)


def _commands() -> str:
    """Return the help of every command as Markdown, in the order of `tidemark --help`."""
    command = typer.main.get_command(cli.app)
    context = typer.Context(command, info_name="tidemark")
    text = get_docs_for_click(obj=command, ctx=context, name="tidemark")
    text = text.partition("\n")[2]
    # Below the title of the page.
    return "\n" + _EXAMPLES.sub(lambda found: f"```console\n{found[0]}```\n", text)
