"""Topics full of records, by Kafka's own perf tools."""

from __future__ import annotations

import re

from confluent_kafka.admin import AdminClient, NewTopic

from bench.clock import run_process
from bench.context import PROJECT, Context

RECORD_BYTES = 200
_JARS = PROJECT / ".tidemark" / "jvm" / "kafka"
_ACKNOWLEDGED = re.compile(r"^(\d+) records sent", re.MULTILINE)


def make_topic(context: Context, topic: str, partitions: int) -> None:
    """Make an empty topic."""
    admin = AdminClient({"bootstrap.servers": context.bootstrap})
    admin.create_topics([NewTopic(topic, num_partitions=partitions)])[topic].result(timeout=30)


def fill_topic(context: Context, topic: str, records: int) -> None:
    """Produce records of RECORD_BYTES random capital letters, no key, acks=all, spread evenly.

    Source: `kafka-producer-perf-test` of Apache Kafka.
    """
    log = context.home / f"produce-{topic}.log"
    command = [*_tool("ProducerPerformance"), "--topic", topic, "--num-records", str(records)]
    command += ["--record-size", str(RECORD_BYTES), "--throughput", "-1", "--producer-props"]
    command += [f"bootstrap.servers={context.bootstrap}", "acks=all"]
    run_process(command, log, {})
    sent = int(_ACKNOWLEDGED.findall(log.read_text())[-1])
    if sent != records:
        raise RuntimeError(f"the producer tool sent {sent} of {records} records")


def consume_topic(context: Context, topic: str, records: int) -> dict[str, float]:
    """Read a topic with `kafka-consumer-perf-test`: fetch only, one thread, nothing decoded.

    Returns:
        `seconds` and `records_per_second` of the fetching alone, as the tool reports them:
        neither the start of its JVM nor the joining of its group counts.
    """
    log = context.home / f"consume-{topic}.log"
    command = [*_tool("ConsumerPerformance"), "--topic", topic, "--messages", str(records)]
    command += ["--bootstrap-server", context.bootstrap, "--timeout", "30000"]
    run_process(command, log, {})
    return parse_consumer_report(log.read_text())


def parse_consumer_report(text: str) -> dict[str, float]:
    """The figures of the consumer tool's table."""
    lines = [[part.strip() for part in line.split(",")] for line in text.splitlines()]
    first = next(number for number, line in enumerate(lines) if line[0] == "start.time")
    header = lines[first]
    # Log lines may stand between the header and the figures.
    figures = next(line for line in lines[first + 1 :] if len(line) == len(header))
    values = dict(zip(header, figures, strict=True))
    return {
        "records": float(values["data.consumed.in.nMsg"]),
        "seconds": float(values["fetch.time.ms"]) / 1000,
        "records_per_second": float(values["fetch.nMsg.sec"]),
    }


def _tool(name: str) -> list[str]:
    return ["java", "-cp", f"{_JARS}/*", f"org.apache.kafka.tools.{name}"]
