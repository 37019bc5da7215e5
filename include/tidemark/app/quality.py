"""Constructs the services that check plans and decide which of them are published."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.app.adapters import Adapters

if TYPE_CHECKING:
    from tidemark.quality.publication_service import Publication
    from tidemark.quality.service import Quality


def quality(adapters: Adapters) -> Quality:
    """Return the service that checks landed plans, with Spark if their suite needs Spark."""
    from tidemark.quality.checker import BatchChecker
    from tidemark.quality.data_docs import DataDocs
    from tidemark.quality.service import Quality

    spec, layout = adapters.spec, adapters.context.layout
    checker = BatchChecker(
        spark=adapters.context.sessions.shared,
        suites=layout.expectations,
        docs=DataDocs(layout.data_docs),
        results=adapters.check_results,
    )
    return Quality(
        spec=spec,
        data_table=adapters.uri(spec.target),
        ports=adapters.topic_ports(),
        checker=adapters.wrap("quality", checker),
    )


def publication(adapters: Adapters) -> Publication:
    """Return the service that decides which plans the published view shows. Needs no JVM."""
    from tidemark.quality.publication_service import Publication

    return Publication(pipeline=adapters.spec.name, ports=adapters.topic_ports(reads_only=True))
