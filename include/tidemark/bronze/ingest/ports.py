"""The ports of a bronze table: its ledger, its rows, its topic and a clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidemark.bronze.ingest.protocols import (
    Clock,
    ControlTable,
    DataTable,
    TopicLogReader,
    TopicReader,
)
from tidemark.core.watermarks import TopicWatermarks
from tidemark.spec.model import PipelineSpec


@dataclass(frozen=True, kw_only=True)
class Ports:
    """The ports of a bronze table.

    A service opens a reader of the topic at its first use. So a service that does not use a reader
    needs no connection, and a service that does can handle the error of the connection.

    Attributes:
        control: The control table.
        table: The data table.
        open_watermarks: Returns the reader of the topic's watermarks, always the same one.
        open_log_reader: Returns the reader of the topic's records, always the same one.
        now: The clock.
    """

    control: ControlTable
    table: DataTable
    open_watermarks: Callable[[], TopicReader]
    open_log_reader: Callable[[], TopicLogReader]
    now: Clock

    @property
    def watermarks(self) -> TopicReader:
        """Reads watermarks of the topic."""
        return self.open_watermarks()

    def watermarks_of(self, spec: PipelineSpec) -> TopicWatermarks:
        """Return the watermarks of a spec's topic, at the isolation level of the spec."""
        return self.watermarks.topic_watermarks(spec.topic, spec.isolation_level)

    @property
    def log_reader(self) -> TopicLogReader:
        """Reads records of the topic."""
        return self.open_log_reader()
