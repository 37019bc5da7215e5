"""Broker faults: moved leaders, killed nodes, truncated logs.

The cluster has three nodes, each a broker and a controller. A node is killed with SIGKILL and
restarted after the test. Without two live nodes the cluster has no controller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
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

from tests.faults.tally import TableJudge
from tests.support.cluster import Cluster, three_nodes
from tests.support.kafka_judge import log_ranges
from tests.support.lake import Lake
from tests.support.mid_read import LONG, ShortTimeoutLake, in_mid_read
from tests.support.transactions import Record, append, produce_records, produce_values
from tests.support.verdict import judge
from tests.support.waiting import wait_until
from tidemark.bronze.ingest.errors import LogTruncated
from tidemark.bronze.ingest.executor import ExecutionResult
from tidemark.core.errors import EndBehindCommitted, ExitCode
from tidemark.core.offsets import Span
from tidemark.core.plan import Plan
from tidemark.core.watermarks import IsolationLevel as Level
from tidemark.kafka.cluster import KafkaClusterReader
from tidemark.kafka.errors import KafkaUnavailable
from tidemark.kafka.watermarks import KafkaWatermarkReader
from tidemark.ops.report.verification import DifferenceKind
from tidemark.spark.sockets import free_ports
from tidemark.spec.layout import Layout
from tidemark.spec.model import StartPolicy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.broker, pytest.mark.spark]

T = TypeVar("T")

LONG_TIMEOUT_S = 30.0
SHORT_TIMEOUT_S = 1.0


@pytest.fixture(scope="module")
def running(layout: Layout, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start one cluster for all tests of this module."""
    with three_nodes(tmp_path_factory.mktemp("cluster"), layout.kafka_jars) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: Cluster) -> Iterator[Cluster]:
    """Return the complete cluster, and restart its killed nodes after the test."""
    yield running
    running.restart_dead_nodes()


@pytest.fixture
def lake(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> ShortTimeoutLake:
    """Return a lake that reads through the proxies; Spark has short timeouts."""
    return ShortTimeoutLake(
        session=spark,
        root=tmp_path,
        connection={"bootstrap.servers": cluster.behind_proxy(1).bootstrap},
        watermarks_timeout_s=LONG_TIMEOUT_S,
    )


@pytest.fixture
def purpose(request: pytest.FixtureRequest) -> str:
    """Return the prefix of this test's topics."""
    return str(request.function.__name__)


def check_next_run(cluster: Cluster, lake: Lake, table_judge: TableJudge, records: int) -> None:
    """Produce and land more records, and check that the whole table is exact."""
    produce_values(cluster.bootstrap, lake.spec.topic, 3)
    lake.run("further")
    assert table_judge.check(lake).records == records + 3


def retry_while_unavailable(run: Callable[[], T]) -> T:
    """Repeat a run while Kafka does not answer, as a scheduler does.

    Kafka's client waits for a dead node that an earlier answer named, until its request times out.
    """
    done: list[T] = []

    def succeeded() -> bool:
        try:
            done.append(run())
        except KafkaUnavailable:
            return False
        return True

    wait_until(succeeded, what="a run without KafkaUnavailable")
    return done[0]


def finish_landing(running: Future[ExecutionResult], pipeline: Lake, plan: Plan) -> None:
    """Wait until the plan has landed; repeat the run if Kafka was unavailable after the read."""
    failure = running.exception(timeout=120)
    assert failure is None or isinstance(failure, KafkaUnavailable), failure
    # The topic id is read before the commit and before the record; either read may fail.
    assert len(pipeline.rows()) == len(LONG) or (failure and not pipeline.rows())
    assert retry_while_unavailable(
        lambda: pipeline.ingest.execute(plan.sequence)
    ).landing.records == len(LONG)


# -- moved leaders -------------------------------------------------------------------------------


@pytest.mark.faults
def test_s17_a_plan_lands_after_a_leader_election_before_the_landing(
    lake: ShortTimeoutLake, cluster: Cluster, table_judge: TableJudge, purpose: str
) -> None:
    old, new, third = cluster.others()
    pipeline = lake.of(cluster.make_topic(purpose, [old, new, third]))
    produce_values(cluster.bootstrap, pipeline.spec.topic, 100)
    cluster.reassign(pipeline.spec.topic, [new, old, third])
    assert cluster.partition(pipeline.spec.topic).leader == old
    plan = pipeline.plan("test")
    cluster.elect(pipeline.spec.topic, new)
    assert pipeline.ingest.execute(plan.sequence).landing.records == 100
    assert table_judge.check(pipeline).records == 100


@pytest.mark.faults
def test_s17_a_plan_lands_after_a_leader_election_during_the_read(
    lake: ShortTimeoutLake, cluster: Cluster, table_judge: TableJudge, purpose: str
) -> None:
    """The old leader answers that it is not the leader, and the client uses the new one."""
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
    assert table_judge.check(pipeline).records == len(LONG)
    check_next_run(cluster, pipeline, table_judge, len(LONG))


@pytest.mark.faults
def test_s17_a_plan_lands_after_its_partition_moved_during_the_read(
    lake: ShortTimeoutLake, cluster: Cluster, table_judge: TableJudge, purpose: str
) -> None:
    old, common, new = cluster.others()
    pipeline = lake.of(cluster.make_topic(purpose, [old, common]))
    produce_records(cluster.bootstrap, pipeline.spec.topic, LONG)
    plan = pipeline.plan("test")
    with in_mid_read(pipeline, plan, cluster.behind_proxy(old)) as (running, gate):
        cluster.reassign(pipeline.spec.topic, [new, common])
        cluster.wait_for_leader(pipeline.spec.topic, new)
        gate.release()
        assert running.result().landing.records == len(LONG)
    assert table_judge.check(pipeline).records == len(LONG)
    check_next_run(cluster, pipeline, table_judge, len(LONG))


# -- killed nodes --------------------------------------------------------------------------------


def test_s17_a_plan_lands_after_its_leader_was_killed_during_the_read(
    lake: ShortTimeoutLake, cluster: Cluster, table_judge: TableJudge, purpose: str
) -> None:
    """The table is also exact after the node has returned."""
    controller = cluster.controller()
    leader, follower = cluster.others(controller)
    topic = cluster.make_topic(purpose, [leader, follower, controller])
    pipeline = replace(lake, watermarks_timeout_s=SHORT_TIMEOUT_S).of(topic)
    produce_records(cluster.bootstrap, topic, LONG)
    plan = retry_while_unavailable(lambda: pipeline.plan("test"))
    with in_mid_read(pipeline, plan, cluster.behind_proxy(leader)) as (running, gate):
        cluster.kill(leader)
        gate.release()
        finish_landing(running, pipeline, plan)
    assert retry_while_unavailable(lambda: table_judge.check(pipeline)).records == len(LONG)
    assert pipeline.ledger.event_number == 2
    produce_values(cluster.bootstrap, topic, 3)
    cluster.restart_dead_nodes()
    retry_while_unavailable(lambda: pipeline.run("further"))
    assert table_judge.check(pipeline).records == len(LONG) + 3


@pytest.mark.faults
def test_s17_a_plan_lands_after_its_leader_was_killed_before_the_landing(
    lake: ShortTimeoutLake, cluster: Cluster, table_judge: TableJudge, purpose: str
) -> None:
    """Until Kafka names a new leader, the error is KafkaUnavailable."""
    controller = cluster.controller()
    leader, follower = cluster.others(controller)
    topic = cluster.make_topic(purpose, [leader, follower, controller])
    pipeline = replace(lake, watermarks_timeout_s=SHORT_TIMEOUT_S).of(topic)
    produce_values(cluster.bootstrap, topic, 100)
    plan = pipeline.plan("test")
    cluster.kill(leader)
    assert (
        retry_while_unavailable(lambda: pipeline.ingest.execute(plan.sequence)).landing.records
        == 100
    )
    assert retry_while_unavailable(lambda: table_judge.check(pipeline)).records == 100
    assert pipeline.ledger.event_number == 2


@pytest.mark.faults
def test_i7_the_only_replica_killed_during_the_read_is_a_transient_error(
    lake: ShortTimeoutLake, cluster: Cluster, table_judge: TableJudge, purpose: str
) -> None:
    controller = cluster.controller()
    node = cluster.others(controller)[0]
    pipeline = lake.of(cluster.make_topic(purpose, [node]))
    produce_records(cluster.bootstrap, pipeline.spec.topic, LONG)
    plan = pipeline.plan("test")
    with in_mid_read(pipeline, plan, cluster.behind_proxy(node)) as (running, gate):
        cluster.kill(node)
        gate.release()
        with pytest.raises(KafkaUnavailable) as caught:
            running.result()
    assert caught.value.exit_code is ExitCode.TRANSIENT
    assert (pipeline.rows(), pipeline.committed()) == ([], {0: 0})
    impatient = replace(pipeline, watermarks_timeout_s=SHORT_TIMEOUT_S)
    with pytest.raises(KafkaUnavailable):
        impatient.ingest.execute(plan.sequence)
    cluster.restart_dead_nodes()
    assert pipeline.ingest.execute(plan.sequence).landing.records == len(LONG)
    assert table_judge.check(pipeline).records == len(LONG)


@pytest.mark.faults
def test_s17_a_plan_is_made_and_lands_after_the_controller_was_killed(
    lake: ShortTimeoutLake, cluster: Cluster, table_judge: TableJudge, purpose: str
) -> None:
    controller = cluster.controller()
    leader, follower = cluster.others(controller)
    topic = cluster.make_topic(purpose, [leader, follower, controller])
    pipeline = replace(lake, watermarks_timeout_s=SHORT_TIMEOUT_S).of(topic)
    produce_values(cluster.bootstrap, topic, 10)
    cluster.kill(controller)
    assert retry_while_unavailable(lambda: pipeline.run("test")).landing.records == 10
    assert cluster.controller() != controller
    assert retry_while_unavailable(lambda: table_judge.check(pipeline)).records == 10
    assert pipeline.ledger.event_number == 2


@pytest.mark.faults
def test_s17_a_plan_lands_after_the_controller_was_killed_during_the_read(
    lake: ShortTimeoutLake, cluster: Cluster, table_judge: TableJudge, purpose: str
) -> None:
    controller = cluster.controller()
    leader, follower = cluster.others(controller)
    topic = cluster.make_topic(purpose, [leader, follower, controller])
    pipeline = replace(lake, watermarks_timeout_s=SHORT_TIMEOUT_S).of(topic)
    produce_records(cluster.bootstrap, topic, LONG)
    plan = pipeline.plan("test")
    with in_mid_read(pipeline, plan, cluster.behind_proxy(leader)) as (running, gate):
        cluster.kill(controller)
        gate.release()
        finish_landing(running, pipeline, plan)
    assert retry_while_unavailable(lambda: table_judge.check(pipeline)).records == len(LONG)
    assert pipeline.ledger.event_number == 2


@pytest.mark.faults
def test_i7_without_a_cluster_planning_and_landing_write_nothing(
    lake: ShortTimeoutLake, cluster: Cluster, table_judge: TableJudge, purpose: str
) -> None:
    pipeline = lake.of(cluster.make_topic(purpose, cluster.others()))
    impatient = replace(pipeline, watermarks_timeout_s=SHORT_TIMEOUT_S)
    produce_values(cluster.bootstrap, pipeline.spec.topic, 10)
    with all_dead(cluster), pytest.raises(KafkaUnavailable) as caught:
        impatient.planner.plan("first")
    assert caught.value.exit_code is ExitCode.TRANSIENT
    assert (pipeline.ledger.event_number, pipeline.version()) == (0, None)
    plan = pipeline.plan("first")
    with all_dead(cluster), pytest.raises(KafkaUnavailable):
        impatient.ingest.execute(plan.sequence)
    assert (pipeline.ledger.event_number, pipeline.version()) == (1, None)
    assert pipeline.run("second").plan == plan
    assert table_judge.check(pipeline).records == 10
    check_next_run(cluster, pipeline, table_judge, 10)


@contextmanager
def all_dead(cluster: Cluster) -> Iterator[None]:
    """Kill all nodes for the block, and restart them after it."""
    for node in cluster.others():
        cluster.kill(node)
    yield
    cluster.restart_dead_nodes()


# -- unresponsive leaders ------------------------------------------------------------------------


@pytest.mark.faults
def test_i3_a_leader_that_does_not_answer_has_no_watermarks(
    lake: ShortTimeoutLake, cluster: Cluster, purpose: str
) -> None:
    """The client returns an invalid offset for the partition of the silent leader.

    As a watermark it would be a start offset, or show a truncated log.
    """
    stalled, alive, _ = cluster.others()
    topic = cluster.make_topic(purpose, [stalled, alive], [alive, stalled])
    produce_values(cluster.bootstrap, topic, 5)
    produce_values(cluster.bootstrap, topic, 5, partition=1)
    only_alive = {"bootstrap.servers": f"127.0.0.1:{cluster.proxies[alive].port}"}
    impatient = replace(lake, connection=only_alive, watermarks_timeout_s=SHORT_TIMEOUT_S)
    gate = cluster.proxies[stalled].hold(everything=True)
    for start in (StartPolicy.EARLIEST, StartPolicy.LATEST):
        pipeline = impatient.of(topic, start=start)
        with pytest.raises(KafkaUnavailable):
            pipeline.planner.plan("test")
        assert pipeline.ledger.event_number == 0
    gate.release()
    pipeline = lake.of(topic)
    produce_values(cluster.bootstrap, topic, 1)
    plan = pipeline.plan("test")
    cluster.proxies[stalled].hold(everything=True)
    with pytest.raises(KafkaUnavailable):
        impatient.of(topic).ingest.execute(plan.sequence)
    assert (pipeline.committed(), pipeline.version()) == ({0: 0, 1: 0}, None)


@pytest.mark.faults
def test_s17_s20_a_dead_or_silent_node_spoils_only_the_offsets_of_its_partitions(
    cluster: Cluster, purpose: str
) -> None:
    dead, alive, silent = cluster.others()
    only_alive = {"bootstrap.servers": f"127.0.0.1:{cluster.proxies[alive].port}"}
    reader = KafkaClusterReader(only_alive, timeout_seconds=5.0)
    single = cluster.make_topic(f"{purpose[:70]}-a", [dead])
    double = cluster.make_topic(f"{purpose[:70]}-b", [alive, dead], [silent, alive])
    for topic, partition in ((single, 0), (double, 0), (double, 1)):
        produce_values(cluster.bootstrap, topic, 5, partition=partition)

    # Only this request can need the silent node, which the brokers may name as their controller.
    topics = reader.describe([single, double]).topics
    cluster.proxies[silent].hold(everything=True)
    alone, pair = reader.with_offsets(topics)
    assert [each.records for each in (*alone.partitions, *pair.partitions)] == [5, 5, None]
    assert alone.problem is None
    assert isinstance(pair.problem, KafkaUnavailable)
    cluster.proxies[silent].clear()

    def is_leaderless() -> bool:
        # Until the controller fences the dead node, the brokers may name it as their controller.
        with suppress(KafkaUnavailable):
            return reader.describe([single]).topics[0].leaderless == 1
        return False

    cluster.kill(dead)
    wait_until(is_leaderless, what=f"no leader of {single}")
    alone, pair = reader.with_offsets(reader.describe([single, double]).topics)
    assert [each.records for each in (*alone.partitions, *pair.partitions)] == [None, 5, 5]
    assert [each.leader for each in (*alone.partitions, *pair.partitions)] == [None, alive, silent]
    assert pair.partitions[0].isr == (alive,)
    assert (pair.leaderless, pair.under_replicated) == (0, 1)
    assert dead not in {each.id for each in reader.describe().brokers}


@pytest.mark.faults
def test_s9_a_leader_that_does_not_answer_has_no_offset_at_a_time(
    cluster: Cluster, purpose: str
) -> None:
    """The end of the log as its offset would skip records."""
    stalled, alive, _ = cluster.others()
    topic = cluster.make_topic(purpose, [stalled, alive], [alive, stalled])
    produce_values(cluster.bootstrap, topic, 5)
    proxy = cluster.proxies[stalled]
    config = {"bootstrap.servers": f"127.0.0.1:{cluster.proxies[alive].port}"}
    gate = proxy.hold(everything=True)
    watermarks = KafkaWatermarkReader(config, SHORT_TIMEOUT_S)
    with pytest.raises(KafkaUnavailable):
        watermarks.offsets_at(topic, [0, 1], datetime.fromisoformat("2020-01-01T00:00:00+00:00"))
    gate.release()


# -- bootstrap lists, lagging followers ----------------------------------------------------------


@pytest.mark.parametrize("dead_first", [True, False], ids=["dead-live", "live-dead"])
@pytest.mark.faults
def test_s18_plan_landing_and_verify_work_with_a_dead_bootstrap_server(
    lake: ShortTimeoutLake,
    cluster: Cluster,
    table_judge: TableJudge,
    purpose: str,
    dead_first: bool,
) -> None:
    (unused,) = free_ports("127.0.0.1", 1)
    entries = [f"127.0.0.1:{unused}", cluster.direct[2]]
    addresses = ",".join(entries if dead_first else reversed(entries))
    topic = cluster.make_topic(purpose, cluster.others())
    pipeline = replace(lake, connection={"bootstrap.servers": addresses}).of(topic)
    produce_values(cluster.bootstrap, topic, 10)
    assert pipeline.run("test").landing.records == 10
    pipeline.verify.verify().check()
    assert table_judge.check(pipeline).records == 10


@pytest.mark.faults
def test_s17_records_that_a_follower_lacks_land_and_stay_after_its_election(
    lake: ShortTimeoutLake, cluster: Cluster, table_judge: TableJudge, purpose: str
) -> None:
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
    assert table_judge.check(pipeline).records == wanted
    cluster.wait_for_in_sync(topic, [leader, follower, controller])
    cluster.reassign(topic, [follower, leader, controller])
    cluster.elect(topic, follower)
    check_next_run(cluster, pipeline, table_judge, wanted)


# -- unclean truncation --------------------------------------------------------------------------


@contextmanager
def truncated(cluster: Cluster, pipeline: Lake, *, has_landed: bool = True) -> Iterator[None]:
    """Make a follower without the last four records the leader of partition 0 for the block.

    The pipeline has landed all nine records before, or has only planned them. The partition has two
    replicas: with two of three nodes dead, no controller could remove the follower from the in-sync
    replicas.
    """
    topic = pipeline.spec.topic
    leader, follower = cluster.partition(topic).replicas
    produce_values(cluster.bootstrap, topic, 5)
    cluster.kill(follower)
    cluster.wait_for_in_sync(topic, [leader])
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "1", "log_level": 0})
    append(producer, topic, [Record(value=b"on the leader only")] * 4)
    plan = pipeline.plan("before")
    assert plan.spans()[0].spans == (Span(0, 9),)
    if has_landed:
        pipeline.ingest.execute(plan.sequence)
    cluster.kill(leader)
    cluster.broker.start_node(follower)
    cluster.elect(topic, follower, kind=ElectionType.UNCLEAN)
    assert log_ranges(cluster.bootstrap, topic)[0] == (0, 5)
    yield


@pytest.fixture
def fragile(lake: ShortTimeoutLake, cluster: Cluster, purpose: str) -> ShortTimeoutLake:
    """Return a pipeline over a topic of which only partition 0 can be truncated."""
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


@pytest.mark.faults
def test_i7_an_unclean_truncation_stops_the_pipeline_and_verify_lists_the_records(
    fragile: ShortTimeoutLake, cluster: Cluster, table_judge: TableJudge
) -> None:
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
        # The table has the records that the cluster lost; all other rows equal Kafka's records.
        lost = [row for row in fragile.rows() if row["partition"] == 0 and row["offset"] >= 5]
        assert [row["value"] for row in lost] == [b"on the leader only"] * 4
        remaining = [row for row in fragile.rows() if row not in lost]
        ranges = {0: (0, 5), 1: (0, 7)}
        verdict = judge(
            remaining, cluster.bootstrap, fragile.spec.topic, topic_id(fragile), ranges=ranges
        )
        assert table_judge.count(verdict).records == 12
        # Once the log has grown again, only the leader epochs show the truncation.
        produce_values(cluster.bootstrap, fragile.spec.topic, 10)
        with pytest.raises(LogTruncated) as regrown:
            fragile.planner.plan("grown again")
        assert (regrown.value.partition, regrown.value.offset) == (0, 9)
        assert (fragile.committed(), fragile.version(), fragile.ledger.event_number) == before
        found = fragile.verify.verify(partition=0)
        assert found.differences == {DifferenceKind.ALTERED: 4}
        assert [each.offset for each in found.first] == [5, 6, 7, 8]


@pytest.mark.faults
def test_i7_a_truncation_before_the_read_of_a_plan_is_no_error(
    fragile: ShortTimeoutLake, cluster: Cluster, table_judge: TableJudge
) -> None:
    """The log grew beyond the plan's end again, so all landed rows equal Kafka's records."""
    with truncated(cluster, fragile, has_landed=False):
        produce_values(cluster.bootstrap, fragile.spec.topic, 10)
        (opened,) = fragile.ledger.open_plans()
        assert fragile.ingest.execute(opened.plan.sequence).landing.records == 9 + 7
        assert fragile.run("grown again").landing.records == 6
        assert table_judge.check(fragile).exact
        fragile.verify.verify().check()
        assert fragile.status().problem is None


@pytest.mark.faults
def test_i3_leader_epochs_show_a_truncation(fragile: ShortTimeoutLake, cluster: Cluster) -> None:
    """The detection relies on this behaviour of librdkafka (KIP-320, OffsetsForLeaderEpoch).

    An assigned offset with a leader epoch is an error if it is past the end of that epoch.
    """
    topic = fragile.spec.topic
    partition_0 = TopicPartition(topic, 0)
    partition_1 = TopicPartition(topic, 1)
    with truncated(cluster, fragile):
        produce_values(cluster.bootstrap, topic, 10)
        # A leader has a new epoch from its election on, before its first record.
        assert epoch(cluster, partition_0) > 0 == epoch(cluster, partition_1)
        answer = first_answer(cluster, TopicPartition(topic, 0, 9, leader_epoch=0))
        assert isinstance(answer, KafkaError)
        assert answer.code() == KafkaError._AUTO_OFFSET_RESET
        assert "log truncation detected at offset 9" in answer.str()
        assert "broker end offset is 5" in answer.str()
        answer = first_answer(cluster, TopicPartition(topic, 0, 5, leader_epoch=0))
        assert isinstance(answer, Message)
        assert answer.offset() == 5
        # Without an epoch, or in a partition that was not truncated, there is no such error.
        answer = first_answer(cluster, TopicPartition(topic, 0, 9))
        assert isinstance(answer, Message)
        assert answer.offset() == 9
        answer = first_answer(cluster, TopicPartition(topic, 1, 7, leader_epoch=0))
        assert isinstance(answer, KafkaError)
        assert answer.code() == KafkaError._PARTITION_EOF


def epoch(cluster: Cluster, place: TopicPartition) -> int:
    """Return the epoch that a leader returns with the end of its log."""
    admin = cluster.admin()
    level = IsolationLevel.READ_COMMITTED
    answers = admin.list_offsets({place: OffsetSpec.latest()}, isolation_level=level)
    return int(answers[place].result(timeout=30).leader_epoch)


def first_answer(cluster: Cluster, place: TopicPartition) -> Message | KafkaError:
    """Return the first record or error at an offset."""
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
    """Return the id of the pipeline's topic."""
    return lake.watermarks.topic_watermarks(lake.spec.topic, Level.READ_COMMITTED).topic_id
