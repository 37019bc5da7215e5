"""What happened to the topic since it was last read."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.errors.base import PERHAPS_DONE, TerminalError, TransientError, listed


@dataclass(kw_only=True, eq=False)
class NoStartOffset(TerminalError):
    """Policy `start: none`, and a partition without a committed offset."""

    pipeline: str
    topic: str
    partitions: tuple[int, ...]

    def what(self) -> str:
        return f"pipeline {self.pipeline!r} may not choose a start for {self.topic}"

    def expected(self) -> str:
        return "a committed offset for every partition, because the spec says start: none"

    def found(self) -> str:
        return f"none for partition(s) {listed(self.partitions)}"

    def remedy(self) -> str:
        return (
            "set `start` in the spec to earliest, latest or a timestamp for the first run, or go "
            "on from offsets that another reader has come to: `tidemark start --help`"
        )


@dataclass(kw_only=True, eq=False)
class LostRange(TerminalError):
    """Retention removed offsets before they were read (S7)."""

    pipeline: str
    topic: str
    lost: tuple[tuple[int, int, int], ...]
    plan: int | None = None

    def what(self) -> str:
        ranges = ", ".join(f"{partition}: [{start}, {end})" for partition, start, end in self.lost)
        reader = f"pipeline {self.pipeline!r}" if self.plan is None else f"plan {self.plan}"
        return f"{self.topic} lost offsets before {reader} read them ({ranges})"

    def expected(self) -> str:
        marks = ", ".join(f"{partition}: {start}" for partition, start, _ in self.lost)
        return f"low-water marks no higher than these, by partition: {marks}"

    def found(self) -> str:
        return f"{sum(end - start for _, start, end in self.lost)} offset(s) deleted from Kafka"

    def remedy(self) -> str:
        accept = f"`tidemark accept-loss {self.pipeline} --reason TEXT`"
        if self.plan is not None:
            given_up = f"`tidemark abandon {self.pipeline} --plan {self.plan} --reason TEXT`"
            accept = f"{given_up}, then {accept}"
        return (
            "nothing was written and nothing is skipped silently: lengthen the topic's retention; "
            f"if the records are gone for good, {accept}"
        )


@dataclass(kw_only=True, eq=False)
class TopicRecreated(TerminalError):
    """The topic was deleted and made again: the same offsets name other records."""

    pipeline: str
    topic: str
    known_topic_id: str
    current_topic_id: str

    def what(self) -> str:
        return f"topic {self.topic!r} is not the topic that pipeline {self.pipeline!r} knows"

    def expected(self) -> str:
        return f"topic id {self.known_topic_id}"

    def found(self) -> str:
        return f"topic id {self.current_topic_id}"

    def remedy(self) -> str:
        return (
            "offsets of the old topic mean nothing in the new one; if it was made again on "
            f"purpose, `tidemark new-incarnation {self.pipeline} --reason TEXT` reads it from its "
            "start (docs/runbook.md, TopicRecreated)"
        )


@dataclass(kw_only=True, eq=False)
class TopicChanged(TerminalError):
    """The spec names another topic than the one the pipeline has read."""

    pipeline: str
    known_topic: str
    topic: str

    def what(self) -> str:
        return f"the spec of pipeline {self.pipeline!r} names another topic than before"

    def expected(self) -> str:
        return f"topic {self.known_topic!r}, which its committed offsets belong to"

    def found(self) -> str:
        return f"topic {self.topic!r}"

    def remedy(self) -> str:
        return "change the spec back, and give the other topic a pipeline of its own"


@dataclass(kw_only=True, eq=False)
class NoTopicId(TerminalError):
    """A broker that tells no topic ids: a remade topic would look like the old one."""

    topic: str

    def what(self) -> str:
        return f"the cluster does not tell the id of topic {self.topic!r}"

    def expected(self) -> str:
        return "a topic id (Kafka 2.8 and later)"

    def found(self) -> str:
        return "none"

    def remedy(self) -> str:
        return (
            "upgrade the brokers: without topic ids a remade topic cannot be told from the old one"
        )


@dataclass(kw_only=True, eq=False)
class ClusterChanged(TerminalError):
    """The connection leads to another Kafka cluster than before."""

    pipeline: str
    known_cluster_id: str
    current_cluster_id: str

    def what(self) -> str:
        return f"the connection of pipeline {self.pipeline!r} leads to another cluster"

    def expected(self) -> str:
        return f"cluster id {self.known_cluster_id}"

    def found(self) -> str:
        return f"cluster id {self.current_cluster_id}"

    def remedy(self) -> str:
        return (
            "point the connection at the old cluster; if the pipeline moved on purpose, "
            f"`tidemark new-incarnation {self.pipeline} --reason TEXT`"
        )


@dataclass(kw_only=True, eq=False)
class PartitionsShrunk(TerminalError):
    """A topic with fewer partitions than before, which Kafka cannot do (S10)."""

    pipeline: str
    topic: str
    missing: tuple[int, ...]

    def what(self) -> str:
        return f"topic {self.topic!r} has lost partitions of pipeline {self.pipeline!r}"

    def expected(self) -> str:
        return f"partition(s) {listed(self.missing)}"

    def found(self) -> str:
        return "no such partition(s)"

    def remedy(self) -> str:
        return "Kafka cannot remove partitions: check that the connection leads to the right topic"


@dataclass(kw_only=True, eq=False)
class EndBehindCommitted(TerminalError):
    """The log ends before an offset that landed, or that a plan needs.

    Attributes:
        pipeline: Pipeline name.
        topic: Topic name.
        partition: Partition number.
        offset: Offset that the log should reach.
        end: Log end offset.
        plan: The open plan that needs the offset.
        undo: Known landed plans with records that Kafka no longer has.
    """

    pipeline: str
    topic: str
    partition: int
    offset: int
    end: int
    plan: int | None = None
    undo: tuple[int, ...] = ()

    def what(self) -> str:
        reader = f"pipeline {self.pipeline!r}" if self.plan is None else f"plan {self.plan}"
        return f"{self.topic}[{self.partition}] ends before an offset that {reader} needs"

    def expected(self) -> str:
        return f"an end of at least {self.offset}"

    def found(self) -> str:
        return f"an end of {self.end}"

    def remedy(self) -> str:
        advice = "nothing was written: if a transaction is open, wait for its end"
        if self.undo:
            advice += f"; if the log was truncated, {_undone(self.pipeline, self.undo)}"
        if self.plan is not None:
            advice += (
                f"; plan {self.plan} can land once the log is long enough, or "
                f"`tidemark abandon {self.pipeline} --plan {self.plan} --reason TEXT`"
            )
        return f"{advice} (docs/runbook.md, EndBehindCommitted)"


@dataclass(kw_only=True, eq=False)
class LogTruncated(TerminalError):
    """Kafka's log has other records than the table at landed offsets.

    The log was truncated or restored, or another program changed the last landed row.

    Attributes:
        pipeline: Pipeline name.
        topic: Topic name.
        partition: Partition number.
        offset: Next offset after the compared ones.
        leader_epoch: The recorded leader epoch of the offset; None if the last landed row differs
            from Kafka's record, which a change of the row explains as well.
        undo: Known landed plans with records that Kafka no longer has.
    """

    pipeline: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int | None = None
    undo: tuple[int, ...] = ()

    def what(self) -> str:
        if self.leader_epoch is None:
            return (
                f"{self.topic}[{self.partition}] differs from the table of pipeline "
                f"{self.pipeline!r} before offset {self.offset}: the log was truncated or "
                "restored, or the row was changed in the table"
            )
        return (
            f"{self.topic}[{self.partition}] no longer has the records that pipeline "
            f"{self.pipeline!r} read before offset {self.offset}"
        )

    def expected(self) -> str:
        if self.leader_epoch is None:
            return "the last landed row equals Kafka's record at its offset"
        return (
            f"the records before offset {self.offset} as leader epoch {self.leader_epoch} had them"
        )

    def found(self) -> str:
        if self.leader_epoch is None:
            return "another record, or none at the row's offset"
        return "a log that was truncated before that offset, and has grown again"

    def remedy(self) -> str:
        advice = ["nothing was written"]
        if self.leader_epoch is None:
            advice.append(
                f"`tidemark verify {self.pipeline}` lists the rows that differ; if rows were "
                f"changed in the table, `tidemark backfill {self.pipeline} --offsets "
                f"{self.partition}:START-END --replace --reason TEXT` lands them again as Kafka "
                "has them"
            )
        if self.undo:
            advice.append(f"if the log was truncated, {_undone(self.pipeline, self.undo)}")
        return f"{'; '.join(advice)} (docs/runbook.md, LogTruncated)"


def _undone(pipeline: str, plans: tuple[int, ...]) -> str:
    others = f", the same for plan(s) {listed(plans[1:])}" if plans[1:] else ""
    return (
        f"`tidemark undo {pipeline} --plan {plans[0]} --reason TEXT`{others}, then run again: the "
        "next plans land Kafka's current records; copy rows that exist nowhere else first"
    )


@dataclass(kw_only=True, eq=False)
class NothingLost(TerminalError):
    """A loss is to be accepted, and every unread offset can still be read."""

    pipeline: str
    topic: str
    partitions: tuple[int, ...]

    def what(self) -> str:
        return f"pipeline {self.pipeline!r} has lost nothing of {self.topic}"

    def expected(self) -> str:
        return f"unread offsets below the low-water mark of partition(s) {listed(self.partitions)}"

    def found(self) -> str:
        return "none"

    def remedy(self) -> str:
        return f"`tidemark status {self.pipeline}` shows the marks; {PERHAPS_DONE}"


@dataclass(kw_only=True, eq=False)
class SameIncarnation(TerminalError):
    """A new incarnation is to be accepted, and the topic is the one that is known."""

    pipeline: str
    topic: str
    topic_id: str

    def what(self) -> str:
        return f"topic {self.topic!r} of pipeline {self.pipeline!r} is the one it was"

    def expected(self) -> str:
        return "another topic id, or another cluster, than the committed offsets belong to"

    def found(self) -> str:
        return f"topic id {self.topic_id}"

    def remedy(self) -> str:
        return f"to read records again, run a backfill; {PERHAPS_DONE}"


@dataclass(kw_only=True, eq=False)
class OffsetsDeleted(TransientError):
    """Kafka deleted offsets while they were read."""

    topic: str
    partition: int
    offset: int

    def what(self) -> str:
        return f"{self.topic}[{self.partition}] changed while it was read"

    def expected(self) -> str:
        return f"offset {self.offset} inside the log"

    def found(self) -> str:
        return "a log that begins after it, or ends before it"

    def remedy(self) -> str:
        return "run the same command again: it starts from the marks of then"


@dataclass(kw_only=True, eq=False)
class UnknownPartition(TerminalError):
    """A partition that the topic does not have."""

    topic: str
    partition: int
    partitions: int

    def what(self) -> str:
        return f"topic {self.topic!r} has no partition {self.partition}"

    def expected(self) -> str:
        return f"a partition from 0 to {self.partitions - 1}"

    def found(self) -> str:
        return str(self.partition)

    def remedy(self) -> str:
        return "name a partition that `tidemark status PIPELINE` shows"
