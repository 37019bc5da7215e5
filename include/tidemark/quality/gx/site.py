"""Great Expectations' pages without what they fetch from the network.

As shipped, a page loads scripts, styles and icons from six public hosts, and a logo whose address
carries the id of the data context. Without them its tables stay empty and its icons blank. Here a
page is one file: the same content from the same renderers, in templates that need nothing else.

The shipped templates also print examples of failed values as they are. A record could so put a
script into the report about it; here every plain text is escaped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jinja2
import markupsafe
from great_expectations.render.renderer.site_builder import SiteBuilder

from tidemark.quality.gx.docs import TEMPLATES

_COMPILED = jinja2.FileSystemBytecodeCache()
"""Cache of compiled templates, in a temporary folder that only this user can write."""


class OfflineSiteBuilder(SiteBuilder):  # type: ignore[misc]  # the library ships no types
    """Builds pages of suites and validations; start pages are `docs.write_index`'s."""

    def __init__(
        self,
        data_context: Any,
        store_backend: Any,
        site_name: str | None = None,
        site_section_builders: Any = None,
        runtime_environment: Any = None,
    ) -> None:
        """Put our templates before the shipped ones.

        The library passes configuration only to parameters it finds by name, so they are named.
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
        """Write the pages of some resources, and copy none of the shipped 4 MB of fonts."""
        for section in self.site_section_builders.values():
            section.build(resource_identifiers=resource_identifiers)
        return None, None


def _escaping(render: Callable[..., Any]) -> Callable[..., Any]:
    """The filter that renders any content, made to escape content that is plain text."""

    @jinja2.pass_context
    def escaped(context: Any, content: Any, *more: Any, **named: Any) -> Any:
        if isinstance(content, str):
            return markupsafe.escape(content)
        return render(context, content, *more, **named)

    return escaped
