"""`tidemark decode | quarantine` on real parts, compared with librdkafka and Python's parser."""

from __future__ import annotations

import io
import json
import os
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from random import Random
from typing import Any

import fastavro
import pyarrow as pa
import pytest
import typer
from deltalake import DeltaTable

from tests.conftest import TopicFactory
from tests.support.commands import Command
from tests.support.kafka_judge import DeliveredRecord, read_ranges
from tests.support.protobuf import proto_bytes
from tests.support.registry import Registry, avro_bytes, connection_environ, framed, registry_proxy
from tests.support.transactions import (
    Record,
    produce_aborted,
    produce_committed,
    produce_records,
)
from tests.support.typed_lake import home_typed_lake
from tidemark.app.app import App
from tidemark.app.connections import connection_variable, kafka_connection
from tidemark.app.pipelines import Outcomes
from tidemark.cli.decode import _print as print_outcomes
from tidemark.core.decode_work import Decoded
from tidemark.core.errors import ExitCode
from tidemark.core.offsets import SpanSet
from tidemark.delta.table_io import query_rows
from tidemark.kafka.errors import KafkaUnavailable
from tidemark.local.broker import BrokerStatus
from tidemark.local.samples import SAMPLES

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.e2e]

_SPEC = """
name: events
topic: {topic}
schedule: "@daily"
start: earliest
decode:
  publish: always
  key: {{format: string}}
  value:
    format: json
    schema: {schema}
  rules: {rules}
  quarantine: {{records: 1000}}
"""


_KAFKA = connection_variable("kafka_default")
_FIELDS = '{n: long, price: "decimal(18,4)", name: string}'
_GROWN = '{n: long, flag: boolean, price: "decimal(18,4)", name: string}'


class Pipeline:
    """A pipeline with a typed table, and its tables as another program reads them."""

    def __init__(self, home: Path, bootstrap: str, topic: str) -> None:
        self._home = home
        self._bootstrap = bootstrap
        self._topic = topic
        (home / "pipelines").mkdir()
        self.write()

    def write(self, rules: str = "{}", schema: str = _FIELDS) -> None:
        """Write the spec."""
        text = _SPEC.format(topic=self._topic, rules=rules, schema=schema)
        (self._home / "pipelines" / "events.yaml").write_text(text)

    def write_decode(self, section: str) -> None:
        """Replace the section `decode` of the spec."""
        spec = self._home / "pipelines" / "events.yaml"
        spec.write_text(spec.read_text().partition("decode:")[0] + f"decode:\n{section}")

    def produce(self, records: list[Record]) -> None:
        """Write to the topic."""
        produce_records(self._bootstrap, self._topic, records)

    def kafka_records(self) -> list[DeliveredRecord]:
        """Return the records that librdkafka reads."""
        return read_ranges(self._bootstrap, self._topic, {0: (0, 10**9), 1: (0, 10**9)})

    def rows(self, target: str) -> list[dict[str, Any]]:
        """Return the rows of a table, by partition and offset."""
        table = DeltaTable(self._home / "lakehouse" / target)
        found: list[dict[str, Any]] = pa.table(table.scan()).to_pylist()
        return sorted(found, key=lambda row: (row["partition"], row["offset"]))

    def table_files(self) -> list[Path]:
        """Return the files of all tables."""
        return sorted((self._home / "lakehouse").rglob("*"))

    def check(self, rule: str | None = None) -> tuple[int, int]:
        """Check that each record is decoded as by Python's parser, or in quarantine; count both."""
        typed = {(row["partition"], row["offset"]): row for row in self.rows("silver/events")}
        quarantine = self.rows("silver/events_quarantine")
        kept = {(row["partition"], row["offset"]): row for row in quarantine}
        assert len(typed) == len(self.rows("silver/events"))
        assert len(kept) == len(quarantine)
        for record in self.kafka_records():
            place = (record.partition, record.offset)
            expected, reason = expectation(record, rule)
            if reason is None:
                row = typed.pop(place)
                if row["value"] is not None:
                    # Rows from before the field was added have no such value.
                    row["value"].setdefault("flag", None)
                assert (row["key"], row["value"]) == expected, record
            else:
                assert kept.pop(place)["reason"] == reason, record
        # No transaction marker and no aborted record has a row.
        assert (typed, kept) == ({}, {})
        return len(self.rows("silver/events")), len(quarantine)


def expectation(record: DeliveredRecord, rule: str | None) -> tuple[tuple[Any, Any], str | None]:
    """Return the decoded record, and the quarantine reason if any, by Python alone."""
    try:
        key = None if record.key is None else record.key.decode()
        text = None if record.value is None else record.value.decode()
    except UnicodeDecodeError:
        return (None, None), "not_utf8"
    if text is None:
        return (key, None), None
    try:
        raw = json.loads(text, parse_float=Decimal)
    except ValueError:
        return (None, None), "not_json"
    if not isinstance(raw, dict):
        return (None, None), "not_json"
    try:
        n: Any = raw.get("n")
        price: Any = raw.get("price")
        if not isinstance(n, int | None) or isinstance(n, bool):
            raise TypeError(n)
        exact = None if price is None else Decimal(price).quantize(Decimal("0.0001"))
        if exact is not None and exact != Decimal(price):
            raise ValueError(price)
        value = {"n": n, "flag": raw.get("flag"), "price": exact, "name": raw.get("name")}
    except (ValueError, TypeError, InvalidOperation):
        return (None, None), "malformed"
    if rule == "small" and n is not None and n >= 50:
        return (None, None), "rule_broken"
    return (key, value), None


def payloads(seed: int, count: int, flagged: Sequence[str] = ()) -> list[Record]:
    """Return valid records among invalid ones of every kind."""
    random = Random(seed)
    made = []
    for number in range(count):
        good = json.dumps({"n": number, "price": f"{random.randrange(10**6)}.{number % 100:02}"})
        value = random.choice(
            [good, good, good, good, good[:-1], good + "x", "", "null", '{"n": 1.5}', '{"n": "1"}',
             '{"price": 1.00001}', "{}", *flagged, f'{{"name": "{number}"}}']
        ).encode()  # fmt: skip
        if number % 17 == 3:
            value = b"\xff" + value
        key = None if number % 5 == 0 else (b"\xfe" if number % 29 == 7 else b"k%d" % number)
        tombstone = number % 11 == 5
        made.append(Record(value=None if tombstone else value, key=key, partition=number % 2))
    return made


@pytest.fixture
def pipeline(tmp_path: Path, broker: BrokerStatus, topic: TopicFactory) -> Pipeline:
    """A topic of two partitions with plain, committed and aborted records."""
    name = topic(partitions=2)
    made = Pipeline(tmp_path, broker.bootstrap, name)
    made.produce(payloads(1, 60))
    produce_aborted(broker.bootstrap, name, [Record(value=b"{}", partition=p) for p in (0, 1)])
    produce_committed(broker.bootstrap, name, [Record(value=b"{}", partition=p) for p in (0, 1)])
    return made


@pytest.mark.parametrize("sample", ["prices", pytest.param("orders", marks=pytest.mark.faults)])
def test_a_drafted_schema_decodes_the_records_of_its_sample(
    tmp_path: Path, broker: BrokerStatus, topic: TopicFactory, tidemark: Command, sample: str
) -> None:
    """No record goes into quarantine, and the rows equal Python's values."""
    name = topic()
    records = list(SAMPLES[sample].records(seed=1, start=0, count=200, base_ms=0))
    produce_records(broker.bootstrap, name, [Record(value=r.value, key=r.key) for r in records])
    spec = tmp_path / "pipelines" / "events.yaml"
    spec.parent.mkdir()
    spec.write_text(f'name: events\ntopic: {name}\nschedule: "@daily"\nstart: earliest\n')
    assert tidemark("ingest", "events").code == ExitCode.OK
    spec.write_text(spec.read_text() + tidemark("schema", "init", "events").out)
    waiting = tidemark("decode", "events")
    assert "waits for the check of plan 1: 200 landed offsets: tidemark check" in waiting.out
    assert tidemark("check", "events").code == ExitCode.OK
    (done,) = tidemark("decode", "events", "--json").json
    assert (done["records"], done["quarantined"]) == (200, 0)
    rows = pa.table(DeltaTable(tmp_path / "lakehouse" / "silver" / "events").scan()).to_pylist()
    for row in rows:
        key, value = records[row["offset"]].key, records[row["offset"]].value
        assert row["key"] == (key and key.decode())
        if value is None:
            assert row["value"] is None
            continue
        plain = {k: v for k, v in json.loads(value).items() if not k.endswith(("time", "_at"))}
        assert plain.items() <= row["value"].items()


def test_records_are_decoded_or_quarantined_and_replayed_after_a_fix(
    pipeline: Pipeline, tidemark: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each record is in exactly one of both tables. Decoding needs no Kafka."""
    pipeline.write(rules="{small: value.n < 50}")
    assert tidemark("ingest", "events").code == ExitCode.OK
    kafka = os.environ[_KAFKA]
    monkeypatch.setenv(_KAFKA, kafka_connection("127.0.0.1:1"))
    waiting = tidemark("decode", "events", "--dry-run", "--json").json
    assert waiting[0]["missing"] > 60
    (done,) = tidemark("decode", "events", "--json").json
    decoded, quarantined = pipeline.check(rule="small")
    assert (done["records"], done["quarantined"]) == (decoded + quarantined, quarantined)
    assert (
        f"{quarantined:,} records of events in quarantine"
        in tidemark("quarantine", "list", "events").out
    )

    # No offset is left, so no Spark starts.
    again = tidemark("decode", "events")
    assert (again.code, "nothing to do" in again.out) == (ExitCode.OK, True)

    # Without the rule, and with a further field, for which the table gets a column.
    pipeline.write(schema=_GROWN)
    broken = [
        each
        for each in tidemark("quarantine", "list", "events", "--json").json
        if each["reason"] == "rule_broken"
    ]
    before = pipeline.table_files()
    preview = tidemark("quarantine", "replay", "events", "--dry-run", "--json")
    assert preview.code == ExitCode.OK
    (draft,) = preview.json
    kept = tidemark("quarantine", "list", "events", "--json").json
    failing = Counter(
        (each["reason"], each["part"], each["detail"]) for each in kept if each not in broken
    )
    assert (draft["offsets"], draft["decoded"], draft["skipped"]) == (quarantined, len(broken), 0)
    assert draft["quarantined"] == failing.total()
    assert {
        (e["reason"], e["part"], e["detail"]): e["records"] for e in draft["reasons"]
    } == failing
    only = ("quarantine", "replay", "events", "--reason", "rule_broken", "--dry-run")
    assert f"{len(broken)} decoded, 0 quarantined again" in tidemark(*only).out
    assert pipeline.table_files() == before
    replayed = tidemark("quarantine", "replay", "events", "--reason", "rule_broken", "--json").json
    assert (replayed[0]["records"], replayed[0]["quarantined"]) == (len(broken), 0)
    assert pipeline.check() == (decoded + len(broken), quarantined - len(broken))

    monkeypatch.setenv(_KAFKA, kafka)
    pipeline.produce(payloads(2, 30, ['{"flag": true}', '{"flag": false, "n": 5}']))
    tidemark("ingest", "events")
    tidemark("decode", "events")
    pipeline.check()
    assert tidemark("verify", "events", "--json").json["equal"] is True


def test_no_log_of_a_failed_rule_contains_a_value(pipeline: Pipeline, tidemark: Command) -> None:
    """This holds for the error, and for Spark's own log, which the job prints."""
    pipeline.produce([Record(value=b'{"name": "secret\\n zebra"}', partition=0)])
    tidemark("ingest", "events")
    pipeline.write(
        rules="""{wrong: "if(value.name LIKE 'secret%', CAST(value.name AS int), 1) > 0"}"""
    )
    failed = tidemark("decode", "events", "--json")
    assert failed.code == ExitCode.TRANSIENT
    assert "[CAST_INVALID_INPUT]" in failed.json[0]["problem"]
    log = failed.out + failed.err
    assert "SparkNumberFormatException [CAST_INVALID_INPUT]" in log
    assert "zebra" not in log


_TRADE = {
    "type": "record",
    "name": "Trade",
    "fields": [
        {"name": "n", "type": "int"},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
    ],
}
_NOTED = {**_TRADE, "fields": [*_TRADE["fields"], {"name": "note", "type": ["null", "string"]}]}
_OTHER = {**_TRADE, "fields": [{"name": "n", "type": "string"}]}


@pytest.mark.registry
def test_s27_avro_records_are_decoded_with_the_schemas_of_a_registry(
    tmp_path: Path,
    broker: BrokerStatus,
    topic: TopicFactory,
    registry: Registry,
    tidemark: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The judges are librdkafka and fastavro.

    The registry requires a password, and is stopped after its schemas are stored.
    """
    name = topic(partitions=2)
    pipeline = Pipeline(tmp_path, broker.bootstrap, name)
    decode = (
        "  publish: always\n  registry: trades\n  key: {format: string}\n  value: {format: avro}\n"
    )
    pipeline.write_decode(decode)
    old, new, other = (
        registry.register(f"{name}-value", each) for each in (_TRADE, _NOTED, _OTHER)
    )
    first = [framed(old, avro_bytes(_TRADE, {"n": n, "price": Decimal("1.25")})) for n in range(5)]
    second = [
        framed(new, avro_bytes(_NOTED, {"n": n, "price": Decimal("0"), "note": "x"}))
        for n in range(5)
    ]
    text = framed(other, avro_bytes(_OTHER, {"n": "five"}))
    # The second plan waits for its schema with all of its records.
    for values, others in (([*first, None, b"broken", *second], second), ([text, *first], [])):
        pipeline.produce([Record(value=each, key=b"k", partition=0) for each in values])
        pipeline.produce([Record(value=each, key=b"k", partition=1) for each in others])
        assert tidemark("ingest", "events").code == ExitCode.OK

    missing = tidemark("decode", "events", "--json")
    assert missing.json[0]["error"] == "InvalidConnection"
    with registry_proxy(registry.answer, "reader:s3cret") as proxy:
        extra = {"url": f"http://{proxy.address}", "basic.auth.user.info": "reader:s3cret"}
        for variable, connection in connection_environ(extra, "trades").items():
            monkeypatch.setenv(variable, connection)
        stopped = tidemark("decode", "events", "--json")
    assert stopped.code == ExitCode.REFUSED
    assert "s3cret" not in stopped.out + stopped.err
    (done,) = stopped.json
    assert (done["records"], done["quarantined"], done["error"]) == (17, 1, "SchemaConflict")
    assert "value.n is long in the table, not string" in done["problem"]
    pipeline.write_decode(f"{decode}  quarantine: {{schemas: [{other}]}}\n")
    # The registry no longer answers.
    assert tidemark("decode", "events").code == ExitCode.OK
    assert tidemark("verify", "events").code == ExitCode.OK
    listed = tidemark("quarantine", "list", "events", "--json").json
    assert [(each["reason"], each["schema_id"]) for each in listed] == [
        ("not_framed", None),
        ("refused_schema", other),
    ]
    kept = {(each["partition"], each["offset"]) for each in listed}
    rows = {
        (row["partition"], row["offset"]): row["value"] for row in pipeline.rows("silver/events")
    }
    for record in pipeline.kafka_records():
        place = (record.partition, record.offset)
        if place in kept:
            continue
        expected: dict[str, Any] | None = None
        if record.value is not None:
            schema = _NOTED if int.from_bytes(record.value[1:5], "big") == new else _TRADE
            body = io.BytesIO(record.value[5:])
            read = fastavro.schemaless_reader(body, fastavro.parse_schema(schema))
            assert isinstance(read, dict)
            expected = {"note": None, **read}
        assert rows.pop(place) == expected
    assert rows == {}


_LEG = 'syntax = "proto3"; package desk; message Leg { int64 quantity = 1; }'
_ORDER = """
syntax = "proto3";
import "desk/leg.proto";
message Order { int32 n = 1; repeated desk.Leg legs = 2; }
"""


@pytest.mark.registry
@pytest.mark.faults
def test_protobuf_records_are_decoded_by_separate_processes(
    tmp_path: Path,
    broker: BrokerStatus,
    topic: TopicFactory,
    registry: Registry,
    tidemark: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark's workers find Python and its libraries, even with another PATH."""
    name = topic(partitions=1)
    pipeline = Pipeline(tmp_path, broker.bootstrap, name)
    pipeline.write_decode(
        "  publish: always\n  key: {format: string}\n  value: {format: protobuf}\n"
    )
    registry.register(f"{name}-leg", _LEG, "PROTOBUF")
    leg = {"name": "desk/leg.proto", "subject": f"{name}-leg", "version": 1}
    number = registry.register(f"{name}-value", _ORDER, "PROTOBUF", references=[leg])
    imports = {"desk/leg.proto": _LEG}
    orders = [{"n": n, "legs": [{"quantity": str(2**40 + n)}] * (n % 3)} for n in range(1, 6)]
    values = [framed(number, proto_bytes(_ORDER, "Order", each, imports)) for each in orders]
    values += [framed(number, b"\x00\x08"), b"broken"]
    pipeline.produce([Record(value=each, key=b"k", partition=0) for each in values])
    for variable, connection in registry.environ().items():
        monkeypatch.setenv(variable, connection)
    assert tidemark("ingest", "events").code == ExitCode.OK
    assert tidemark("decode", "events").code == ExitCode.OK
    assert tidemark("verify", "events").code == ExitCode.OK
    listed = tidemark("quarantine", "list", "events", "--json").json
    assert [each["reason"] for each in listed] == ["malformed", "not_framed"]
    rows = sorted(pipeline.rows("silver/events"), key=lambda row: row["offset"])
    assert [row["value"] for row in rows] == [
        {"n": n, "legs": [{"quantity": 2**40 + n}] * (n % 3)} for n in range(1, 6)
    ]


def test_unnamed_fields_are_counted_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Long lists of names end with `more`. Without such records, nothing is shown."""
    done = {"pipeline": "events", **Decoded(plans=SpanSet.of_numbers([1]), records=3).as_record()}
    found = [
        {"records": 0, "names": {}, "more": False},
        {"records": 2, "names": {"venue": 2, "a'b": 1}, "more": True},
        {"records": 1200, "names": {}, "more": False},
    ]
    outcomes = Outcomes(records=[{**done, "unnamed_fields": each} for each in found])
    print_outcomes(outcomes, as_json=False)
    shown = [line.split("quarantined", 1)[1] for line in capsys.readouterr().out.splitlines()]
    assert shown == [
        "",
        "; 2 with unnamed fields: 'venue' (2), \"a'b\" (1), more",
        "; 1,200 with unnamed fields",
    ]


def test_a_decode_that_fails_shows_the_records_before_the_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    decoded = Decoded(plans=SpanSet.of_numbers([1, 2]), records=3, quarantined=1, removed=2)
    done = {"pipeline": "events", **decoded.as_record()}
    failed = KafkaUnavailable(operation="list_offsets", reason="timed out")
    outcomes = Outcomes(records=[{**done, **failed.as_record()}], codes=[failed.exit_code])
    with pytest.raises(typer.Exit):
        print_outcomes(outcomes, as_json=False)
    shown = capsys.readouterr()
    assert shown.out == "events: 2 records decoded, 1 quarantined, 2 offsets removed\n"
    assert "events: KafkaUnavailable: " in shown.err


@pytest.mark.faults
def test_a_text_of_25_million_characters_is_decoded_in_the_default_heap(
    offline: Command, tmp_path: Path
) -> None:
    """Such a value fills the heap of a session that other tests share."""
    lake = home_typed_lake(tmp_path, "value: {format: json, schema: {text: string}}")
    lake.land_values([b'{"text": "%s"}' % (b"x" * 25_000_000)])
    done = offline("decode", "events", "--json")
    assert done.code == ExitCode.OK, done
    length = "SELECT length(value['text']) AS length FROM t"
    (row,) = query_rows(DeltaTable(tmp_path / "lakehouse" / "silver" / "events"), length)
    assert row["length"] == 25_000_000


def _legs(**more: Any) -> Any:
    """Return an Avro schema with a map of records, which have further optional fields."""
    fields: list[Any] = [{"name": "qty", "type": "long"}]
    fields += [{"name": n, "type": ["null", kind], "default": None} for n, kind in more.items()]
    leg = {"type": "record", "name": "leg", "fields": fields}
    legs = {"name": "legs", "type": {"type": "map", "values": leg}}
    return {"type": "record", "name": "trade", "fields": [legs]}


@pytest.mark.registry
@pytest.mark.faults
def test_every_reader_reads_maps_from_before_and_after_a_new_field(
    tmp_path: Path,
    broker: BrokerStatus,
    topic: TopicFactory,
    registry: Registry,
    tidemark: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The typed table and the upsert table have old and new files."""
    name = topic()
    pipeline = Pipeline(tmp_path, broker.bootstrap, name)
    pipeline.write_decode(
        "  publish: always\n  key: {format: string}\n  value: {format: avro}\n  upsert: {}\n"
    )
    for variable, connection in connection_environ({"url": registry.url}).items():
        monkeypatch.setenv(variable, connection)

    def run(*words: str) -> Any:
        ran = tidemark(*words, "--json")
        assert ran.code == ExitCode.OK, (words, ran.out, ran.err)
        return ran.json

    legs: list[Any] = [{"a": {"qty": 1}}, {"a": {"qty": 2, "note": "new"}}]
    for schema, leg in zip((_legs(), _legs(note="string")), legs, strict=True):
        value = framed(
            registry.register(f"{name}-value", schema), avro_bytes(schema, {"legs": leg})
        )
        key = f"k{leg['a']['qty']}".encode()
        pipeline.produce([Record(value=value, key=key, partition=0)])
        run("run", "events")
    expected = [{"a": {"qty": 1, "note": None}}, {"a": {"qty": 2, "note": "new"}}]
    for table in ("events", "events_latest"):
        rows = run("sql", f'SELECT value FROM silver.{table} ORDER BY "offset"')
        assert [row["value"]["legs"] for row in rows] == expected
    run("verify", "events")
    shown = run("records", "events", "--partition", "0", "--offset", "0")
    assert "new" in json.dumps(shown)


def test_a_wrong_schema_is_corrected_by_one_command(tmp_path: Path, tidemark: Command) -> None:
    """The typed table and the upsert table have the rows of the corrected spec."""
    lake = home_typed_lake(tmp_path, "key: {format: string}, value: {format: string}, upsert: {}")
    lake.land_values([b'{"n": 1}', b"oops", b'{"n": 3}'], key=b"a")
    lake.land_values([b'{"n": 4}'], key=b"b")
    assert tidemark("decode", "events").code == ExitCode.OK
    assert tidemark("upsert", "events").code == ExitCode.OK
    spec = tmp_path / "pipelines" / "events.yaml"
    wrong, right = "value: {format: string}", "value: {format: json, schema: {n: long}}"
    spec.write_text(spec.read_text().replace(wrong, right))
    refused = tidemark("decode", "events", "--json")
    assert refused.json[0]["error"] == "TableAltered"
    assert "--from-scratch" in refused.json[0]["fix"]
    command = ("decode", "events", "--from-scratch", "--reason", "the values are JSON")
    assert tidemark(*command[:3]).code == ExitCode.USAGE
    draft = tidemark(*command, "--dry-run").out
    assert draft == "events: would remove 4 rows, and decode 4 offsets\n"
    done = tidemark(*command)
    assert done.code == ExitCode.OK, done.err
    assert "events: 4 rows removed" in done.err
    assert "3 records decoded, 1 quarantined" in done.out

    def rows(target: str) -> list[Any]:
        table = pa.table(DeltaTable(tmp_path / "lakehouse" / target).scan()).to_pylist()
        return sorted((row["key"], row["value"]["n"]) for row in table)

    assert rows("silver/events") == [("a", 1), ("a", 3), ("b", 4)]
    # The records are not in Kafka, with which the command would begin.
    App.from_environment().pipeline("events").typed.verifier.verify().check()
    assert tidemark("upsert", "events").code == ExitCode.OK
    assert rows("silver/events_latest") == [("a", 3), ("b", 4)]
