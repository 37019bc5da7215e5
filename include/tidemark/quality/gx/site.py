"""Great Expectations' pages without resources from the network.

The library's templates load scripts, styles and icons from six public hosts, and a logo whose
address contains the id of the data context. Without these resources tables and icons are empty.
With the templates of this package a page is one file. The library's renderers create its content.

The library's templates print examples of failed values unescaped, so that a record can put a script
into the page. This module escapes all plain text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jinja2
import markupsafe
from great_expectations.render.renderer.site_builder import SiteBuilder

from tidemark.quality.html_templates import TEMPLATES

_COMPILED = jinja2.FileSystemBytecodeCache()
"""Cache of compiled templates, in a temporary folder that only this user can write."""


class OfflineSiteBuilder(SiteBuilder):  # type: ignore[misc]  # the library ships no types
    """Builds pages of suites and validations, and no index."""

    def __init__(
        self,
        data_context: Any,
        store_backend: Any,
        site_name: str | None = None,
        site_section_builders: Any = None,
        runtime_environment: Any = None,
    ) -> None:
        """Load templates of this package before those of the library.

        The library passes configuration by name, so this method names the base's parameters.
        """
        super().__init__(
            data_context=data_context,
            store_backend=store_backend,
            site_name=site_name,
            site_section_builders=site_section_builders,
            runtime_environment=runtime_environment,
        )
        for section in self.site_section_builders.values():
            environment = section.view_class.env
            environment.loader = jinja2.ChoiceLoader(
                [jinja2.FileSystemLoader(TEMPLATES), environment.loader]
            )
            # Compiling the templates takes half a second in each process.
            environment.bytecode_cache = _COMPILED
            environment.filters["render_content_block"] = _escaping(
                environment.filters["render_content_block"]
            )

    def build(
        self,
        resource_identifiers: Any = None,
        build_index: bool = True,  # noqa: ARG002  the library passes it
    ) -> tuple[str | None, None]:
        """Write the pages of some resources, without the 4 MB of fonts that the library copies."""
        for section in self.site_section_builders.values():
            section.build(resource_identifiers=resource_identifiers)
        return None, None


def _escaping(render: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that renders content and escapes plain text."""

    @jinja2.pass_context
    def escaped(context: Any, content: Any, *more: Any, **named: Any) -> Any:
        if isinstance(content, str):
            return markupsafe.escape(content)
        return render(context, content, *more, **named)

    return escaped
