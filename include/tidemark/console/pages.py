"""The pages of the console: which template, with which values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import quote, urlencode

from tidemark.console.charts import ZoomLink, coverage_bar, zoom_windows
from tidemark.console.guard import Viewer
from tidemark.console.home import Home
from tidemark.core.errors import TidemarkError
from tidemark.core.offsets import Span
from tidemark.core.parallel import result_or_error
from tidemark.ingest.errors import UnknownPlan
from tidemark.pipeline import Pipeline, utc_now
from tidemark.report.coverage import OffsetState, PartitionCoverage
from tidemark.spec.errors import UnknownPipeline
from tidemark.spec.model import PipelineSpec

PLANS_PER_PAGE = 20
BARS = 64
"""Partitions with a bar on the page of a pipeline; a link leads to each other partition."""


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
class Pages:
    """Builds the pages of one request.

    Attributes:
        home: What the console shows.
        viewer: The user, whose rights decide what a page contains.
        root: Path prefix of all links.
    """

    home: Home
    viewer: Viewer
    root: str

    @cached_property
    def _specs(self) -> Mapping[str, PipelineSpec]:
        """The specs that the viewer may see, by pipeline."""
        specs = self.home.app.specs
        return {name: specs[name] for name in sorted(specs) if self.viewer.may_see(specs[name])}

    def _pipeline(self, name: str) -> Pipeline:
        """Return a visible pipeline.

        Raises:
            UnknownPipeline: There is none of this name, or the viewer may not see it.
        """
        if name not in self._specs and not self._sees_all:
            raise UnknownPipeline(pipeline=name, known=())
        return self.home.app.pipeline(name)

    @property
    def _sees_all(self) -> bool:
        """Whether no pipeline is hidden. Only then the viewer may see invalid specs."""
        return len(self._specs) == len(self.home.app.specs)

    def _page(self, template: str, **values: Any) -> Page:
        return Page(template=template, values={"now": utc_now(), "link": self._link, **values})

    def _link(self, *parts: str | int, **query: Any) -> str:
        """Return the address of a page of the console."""
        path = "/".join(quote(str(part), safe="") for part in parts)
        given = {key: value for key, value in query.items() if value is not None}
        return f"{self.root}/{path}{f'?{urlencode(given)}' if given else ''}"

    # -- pages -------------------------------------------------------------------------------------

    def overview(self) -> Page:
        """Every visible pipeline with its newest status, and invalid specs."""
        broken = self.home.app.spec_folder.broken if self._sees_all else {}
        return self._overview(self._specs, broken)

    def dag(self, dag_id: str) -> Page:
        """The pipelines of a DAG; the page of a single one itself."""
        specs = {name: spec for name, spec in self._specs.items() if spec.dag_id == dag_id}
        if len(specs) == 1:
            return self.pipeline(next(iter(specs)), None, None, None)
        return self._overview(specs, {})

    def _overview(
        self, specs: Mapping[str, PipelineSpec], broken: Mapping[str, TidemarkError]
    ) -> Page:
        observed = self.home.statuses.many(list(specs))
        return self._page("overview.html", specs=specs, observed=observed, broken=broken)

    def pipeline(
        self, name: str, partition: int | None, start: int | None, end: int | None
    ) -> Page:
        """One pipeline: status, coverage, newest plans. A partition and offsets zoom in."""
        pipeline = self._pipeline(name)
        observed = self.home.statuses.one(name)
        coverage = result_or_error(name, lambda _: pipeline.coverage())
        bars: Sequence[_Bar] = ()
        if not isinstance(coverage, TidemarkError):
            chosen = [each for each in coverage if partition in (None, each.partition)]
            bars = [self._bar(name, each, start, end) for each in chosen[:BARS]]
        return self._page(
            "pipeline.html",
            name=name,
            spec=pipeline.spec,
            observed=observed,
            coverage_error=coverage if isinstance(coverage, TidemarkError) else None,
            partitions=() if isinstance(coverage, TidemarkError) else coverage,
            bars=bars,
            states=list(OffsetState),
            partition=partition,
            plans=self._newest_plans(pipeline, None),
        )

    def plans(self, name: str, before: int | None) -> Page:
        """Plans of a pipeline, newest first, a page of them."""
        pipeline = self._pipeline(name)
        entries = self._newest_plans(pipeline, before)
        older = entries[-1].record.plan.sequence if entries else 1
        return self._page("plans.html", name=name, plans=entries, older=older, spec=pipeline.spec)

    def _newest_plans(self, pipeline: Pipeline, before: int | None) -> Sequence[Any]:
        newest = pipeline.control.summary(pipeline.name).last_sequence
        end = newest + 1 if before is None else min(before, newest + 1)
        return pipeline.control.plan_history(pipeline.name, max(1, end - PLANS_PER_PAGE), end)

    def plan(self, name: str, sequence: int) -> Page:
        """One plan: ranges, events, checks and publication."""
        pipeline = self._pipeline(name)
        entries = pipeline.control.plan_history(name, sequence, sequence + 1)
        if not entries:
            newest = pipeline.control.summary(name).last_sequence
            raise UnknownPlan(pipeline=name, sequence=sequence, latest=newest or None)
        checked = pipeline.check_results.checked(name, [sequence])
        return self._page(
            "plan.html",
            name=name,
            spec=pipeline.spec,
            entry=entries[0],
            decision=pipeline.publication.decision(sequence),
            checked=checked[0] if checked else None,
        )

    # -- parts -------------------------------------------------------------------------------------

    def _bar(
        self, name: str, coverage: PartitionCoverage, start: int | None, end: int | None
    ) -> _Bar:
        extent = coverage.extent
        if extent is None:
            return _Bar(coverage=coverage, window=None, svg="", out=None, states=())
        first = min(max(extent.start, start or 0), extent.end - 1)
        window = Span(first, max(first + 1, min(extent.end, end or extent.end)))
        links = [
            ZoomLink(
                window=part,
                href=self._link(
                    "pipelines", name, partition=coverage.partition, start=part.start, end=part.end
                ),
            )
            for part in zoom_windows(window)
            if part != window
        ]
        wider = max(window.size * 12, 1)
        out = Span(
            max(extent.start, window.start - wider // 2), min(extent.end, window.end + wider // 2)
        )
        return _Bar(
            coverage=coverage,
            window=window,
            svg=coverage_bar(coverage, window, links),
            out=self._link(
                "pipelines", name, partition=coverage.partition, start=out.start, end=out.end
            )
            if window != extent
            else None,
            states=[
                (state, sum(span.size for span in spans.within(window)))
                for state, spans in coverage.states.items()
                if spans.within(window)
            ],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bar:
    """The bar of one partition.

    Attributes:
        coverage: The partition.
        window: The offsets of the bar; None without offsets.
        svg: The bar.
        out: Address of a wider window; None for the whole partition.
        states: Number of offsets by state, in the window.
    """

    coverage: PartitionCoverage
    window: Span | None
    svg: str
    out: str | None
    states: Sequence[tuple[OffsetState, int]]
