"""Pages about Kafka: brokers, topics, partitions, settings, and which pipelines read them (S20)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from starlette.exceptions import HTTPException

from tidemark.console.context import Page, PageContext, Pattern
from tidemark.console.newest import Newest
from tidemark.ops.report.cluster import ClusterView


def cluster(context: PageContext, connection: str | None = None, pattern: Pattern = None) -> Page:
    """Brokers and topics of one connection, by default of the first one."""
    visible = _connections(context)
    chosen = connection or next(iter(visible), None)
    found: Newest[ClusterView] = Newest()
    if chosen is not None:
        _check_visible(context, chosen)
        found = context.home.cluster(chosen, pattern or "*")
    view = found.value
    return context.page(
        "cluster.html",
        connections=visible,
        connection=chosen,
        pattern=pattern,
        found=found,
        view=view,
        missing=_missing_topics(view, context.specs) if view else {},
        visible=context.specs,
    )


def _missing_topics(view: ClusterView, visible: Collection[str]) -> Mapping[str, Sequence[str]]:
    """Return the visible pipelines of each missing topic, without topics of other pipelines."""
    readers = {
        topic: [each.pipeline for each in view.readers(topic) if each.pipeline in visible]
        for topic in view.missing_topics
    }
    return {topic: names for topic, names in readers.items() if names}


def topic(context: PageContext, connection: str, topic: str) -> Page:
    """Partitions and settings of one topic."""
    _check_visible(context, connection)
    found = context.home.topic(connection, topic)
    return context.page(
        "topic.html",
        connection=connection,
        found=found,
        view=found.required(),
        visible=context.specs,
    )


def _connections(context: PageContext) -> Sequence[str]:
    """Return the connections of visible pipelines whose clusters the viewer may see."""
    names = sorted({spec.connection for spec in context.specs.values()})
    return [name for name in names if context.viewer.may_see_cluster(name)]


def _check_visible(context: PageContext, connection: str) -> None:
    """Answer a hidden connection as an unknown one."""
    if connection not in _connections(context):
        raise HTTPException(404)
