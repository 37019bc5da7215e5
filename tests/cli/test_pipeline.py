"""`tidemark pipeline`: drafts of specs from real topics, and checks of specs."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest
import yaml
from confluent_kafka.admin import AdminClient

from tests.support.commands import Command
from tests.support.consoles import app_of, record_check
from tests.support.file_lake import home_lake
from tests.support.registry import Registry, avro_bytes, connection_environ, framed
from tests.support.topics import make_topic
from tests.support.transactions import Record, produce_aborted, produce_records
from tests.support.typed_lake import home_typed_lake
from tidemark.core.errors import ExitCode
from tidemark.local.broker import BrokerStatus
from tidemark.quality.suite import load_suite


@pytest.mark.broker
def test_a_drafted_spec_names_the_formats_of_its_topic(
    broker: BrokerStatus, admin: AdminClient, tmp_path: Path, tidemark: Command
) -> None:
    """Broken records, aborted records and gaps at the end of the log do not disturb the draft."""
    topic = f"pay-{uuid.uuid4().hex[:6]}"
    make_topic(admin, broker.bootstrap, topic, partitions=2)
    values = [json.dumps({"n": n, "price": n / 4}).encode() for n in range(98)]
    values += [b'{"n": 98, "price": "n/a"}', b"oops"]
    produce_records(
        broker.bootstrap,
        topic,
        [Record(partition=n % 2, key=b"k%d" % (n % 5), value=v) for n, v in enumerate(values)],
    )
    produce_aborted(broker.bootstrap, topic, [Record(value=b"\xff")] * 30)

    preview = tidemark("pipeline", "init", topic, "--dry-run")
    assert preview.code == ExitCode.OK
    assert not (tmp_path / "pipelines").exists()
    drafted = tidemark("pipeline", "init", topic, "--json").json
    file = tmp_path / "pipelines" / f"{topic.replace('-', '_')}.yaml"
    assert drafted["file"] == str(file)
    assert preview.out == file.read_text() == drafted["spec"]
    assert (drafted["records"], drafted["unfit"]) == (100, 2)
    assert yaml.safe_load(file.read_text())["decode"] == {
        "key": {"format": "string"},
        "value": {"format": "json", "schema": {"n": "long", "price": "double"}},
        "upsert": {},
    }

    again = tidemark("pipeline", "init", topic, "--json")
    assert (again.code, again.json["error"]) == (ExitCode.REFUSED, "FileExists")
    other = tidemark("pipeline", "init", topic, "--name", "other", "--no-upsert")
    assert "go to quarantine" in other.out
    assert "tidemark run other" in other.out
    checked = tidemark("pipeline", "check")
    assert checked.code == ExitCode.OK
    assert "silver/other" in checked.out
    chosen = tidemark(
        "pipeline", "init", topic, "--name", "text", "--format", "string", "--dry-run"
    )
    assert yaml.safe_load(chosen.out)["decode"]["value"] == {"format": "string"}
    assert tidemark("pipeline", "init", topic, "--name", "../other").code == ExitCode.USAGE
    missing = tidemark("pipeline", "init", topic.replace("pay", "pya"), "--json")
    assert missing.json["error"] == "TopicMissing"
    assert topic in missing.json["problem"]


@pytest.mark.broker
def test_a_spec_is_drafted_with_its_suite_on_request(
    broker: BrokerStatus,
    admin: AdminClient,
    tmp_path: Path,
    tidemark: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TIDEMARK_PROJECT", str(tmp_path))
    topic = f"pay-{uuid.uuid4().hex[:6]}"
    make_topic(admin, broker.bootstrap, topic, partitions=1)
    values = [json.dumps({"side": "buy" if n % 3 else "sell"}).encode() for n in range(400)]
    produce_records(broker.bootstrap, topic, [Record(value=value) for value in values])
    suite = tmp_path / "include" / "expectations" / "pay.json"

    preview = tidemark("pipeline", "init", topic, "--name", "pay", "--suite", "--dry-run")
    assert preview.code == ExitCode.OK
    assert not suite.exists()
    drafted = tidemark("pipeline", "init", topic, "--name", "pay", "--suite")
    assert str(suite) in drafted.out
    assert yaml.safe_load(preview.out)["quality"] == {"suite": "pay"}
    assert yaml.safe_load((tmp_path / "pipelines" / "pay.yaml").read_text()) == yaml.safe_load(
        preview.out
    )
    assert "expect_column_values_to_be_in_set" in {
        rule["type"] for rule in load_suite(suite).expectations
    }
    assert tidemark("pipeline", "check", "pay").code == ExitCode.OK

    (tmp_path / "pipelines" / "pay.yaml").unlink()
    refused = tidemark("pipeline", "init", topic, "--name", "pay", "--suite", "--json")
    assert refused.json["error"] == "FileExists"
    assert not (tmp_path / "pipelines" / "pay.yaml").exists()
    few = ("pipeline", "init", topic, "--name", "few", "--records", "9", "--suite")
    assert "no suite" in tidemark(*few).err
    assert "quality" not in yaml.safe_load((tmp_path / "pipelines" / "few.yaml").read_text())


@pytest.mark.broker
@pytest.mark.registry
def test_a_drafted_spec_has_the_format_that_the_registry_names(
    broker: BrokerStatus,
    admin: AdminClient,
    registry: Registry,
    tidemark: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without an answer of a defined registry, the command writes no spec."""
    topic = f"avro-{uuid.uuid4().hex[:6]}"
    make_topic(admin, broker.bootstrap, topic)
    schema = {
        "type": "record",
        "name": "Pay",
        "fields": [{"name": "n", "type": "long"}],
    }
    schema_id = registry.register(f"{topic}-value", schema)
    values = [framed(schema_id, avro_bytes(schema, {"n": n % 50})) for n in range(400)]
    values.append(framed(schema_id, b""))
    produce_records(broker.bootstrap, topic, [Record(key=b"k", value=each) for each in values])
    monkeypatch.setenv(*next(iter(connection_environ({"url": "http://127.0.0.1:1"}).items())))
    refused = tidemark("pipeline", "init", topic, "--json")
    assert (refused.code, refused.json["error"]) == (ExitCode.TRANSIENT, "RegistryUnavailable")
    for name, value in registry.environ().items():
        monkeypatch.setenv(name, value)
    drafted = tidemark("pipeline", "init", topic, "--suite", "--dry-run", "--json").json
    assert yaml.safe_load(drafted["spec"])["decode"]["value"] == {"format": "avro"}
    assert drafted["unfit"] == 1
    columns = [rule["kwargs"]["column"] for rule in drafted["suite"]["expectations"]]
    assert columns == ["value_problem", "n"]


def test_checking_specs_prints_every_problem_with_a_suggestion(
    unconnected: Command, tmp_path: Path
) -> None:
    specs = tmp_path / "pipelines"
    specs.mkdir()
    (specs / "good.yaml").write_text("name: good\ntopic: good\nschedule: '@daily'\n")
    (specs / "bad.yaml").write_text(
        "name: bad\ntopic: bad\nschedule: '@dayly'\nstart: earlyest\nlimit: {}\n"
        "quality: {suite: no_such_suite}\n"
    )
    ran = unconnected("pipeline", "check")
    assert ran.code == ExitCode.REFUSED
    assert "bronze/good" in ran.out
    for text in ("did you mean '@daily'", "did you mean 'earliest'", "did you mean 'limits'"):
        assert text in ran.err
    assert unconnected("pipeline", "check", "good").code == ExitCode.OK
    record = unconnected("pipeline", "check", "--json").json
    assert [(each["pipeline"], each["valid"]) for each in record] == [
        ("bad", False),
        ("good", True),
    ]
    unknown = unconnected("pipeline", "check", "goood")
    assert unknown.code == ExitCode.REFUSED
    assert "did you mean 'good'" in unknown.err


def test_a_new_spec_over_the_tables_of_a_landed_pipeline_is_refused(
    unconnected: Command, tmp_path: Path
) -> None:
    """The commands of the landed pipeline end with the error of the missing broker.

    Its plans are checked, so that `tidemark run` has no work for Spark.
    """
    home_lake(tmp_path)
    landed = app_of(tmp_path)().pipeline("events")
    for plan in (1, 2, 3):
        record_check(landed, plan)
    (tmp_path / "pipelines" / "all.yaml").write_text(
        "name: all\ntopic: all\nschedule: '@daily'\ntarget: bronze/events\n"
    )
    record = unconnected("pipeline", "check", "--json").json
    assert [(each["pipeline"], each["valid"]) for each in record] == [
        ("all", False),
        ("events", True),
        ("idle", True),
    ]
    for command in ("plan", "ingest", "run", "status"):
        refused = unconnected(command, "all")
        assert refused.code == ExitCode.REFUSED
        assert "only events is in the control table" in refused.err
        assert "EmbeddedBrokerStopped" in unconnected(command, "events").err


def test_a_row_rule_that_spark_will_refuse_makes_its_spec_invalid(
    unconnected: Command, tmp_path: Path
) -> None:
    """No command plans the pipeline before the rule is corrected."""
    (tmp_path / "pipelines").mkdir()
    rule = tmp_path / "pipelines" / "good.yaml"
    rule.write_text(
        "name: good\ntopic: good\nschedule: '@daily'\ndecode:\n"
        "  value: {format: json, schema: {amount: long}}\n"
        "  rules: {positive: value.amont > 0, whole: value.amount >= }\n"
    )
    for command in (("pipeline", "check"), ("plan", "good"), ("run", "good"), ("status", "good")):
        refused = unconnected(*command)
        assert refused.code == ExitCode.REFUSED
        positive, whole = (line for line in refused.err.splitlines() if "decode.rules." in line)
        assert "positive: found value has no field 'amont' (did you mean 'amount'?)" in positive
        assert "whole: found invalid syntax at '>=' (line 1, column 14)" in whole
    rule.write_text(rule.read_text().replace("amont", "amount").replace(">= ", ">= 0"))
    assert unconnected("pipeline", "check").code == ExitCode.OK


def test_an_undefined_connection_is_named_by_the_check_of_its_spec_and_by_its_status(
    unconnected: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The spec is valid, because Airflow may define the connection. The status has an alarm."""
    home_typed_lake(tmp_path, "registry: trades, value: {format: avro}").land_values(
        [framed(7, b"\x02")]
    )
    other = tmp_path / "pipelines" / "other.yaml"
    other.write_text("name: other\ntopic: t\nschedule: '@daily'\nconnection: kafka_other\n")
    checked = unconnected("pipeline", "check")
    assert checked.code == ExitCode.OK
    assert "events: warning: Connection 'trades' is not defined." in checked.err
    assert "AIRFLOW_CONN_TRADES" in checked.err
    assert "other: warning: Connection 'kafka_other' is not defined." in checked.err
    events, _ = unconnected("pipeline", "check", "--json").json
    assert [each["error"] for each in events["warnings"]] == ["InvalidConnection"]
    (status,) = unconnected("status", "events", "--json").json
    assert status["undecoded"] == 1
    named = {each["problem"] for each in status["alarms"]}
    assert "Connection 'trades' is not defined." in named

    for variable, definition in connection_environ({"url": "http://127.0.0.1:1"}, "trades").items():
        monkeypatch.setenv(variable, definition)
    assert "trades" not in unconnected("pipeline", "check").err
    (status,) = unconnected("status", "events", "--json").json
    assert "InvalidConnection" not in {each["error"] for each in status["alarms"]}


def test_checking_a_spec_checks_its_suite(
    unconnected: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMARK_PROJECT", str(tmp_path))
    suites = tmp_path / "include" / "expectations"
    suites.mkdir(parents=True)
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "good.yaml").write_text(
        "name: good\ntopic: good\nschedule: '@daily'\nquality: {suite: strict}\n"
    )
    (suites / "strict.json").write_text('{"name": "strict", "expectations": [{"type": "no"}]}')
    ran = unconnected("pipeline", "check", "--json")
    assert ran.code == ExitCode.REFUSED
    assert ran.json[0]["error"] == "SpecError"
