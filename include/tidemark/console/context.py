"""The context of each page: the home, the rights of the viewer, and the prefix of links."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import Query
from pydantic import BeforeValidator, Field

from tidemark.app.adapters import utc_now
from tidemark.app.app import App
from tidemark.app.pipeline import Pipeline
from tidemark.console.guard import Viewer
from tidemark.console.home import Home
from tidemark.core.errors import TidemarkError
from tidemark.core.parallel import result_or_error
from tidemark.core.texts import counted
from tidemark.quality.check_results import CheckResult
from tidemark.quality.checks import BUILT_IN_CHECKS, observed_text
from tidemark.spec.errors import UnknownPipeline
from tidemark.spec.model import PipelineSpec
from tidemark.spec.ref import PipelineRef

PLANS_PER_PAGE = 20

_EMPTY_IS_ABSENT = BeforeValidator(lambda text: None if text == "" else text)
"""A form sends its empty fields."""
Pattern = Annotated[Annotated[str, Field(max_length=249)] | None, _EMPTY_IS_ABSENT, Query()]
"""A pattern of names of topics, which are at most this long."""
Number = Annotated[Annotated[int, Field(ge=0, le=2**63 - 1)] | None, _EMPTY_IS_ABSENT, Query()]
"""A number in an address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page to render.

    Attributes:
        template: Name of the template.
        values: Values of the template.
    """

    template: str
    values: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class PageContext:
    """The context of one request.

    Attributes:
        home: What the console shows.
        app: The app of the home at the start of the request.
        viewer: The user, whose rights decide what a page contains.
        root: Path prefix of all links.
        airflow: Path prefix of the Airflow around the console; None for `tidemark console`.
    """

    home: Home
    # Not a `cached_property`: all requests share its lock in Python 3.11, and a load can take long.
    app: App
    viewer: Viewer
    root: str
    airflow: str | None

    @cached_property
    def specs(self) -> Mapping[str, PipelineSpec]:
        """The specs that the viewer may see, by pipeline, for lists of all pipelines."""
        visible = self.viewer.visible(self.app.specs.values())
        return {spec.name: spec for spec in sorted(visible, key=lambda spec: spec.name)}

    def specs_of_dag(self, dag_id: str) -> Mapping[str, PipelineSpec]:
        """Return the specs of a DAG that the viewer may see, by pipeline."""
        specs = self.app.specs
        return {
            name: specs[name]
            for name in sorted(specs)
            if specs[name].dag_id == dag_id and self.viewer.may_see(specs[name])
        }

    @cached_property
    def sees_all(self) -> bool:
        """Whether the viewer may see every pipeline, also those whose specs are invalid."""
        has_all = len(self.specs) == len(self.app.specs)
        return has_all and self.viewer.may_see_invalid_specs()

    def pipeline(self, name: str) -> Pipeline:
        """Return a visible pipeline.

        Raises:
            UnknownPipeline: No pipeline has this name, or the viewer may not see it.
            SpecError: Its spec is invalid, and the viewer may see invalid specs.
            InvalidReference: This is another table of a pipeline, such as `prices@typed`.
        """
        ref = PipelineRef.parse(name)
        spec = self.app.specs.get(ref.name)
        if not (self.sees_all if spec is None else self.viewer.may_see(spec)):
            raise UnknownPipeline(pipeline=name, known=())
        return self.app.pipeline(ref)

    def page(self, template: str, **values: Any) -> Page:
        """Return a page with the values that all templates use."""
        common = {"now": utc_now(), "link": self.link, "airflow": self.airflow}
        return Page(template=template, values={**common, **values})

    def link(self, *parts: str | int, **query: Any) -> str:
        """Return the address of a page of the console; omits values of the query that are None."""
        path = "/".join(quote(str(part), safe="") for part in parts)
        given = {key: value for key, value in query.items() if value is not None}
        return f"{self.root}/{path}{f'?{urlencode(given)}' if given else ''}"

    def suite_error(self, pipeline: Pipeline) -> TidemarkError | None:
        """Return the error of the pipeline's suite; None if it is valid, or if there is none."""
        found = result_or_error(pipeline.name, lambda _: pipeline.masked_columns())
        return found if isinstance(found, TidemarkError) else None

    def observed(self, pipeline: Pipeline) -> Callable[[CheckResult], str]:
        """Return the function that shows what a check observed.

        The text can have keys and values of records, so it needs the right to payloads. Without
        it, or without a valid suite, only figures and counts are shown. Values of masked columns
        are never shown.
        """
        may_read = self.viewer.may_read_payloads(pipeline.spec)
        masked = result_or_error(pipeline.name, lambda _: pipeline.masked_columns())
        if isinstance(masked, TidemarkError):
            # Without its suite, no value may be shown: its column may be masked.
            masked, may_read = (), False

        def show(result: CheckResult) -> str:
            result = result.masked(masked)
            if result.observed is None:
                return "-"
            if may_read:
                return observed_text(result.check, result.observed)
            if result.check in BUILT_IN_CHECKS and result.value is not None:
                return observed_text(result.check, result.value)
            if result.unexpected_count is not None:
                return counted(result.unexpected_count, "record")
            return "(hidden)"

        return show
