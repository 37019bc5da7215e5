"""Broker faults: slow, stalled and interrupted fetches."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace

import pytest

from tests.faults.tally import TableJudge
from tests.support.lake import Lake
from tests.support.mid_read import (
    LONG,
    ONE_FETCH_AND_A_HALF,
    ShortTimeoutLake,
    in_mid_read,
    long_topic,
)
from tests.support.proxy import ProxiedBroker, Proxy
from tidemark.core.errors import ExitCode
from tidemark.kafka.errors import KafkaUnavailable
from tidemark.spark.connect import connect_sessions
from tidemark.spark.engine import Server

pytestmark = [pytest.mark.broker, pytest.mark.spark]

BYTES = sum(len(record.value or b"") for record in LONG)


@pytest.fixture
def pipeline(lake: Lake, proxied: ProxiedBroker, request: pytest.FixtureRequest) -> Lake:
    """Return a pipeline that reads 12 MB through the proxy with short timeouts."""
    impatient = ShortTimeoutLake(
        session=lake.session, root=lake.root, connection={"bootstrap.servers": proxied.bootstrap}
    )
    return impatient.of(long_topic(proxied, request.function.__name__))


def wait_for_connections(proxy: Proxy, wanted: int) -> None:
    """Wait until the proxy has accepted `wanted` connections since its start."""
    deadline = time.monotonic() + 120
    while proxy.accepted < wanted:
        assert time.monotonic() < deadline, f"{proxy.accepted} connections, not {wanted}"
        time.sleep(0.02)


@pytest.mark.faults
def test_s17_slow_fetches_land_exactly(
    pipeline: Lake, proxied: ProxiedBroker, table_judge: TableJudge
) -> None:
    """I1. Each answer is complete within the client's timeout."""
    plan = pipeline.plan("test")
    bytes_per_second = 2_800_000
    proxied.proxy.throttle(bytes_per_second)
    start = time.monotonic()
    assert pipeline.ingest.execute(plan.sequence).landing.records == len(LONG)
    assert time.monotonic() - start > 0.9 * BYTES / bytes_per_second
    proxied.proxy.clear()
    assert table_judge.check(pipeline).records == len(LONG)


@pytest.mark.faults
def test_i7_fetches_too_slow_for_kafkas_client_are_a_transient_error(
    pipeline: Lake, proxied: ProxiedBroker, table_judge: TableJudge
) -> None:
    """Kafka's client discards an answer that is incomplete after its timeout, and repeats it."""
    plan = pipeline.plan("test")
    proxied.proxy.throttle(1_000_000)
    accepted = proxied.proxy.accepted
    with pytest.raises(KafkaUnavailable) as caught:
        pipeline.ingest.execute(plan.sequence)
    assert caught.value.exit_code is ExitCode.TRANSIENT
    assert proxied.proxy.accepted > accepted + 2
    assert (pipeline.rows(), pipeline.committed()) == ([], {0: 0})
    proxied.proxy.clear()
    assert pipeline.ingest.execute(plan.sequence).landing.records == len(LONG)
    assert table_judge.check(pipeline).records == len(LONG)


@pytest.mark.faults
def test_s17_kafkas_client_repeats_a_stalled_fetch_in_the_same_run(
    pipeline: Lake, proxied: ProxiedBroker, table_judge: TableJudge
) -> None:
    plan = pipeline.plan("test")
    with in_mid_read(pipeline, plan, proxied) as (running, gate):
        wait_for_connections(proxied.proxy, proxied.proxy.accepted + 1)
        assert not running.done()
        gate.release()
        landing = running.result().landing
    assert landing.records == len(LONG)
    assert table_judge.check(pipeline).records == len(LONG)
    assert pipeline.ledger.event_number == 2


@pytest.mark.faults
def test_i7_a_fetch_that_stalls_for_ever_is_a_transient_error(
    pipeline: Lake, proxied: ProxiedBroker, table_judge: TableJudge
) -> None:
    """The same plan lands when the network works again."""
    plan = pipeline.plan("test")
    with in_mid_read(pipeline, plan, proxied) as (running, _):
        with pytest.raises(KafkaUnavailable) as caught:
            running.result(timeout=120)
        assert caught.value.exit_code is ExitCode.TRANSIENT
        assert f"{pipeline.spec.topic}-0" in caught.value.reason
    assert (pipeline.rows(), pipeline.committed()) == ([], {0: 0})
    proxied.proxy.clear()
    assert pipeline.ingest.execute(plan.sequence).landing.records == len(LONG)
    assert table_judge.check(pipeline).records == len(LONG)


@pytest.mark.faults
def test_both_engines_report_a_fetch_without_an_answer_as_the_same_error_of_kafka(
    pipeline: Lake, proxied: ProxiedBroker, connect_server: Server
) -> None:
    """The error names the partition, and the first offset that Kafka did not send."""
    plan = pipeline.plan("test")
    pipeline.table.prepare("events")
    errors = []
    for on_server in (False, True):
        with ExitStack() as stack:
            session = pipeline.session
            if on_server:
                session = stack.enter_context(connect_sessions(connect_server, {})).shared()
            stack.callback(proxied.proxy.hold(after=ONE_FETCH_AND_A_HALF).release)
            with pytest.raises(KafkaUnavailable) as caught:
                replace(pipeline, session=session).sink.write(plan, 1000)
            errors.append(str(caught.value))
    assert errors[0] == errors[1]
    assert f"{pipeline.spec.topic}-0" in errors[0]


def test_i1_s17_connections_cut_during_a_fetch_land_exactly(
    pipeline: Lake, proxied: ProxiedBroker, table_judge: TableJudge
) -> None:
    plan = pipeline.plan("test")
    with in_mid_read(pipeline, plan, proxied) as (running, gate):
        accepted = proxied.proxy.accepted
        assert proxied.proxy.cut() > 0
        gate.release()
        assert running.result().landing.records == len(LONG)
    assert proxied.proxy.accepted > accepted
    assert table_judge.check(pipeline).records == len(LONG)


@pytest.mark.faults
def test_i7_without_a_network_planning_and_landing_write_nothing(
    pipeline: Lake, proxied: ProxiedBroker, table_judge: TableJudge
) -> None:
    gate = proxied.proxy.hold(everything=True)
    with pytest.raises(KafkaUnavailable):
        pipeline.planner.plan("test")
    assert pipeline.ledger.event_number == 0
    gate.release()
    plan = pipeline.plan("test")
    gate = proxied.proxy.hold(everything=True)
    with pytest.raises(KafkaUnavailable):
        pipeline.ingest.execute(plan.sequence)
    assert pipeline.version() is None
    gate.release()
    assert pipeline.ingest.execute(plan.sequence).landing.records == len(LONG)
    assert table_judge.check(pipeline).records == len(LONG)
