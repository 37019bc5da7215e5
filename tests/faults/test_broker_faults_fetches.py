"""Broker faults: fetches that are slow, stalled, or cut off in the middle."""

from __future__ import annotations

import time

import pytest

from tests.faults.tally import Court
from tests.support.lake import Lake
from tests.support.mid_read import LONG, ImpatientLake, in_mid_read, long_topic
from tests.support.proxy import ProxiedBroker, Proxy
from tidemark.core.errors import ExitCode
from tidemark.kafka.errors import KafkaUnavailable
from tidemark.lake.errors import EngineFailed

pytestmark = [pytest.mark.broker, pytest.mark.spark]

BYTES = sum(len(record.value or b"") for record in LONG)


@pytest.fixture
def pipeline(lake: Lake, proxied: ProxiedBroker, request: pytest.FixtureRequest) -> Lake:
    """A pipeline that reads 12 MB through the proxy and gives up after seconds."""
    impatient = ImpatientLake(
        session=lake.session, root=lake.root, connection={"bootstrap.servers": proxied.bootstrap}
    )
    return impatient.of(long_topic(proxied, request.function.__name__))


def wait_for_connections(proxy: Proxy, wanted: int) -> None:
    """Return when clients have made so many connections, counted from the proxy's beginning."""
    deadline = time.monotonic() + 120
    while proxy.accepted < wanted:
        assert time.monotonic() < deadline, f"{proxy.accepted} connection(s), not {wanted}"
        time.sleep(0.02)


def test_s17_slow_fetches_land_exactly(
    pipeline: Lake, proxied: ProxiedBroker, court: Court
) -> None:
    """I1: answers that keep coming are waited for, as long as each is whole in time."""
    plan = pipeline.plan("test")
    bytes_per_second = 2_800_000
    proxied.proxy.throttle(bytes_per_second)
    begun = time.monotonic()
    assert pipeline.ingest.execute(plan.sequence).landing.records == len(LONG)
    assert time.monotonic() - begun > 0.9 * BYTES / bytes_per_second
    proxied.proxy.clear()
    assert court.judge(pipeline).records == len(LONG)


@pytest.mark.faults
def test_i7_fetches_too_slow_for_kafkas_client_are_a_transient_error(
    pipeline: Lake, proxied: ProxiedBroker, court: Court
) -> None:
    """Kafka's client drops an answer that is not whole in its time, and asks for it again.

    A link that never brings one in time ends the run; nothing is written, and nothing is lost.
    """
    plan = pipeline.plan("test")
    proxied.proxy.throttle(1_000_000)
    accepted = proxied.proxy.accepted
    with pytest.raises(EngineFailed) as caught:
        pipeline.ingest.execute(plan.sequence)
    assert caught.value.exit_code is ExitCode.TRANSIENT
    assert proxied.proxy.accepted > accepted + 2
    assert (pipeline.rows(), pipeline.committed()) == ([], {0: 0})
    proxied.proxy.clear()
    assert pipeline.ingest.execute(plan.sequence).landing.records == len(LONG)
    assert court.judge(pipeline).records == len(LONG)


def test_s17_a_stalled_fetch_is_asked_for_again_by_kafkas_client(
    pipeline: Lake, proxied: ProxiedBroker, court: Court
) -> None:
    """The client gives the connection up, makes another, and the plan lands in the same run."""
    plan = pipeline.plan("test")
    with in_mid_read(pipeline, plan, proxied) as (running, gate):
        wait_for_connections(proxied.proxy, proxied.proxy.accepted + 1)
        assert not running.done()
        gate.release()
        landing = running.result().landing
    assert landing.records == len(LONG)
    assert court.judge(pipeline).records == len(LONG)
    assert pipeline.ledger.event_number == 2


@pytest.mark.faults
def test_i7_a_fetch_that_stalls_for_ever_is_a_transient_error(
    pipeline: Lake, proxied: ProxiedBroker, court: Court
) -> None:
    """Spark gives up, nothing is written, and the same plan lands when the network is back."""
    plan = pipeline.plan("test")
    with in_mid_read(pipeline, plan, proxied) as (running, _):
        with pytest.raises(EngineFailed) as caught:
            running.result(timeout=120)
        assert caught.value.exit_code is ExitCode.TRANSIENT
    assert (pipeline.rows(), pipeline.committed()) == ([], {0: 0})
    proxied.proxy.clear()
    assert pipeline.ingest.execute(plan.sequence).landing.records == len(LONG)
    assert court.judge(pipeline).records == len(LONG)


def test_s17_connections_cut_in_mid_fetch_land_exactly(
    pipeline: Lake, proxied: ProxiedBroker, court: Court
) -> None:
    """I1: half an answer is thrown away and asked for again; nothing is doubled."""
    plan = pipeline.plan("test")
    with in_mid_read(pipeline, plan, proxied) as (running, gate):
        accepted = proxied.proxy.accepted
        assert proxied.proxy.cut() > 0
        gate.release()
        assert running.result().landing.records == len(LONG)
    assert proxied.proxy.accepted > accepted
    assert court.judge(pipeline).records == len(LONG)


@pytest.mark.faults
def test_i7_a_dead_network_while_planning_is_named(
    pipeline: Lake, proxied: ProxiedBroker, court: Court
) -> None:
    """Before the plan nothing is recorded, before the landing nothing is written."""
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
    assert court.judge(pipeline).records == len(LONG)
