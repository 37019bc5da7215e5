"""Broker faults: leaders that move, nodes that die and come back, logs that are truncated.

One cluster of three nodes, each a broker and a controller. A node is killed with SIGKILL, and is
mended after the test. Two of three must live, or there is no controller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest
from confluent_kafka import (
    Consumer,
    ElectionType,
    IsolationLevel,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec

from tests.faults.tally import Court
from tests.support.cluster import Cluster, three_nodes, wait_until
from tests.support.kafka_judge import log_ranges
from tests.support.lake import Lake
from tests.support.mid_read import LONG, ImpatientLake, in_mid_read
from tests.support.transactions import Record, append, produce_records, produce_values
from tests.support.verdict import judge
from tidemark.core.errors import EndBehindCommitted, ExitCode
from tidemark.core.plan import Plan
from tidemark.core.watermarks import IsolationLevel as Level
from tidemark.ingest.errors import LogTruncated
from tidemark.ingest.executor import ExecutionResult
from tidemark.kafka.errors import KafkaUnavailable
from tidemark.kafka.watermarks import KafkaWatermarkReader
from tidemark.lake.errors import EngineFailed
from tidemark.report.verification import DifferenceKind
from tidemark.spark.sockets import free_ports
from tidemark.spec.layout import Layout
from tidemark.spec.model import StartPolicy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.broker, pytest.mark.spark]

T = TypeVar("T")

PATIENT_S = 30.0
HASTY_S = 1.0


@pytest.fixture(scope="module")
def running(layout: Layout, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One cluster for all tests of this module."""
    with three_nodes(tmp_path_factory.mktemp("cluster"), layout.kafka_jars) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: Cluster) -> Iterator[Cluster]:
    """The cluster, whole before a test; whatever dies in it is started again."""
    yield running
    running.mend()


@pytest.fixture
def lake(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> ImpatientLake:
    """A lake that reads through the proxies; Spark gives up after seconds, planners do not."""
    return ImpatientLake(
        session=spark,
        root=tmp_path,
        connection={"bootstrap.servers": cluster.behind_proxy(1).bootstrap},
        watermarks_timeout_s=PATIENT_S,
    )


@pytest.fixture
def purpose(request: pytest.FixtureRequest) -> str:
    """What topics of this test are called."""
    return str(request.function.__name__)


def more(cluster: Cluster, lake: Lake, court: Court, records: int) -> None:
    """The pipeline goes on as if nothing had been: a further run, and the whole table is exact."""
    produce_values(cluster.bootstrap, lake.spec.topic, 3)
    lake.run("further")
    assert court.judge(lake).records == records + 3


def persevere(run: Callable[[], T]) -> T:
    """Run again, as a scheduler does, as long as the error is that Kafka does not answer.

    A client that has been told of a node that is dead by now waits for it, until its request times
    out.
    """
    done: list[T] = []

    def succeeded() -> bool:
        try:
            done.append(run())
        except KafkaUnavailable:
            return False
        return True

    wait_until("a run without KafkaUnavailable", succeeded)
    return done[0]


def end(running: Future[ExecutionResult], pipeline: Lake, plan: Plan) -> None:
    """The run lands the plan; if Kafka does not answer behind the read, the next run does."""
    failure = running.exception(timeout=120)
    assert failure is None or isinstance(failure, KafkaUnavailable), failure
    # Asked whether it is the same topic still, before the commit and once more for the record.
    assert len(pipeline.rows()) == len(LONG) or (failure and not pipeline.rows())
    assert persevere(lambda: pipeline.ingest.execute(plan.sequence)).landing.records == len(LONG)


# -- leaders that move ---------------------------------------------------------------------------


@pytest.mark.faults
def test_s17_a_leader_elected_between_plan_and_land(
    lake: ImpatientLake, cluster: Cluster, court: Court, purpose: str
) -> None:
    """What one leader counted is read from the next."""
    old, new, third = cluster.others()
    pipeline = lake.of(cluster.make_topic(purpose, [old, new, third]))
    produce_values(cluster.bootstrap, pipeline.spec.topic, 100)
    cluster.reassign(pipeline.spec.topic, [new, old, third])
    assert cluster.partition(pipeline.spec.topic).leader == old
    plan = pipeline.plan("test")
    cluster.elect(pipeline.spec.topic, new)
    assert pipeline.ingest.execute(plan.sequence).landing.records == 100
    assert court.judge(pipeline).records == 100


@pytest.mark.faults
def test_s17_a_leader_elected_in_mid_read(
    lake: ImpatientLake, cluster: Cluster, court: Court, purpose: str
) -> None:
    """Both live: the old leader says that it leads no more, and Kafka's client asks the new."""
    old, new, third = cluster.others()
    pipeline = lake.of(cluster.make_topic(purpose, [old, new, third]))
    produce_records(cluster.bootstrap, pipeline.spec.topic, LONG)
    cluster.reassign(pipeline.spec.topic, [new, old, third])
    plan = pipeline.plan("test")
    fetched = cluster.proxies[new].fetched
    with in_mid_read(pipeline, plan, cluster.behind_proxy(old)) as (running, gate):
        cluster.elect(pipeline.spec.topic, new)
        gate.release()
        assert running.result().landing.records == len(LONG)
    assert cluster.proxies[new].fetched > fetched
    assert court.judge(pipeline).records == len(LONG)
    more(cluster, pipeline, court, len(LONG))


@pytest.mark.faults
def test_s17_a_partition_moved_to_another_node_in_mid_read(
    lake: ImpatientLake, cluster: Cluster, court: Court, purpose: str
) -> None:
    """The node that is read from loses its replica, and the log goes on elsewhere."""
    old, kept, new = cluster.others()
    pipeline = lake.of(cluster.make_topic(purpose, [old, kept]))
    produce_records(cluster.bootstrap, pipeline.spec.topic, LONG)
    plan = pipeline.plan("test")
    with in_mid_read(pipeline, plan, cluster.behind_proxy(old)) as (running, gate):
        cluster.reassign(pipeline.spec.topic, [new, kept])
        cluster.wait_for_leader(pipeline.spec.topic, new)
        gate.release()
        assert running.result().landing.records == len(LONG)
    assert court.judge(pipeline).records == len(LONG)
    more(cluster, pipeline, court, len(LONG))


# -- nodes that die ------------------------------------------------------------------------------


def test_s17_a_leader_killed_in_mid_read_and_back(
    lake: ImpatientLake, cluster: Cluster, court: Court, purpose: str
) -> None:
    """A retry inside Kafka's client, not a record; nor when the node is back among the replicas."""
    controller = cluster.controller()
    leader, follower = cluster.others(controller)
    topic = cluster.make_topic(purpose, [leader, follower, controller])
    pipeline = replace(lake, watermarks_timeout_s=HASTY_S).of(topic)
    produce_records(cluster.bootstrap, topic, LONG)
    plan = persevere(lambda: pipeline.plan("test"))
    with in_mid_read(pipeline, plan, cluster.behind_proxy(leader)) as (running, gate):
        cluster.kill(leader)
        gate.release()
        end(running, pipeline, plan)
    assert persevere(lambda: court.judge(pipeline)).records == len(LONG)
    assert pipeline.ledger.event_number == 2
    produce_values(cluster.bootstrap, topic, 3)
    cluster.mend()
    persevere(lambda: pipeline.run("further"))
    assert court.judge(pipeline).records == len(LONG) + 3


@pytest.mark.faults
def test_s17_a_leader_killed_between_plan_and_land(
    lake: ImpatientLake, cluster: Cluster, court: Court, purpose: str
) -> None:
    """Landed at once, while Kafka still names the dead leader: KafkaUnavailable or landed."""
    controller = cluster.controller()
    leader, follower = cluster.others(controller)
    topic = cluster.make_topic(purpose, [leader, follower, controller])
    pipeline = replace(lake, watermarks_timeout_s=HASTY_S).of(topic)
    produce_values(cluster.bootstrap, topic, 100)
    plan = pipeline.plan("test")
    cluster.kill(leader)
    assert persevere(lambda: pipeline.ingest.execute(plan.sequence)).landing.records == 100
    assert persevere(lambda: court.judge(pipeline)).records == 100
    assert pipeline.ledger.event_number == 2


@pytest.mark.faults
def test_i7_the_only_replica_killed_in_mid_read_is_a_transient_error(
    lake: ImpatientLake, cluster: Cluster, court: Court, purpose: str
) -> None:
    """Nobody else has the records: nothing is written, and the plan lands when the node is back."""
    controller = cluster.controller()
    node = cluster.others(controller)[0]
    pipeline = lake.of(cluster.make_topic(purpose, [node]))
    produce_records(cluster.bootstrap, pipeline.spec.topic, LONG)
    plan = pipeline.plan("test")
    with in_mid_read(pipeline, plan, cluster.behind_proxy(node)) as (running, gate):
        cluster.kill(node)
        gate.release()
        with pytest.raises(EngineFailed) as caught:
            running.result()
    assert caught.value.exit_code is ExitCode.TRANSIENT
    assert (pipeline.rows(), pipeline.committed()) == ([], {0: 0})
    hasty = replace(pipeline, watermarks_timeout_s=HASTY_S)
    with pytest.raises(KafkaUnavailable):
        hasty.ingest.execute(plan.sequence)
    cluster.mend()
    assert pipeline.ingest.execute(plan.sequence).landing.records == len(LONG)
    assert court.judge(pipeline).records == len(LONG)


@pytest.mark.faults
def test_s17_the_controller_killed_while_planning(
    lake: ImpatientLake, cluster: Cluster, court: Court, purpose: str
) -> None:
    """No plan needs the controllers' leader: another is elected, or the error says to try again."""
    controller = cluster.controller()
    leader, follower = cluster.others(controller)
    topic = cluster.make_topic(purpose, [leader, follower, controller])
    pipeline = replace(lake, watermarks_timeout_s=HASTY_S).of(topic)
    produce_values(cluster.bootstrap, topic, 10)
    cluster.kill(controller)
    assert persevere(lambda: pipeline.run("test")).landing.records == 10
    assert cluster.controller() != controller
    assert persevere(lambda: court.judge(pipeline)).records == 10
    assert pipeline.ledger.event_number == 2


@pytest.mark.faults
def test_s17_the_controller_killed_in_mid_read(
    lake: ImpatientLake, cluster: Cluster, court: Court, purpose: str
) -> None:
    """Who is read from goes on; what is landed is recorded as soon as Kafka answers."""
    controller = cluster.controller()
    leader, follower = cluster.others(controller)
    topic = cluster.make_topic(purpose, [leader, follower, controller])
    pipeline = replace(lake, watermarks_timeout_s=HASTY_S).of(topic)
    produce_records(cluster.bootstrap, topic, LONG)
    plan = pipeline.plan("test")
    with in_mid_read(pipeline, plan, cluster.behind_proxy(leader)) as (running, gate):
        cluster.kill(controller)
        gate.release()
        end(running, pipeline, plan)
    assert persevere(lambda: court.judge(pipeline)).records == len(LONG)
    assert pipeline.ledger.event_number == 2


@pytest.mark.faults
def test_i7_a_whole_cluster_away_while_planning_and_landing(
    lake: ImpatientLake, cluster: Cluster, court: Court, purpose: str
) -> None:
    """Named and transient, nothing written; the next run goes on, and so does the one after."""
    pipeline = lake.of(cluster.make_topic(purpose, cluster.others()))
    hasty = replace(pipeline, watermarks_timeout_s=HASTY_S)
    produce_values(cluster.bootstrap, pipeline.spec.topic, 10)
    with all_dead(cluster), pytest.raises(KafkaUnavailable) as caught:
        hasty.planner.plan("first")
    assert caught.value.exit_code is ExitCode.TRANSIENT
    assert (pipeline.ledger.event_number, pipeline.version()) == (0, None)
    plan = pipeline.plan("first")
    with all_dead(cluster), pytest.raises(KafkaUnavailable):
        hasty.ingest.execute(plan.sequence)
    assert (pipeline.ledger.event_number, pipeline.version()) == (1, None)
    assert pipeline.run("second").plan == plan
    assert court.judge(pipeline).records == 10
    more(cluster, pipeline, court, 10)


@contextmanager
def all_dead(cluster: Cluster) -> Iterator[None]:
    """Without any node; afterwards all are back."""
    for node in cluster.others():
        cluster.kill(node)
    yield
    cluster.mend()


# -- leaders that do not answer ------------------------------------------------------------------


def test_i3_a_leader_that_does_not_answer_has_no_marks(
    lake: ImpatientLake, cluster: Cluster, purpose: str
) -> None:
    """Where one leader of two answers, librdkafka tells an invalid offset of the other, as is.

    Taken for a mark, it would be where a pipeline starts, or a log that was truncated.
    """
    stalled, alive, _ = cluster.others()
    topic = cluster.make_topic(purpose, [stalled, alive], [alive, stalled])
    produce_values(cluster.bootstrap, topic, 5)
    produce_values(cluster.bootstrap, topic, 5, partition=1)
    only_alive = {"bootstrap.servers": f"127.0.0.1:{cluster.proxies[alive].port}"}
    hasty = replace(lake, connection=only_alive, watermarks_timeout_s=HASTY_S)
    gate = cluster.proxies[stalled].hold(everything=True)
    for start in (StartPolicy.EARLIEST, StartPolicy.LATEST):
        pipeline = hasty.of(topic, start=start)
        with pytest.raises(KafkaUnavailable):
            pipeline.planner.plan("test")
        assert pipeline.ledger.event_number == 0
    gate.release()
    pipeline = lake.of(topic)
    produce_values(cluster.bootstrap, topic, 1)
    plan = pipeline.plan("test")
    cluster.proxies[stalled].hold(everything=True)
    with pytest.raises(KafkaUnavailable):
        hasty.of(topic).ingest.execute(plan.sequence)
    assert (pipeline.committed(), pipeline.version()) == ({0: 0, 1: 0}, None)


def test_s9_a_leader_that_does_not_answer_is_not_asked_for_its_end_instead(
    cluster: Cluster, purpose: str
) -> None:
    """No answer about a moment is not "nothing after it", which would skip what there is."""
    stalled, alive, _ = cluster.others()
    topic = cluster.make_topic(purpose, [stalled, alive], [alive, stalled])
    produce_values(cluster.bootstrap, topic, 5)
    proxy = cluster.proxies[stalled]
    config = {"bootstrap.servers": f"127.0.0.1:{cluster.proxies[alive].port}"}
    gate = proxy.hold(everything=True)
    watermarks = KafkaWatermarkReader(config, HASTY_S)
    with pytest.raises(KafkaUnavailable):
        watermarks.offsets_at(topic, [0, 1], datetime.fromisoformat("2020-01-01T00:00:00+00:00"))
    gate.release()


# -- bootstrap lists, lagging followers ----------------------------------------------------------


@pytest.mark.parametrize("dead_first", [True, False], ids=["dead-live", "live-dead"])
def test_s18_a_dead_entry_of_the_bootstrap_list_is_no_matter(
    lake: ImpatientLake, cluster: Cluster, court: Court, purpose: str, dead_first: bool
) -> None:
    """The planner, Spark and verify: each finds the cluster by the entry that lives."""
    (unused,) = free_ports("127.0.0.1", 1)
    entries = [f"127.0.0.1:{unused}", cluster.direct[2]]
    addresses = ",".join(entries if dead_first else reversed(entries))
    topic = cluster.make_topic(purpose, cluster.others())
    pipeline = replace(lake, connection={"bootstrap.servers": addresses}).of(topic)
    produce_values(cluster.bootstrap, topic, 10)
    assert pipeline.run("test").landing.records == 10
    pipeline.verify.verify().check()
    assert court.judge(pipeline).records == 10


@pytest.mark.faults
def test_s17_a_follower_that_lags_is_no_matter(
    lake: ImpatientLake, cluster: Cluster, court: Court, purpose: str
) -> None:
    """It lives, lacks records and is not in sync: they are read all the same, and then it leads."""
    controller = cluster.controller()
    leader, follower = cluster.others(controller)
    pipeline = lake.of(cluster.make_topic(purpose, [leader, follower, controller]))
    topic = pipeline.spec.topic
    produce_values(cluster.bootstrap, topic, 10)
    cluster.kill(follower)
    cluster.wait_for_in_sync(topic, [leader, controller])
    cluster.throttle_replication(topic, leader, bytes_per_second=1)
    produce_records(cluster.bootstrap, topic, LONG)
    cluster.broker.start_node(follower)
    wanted = 10 + len(LONG)
    try:
        assert pipeline.run("test").landing.records == wanted
        assert follower not in cluster.partition(topic).isrs
    finally:
        cluster.throttle_replication(topic, leader, bytes_per_second=None)
    assert court.judge(pipeline).records == wanted
    cluster.wait_for_in_sync(topic, [leader, follower, controller])
    cluster.reassign(topic, [follower, leader, controller])
    cluster.elect(topic, follower)
    more(cluster, pipeline, court, wanted)


# -- unclean truncation --------------------------------------------------------------------------


@contextmanager
def truncated(cluster: Cluster, pipeline: Lake) -> Iterator[None]:
    """Partition 0 of a landed pipeline is led by a follower that lacks the last four records.

    The partition has two replicas: with two of three nodes dead there would be no controller to
    take the follower out of sync. The block runs when it leads.
    """
    topic = pipeline.spec.topic
    leader, follower = cluster.partition(topic).replicas
    produce_values(cluster.bootstrap, topic, 5)
    cluster.kill(follower)
    cluster.wait_for_in_sync(topic, [leader])
    careless = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "1", "log_level": 0})
    append(careless, topic, [Record(value=b"on the leader only")] * 4)
    pipeline.run("before")
    assert pipeline.committed()[0] == 9
    cluster.kill(leader)
    cluster.broker.start_node(follower)
    cluster.elect(topic, follower, kind=ElectionType.UNCLEAN)
    assert log_ranges(cluster.bootstrap, topic)[0] == (0, 5)
    yield


@pytest.fixture
def fragile(lake: ImpatientLake, cluster: Cluster, purpose: str) -> ImpatientLake:
    """A pipeline over a topic whose partition 0 can be truncated, and partition 1 cannot."""
    controller = cluster.controller()
    leader, follower = cluster.others(controller)
    topic = cluster.make_topic(
        purpose,
        [leader, follower],
        [controller, follower],
        config={"min.insync.replicas": "1"},
    )
    produce_values(cluster.bootstrap, topic, 7, partition=1)
    return lake.of(topic)


def test_i7_an_unclean_truncation_stops_the_pipeline(
    fragile: ImpatientLake, cluster: Cluster, court: Court
) -> None:
    """The log ends behind the committed offset, or did: named, nothing written at all.

    `verify` tells which records have others in their place.
    """
    with truncated(cluster, fragile):
        produce_values(cluster.bootstrap, fragile.spec.topic, 2, partition=1)
        before = (fragile.committed(), fragile.version(), fragile.ledger.event_number)
        assert before[0] == {0: 9, 1: 7}
        with pytest.raises(EndBehindCommitted) as caught:
            fragile.planner.plan("after")
        error = caught.value
        assert (error.partition, error.offset, error.end) == (0, 9, 5)
        assert error.exit_code is not ExitCode.TRANSIENT
        assert (fragile.committed(), fragile.version(), fragile.ledger.event_number) == before
        # The table still holds what the cluster has lost, and all else is as Kafka has it.
        lost = [row for row in fragile.rows() if row["partition"] == 0 and row["offset"] >= 5]
        assert [row["value"] for row in lost] == [b"on the leader only"] * 4
        left = [row for row in fragile.rows() if row not in lost]
        ranges = {0: (0, 5), 1: (0, 7)}
        verdict = judge(
            left, cluster.bootstrap, fragile.spec.topic, topic_id(fragile), ranges=ranges
        )
        assert court.count(verdict).records == 12
        # Once it has grown again no mark tells of it any more: the history of leaders does.
        produce_values(cluster.bootstrap, fragile.spec.topic, 10)
        with pytest.raises(LogTruncated) as cut:
            fragile.planner.plan("grown again")
        assert (cut.value.partition, cut.value.offset) == (0, 9)
        assert (fragile.committed(), fragile.version(), fragile.ledger.event_number) == before
        found = fragile.verify.verify(partition=0)
        assert found.differences == {DifferenceKind.ALTERED: 4}
        assert [each.offset for each in found.first] == [5, 6, 7, 8]


@pytest.mark.faults
def test_i3_leader_epochs_tell_a_truncated_log_that_has_grown_again(
    fragile: ImpatientLake, cluster: Cluster
) -> None:
    """What librdkafka offers: the leader's epoch with each end, and a position that is checked.

    Assigned with the epoch in which an offset was an end, a position beyond what is left of that
    epoch is an error (KIP-320, OffsetsForLeaderEpoch); one within it is read from.
    """
    topic = fragile.spec.topic
    place = TopicPartition(topic, 0)
    untouched = TopicPartition(topic, 1)
    with truncated(cluster, fragile):
        produce_values(cluster.bootstrap, topic, 10)
        # A leader has an epoch of its own from its election on, before it has written anything.
        assert epoch(cluster, place) > 0 == epoch(cluster, untouched)
        said = first_answer(cluster, TopicPartition(topic, 0, 9, leader_epoch=0))
        assert isinstance(said, KafkaError)
        assert said.code() == KafkaError._AUTO_OFFSET_RESET
        assert "log truncation detected at offset 9" in said.str()
        assert "broker end offset is 5" in said.str()
        said = first_answer(cluster, TopicPartition(topic, 0, 5, leader_epoch=0))
        assert isinstance(said, Message)
        assert said.offset() == 5
        # Without the epoch, or in a partition that was not truncated, there is nothing to say.
        said = first_answer(cluster, TopicPartition(topic, 0, 9))
        assert isinstance(said, Message)
        assert said.offset() == 9
        said = first_answer(cluster, TopicPartition(topic, 1, 7, leader_epoch=0))
        assert isinstance(said, KafkaError)
        assert said.code() == KafkaError._PARTITION_EOF


def epoch(cluster: Cluster, place: TopicPartition) -> int:
    """The epoch that a leader tells with the end of its log."""
    admin = cluster.admin()
    level = IsolationLevel.READ_COMMITTED
    answers = admin.list_offsets({place: OffsetSpec.latest()}, isolation_level=level)
    return int(answers[place].result(timeout=30).leader_epoch)


def first_answer(cluster: Cluster, place: TopicPartition) -> Message | KafkaError:
    """The first record that is read from a place, or what is said instead."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "epochs",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "log_level": 0,
        }
    )
    try:
        consumer.assign([place])
        message = consumer.poll(30)
        assert message is not None
        return message.error() or message
    finally:
        consumer.close()


def topic_id(lake: Lake) -> str:
    """The id of the incarnation that a pipeline reads."""
    return lake.watermarks.topic_watermarks(lake.spec.topic, Level.READ_COMMITTED).topic_id
