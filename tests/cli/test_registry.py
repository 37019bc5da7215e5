"""`tidemark decode` with a registry that is unreachable, hangs or refuses, without Spark."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import Command, CommandResult
from tests.support.registry import (
    avro_bytes,
    connection_environ,
    framed,
    registry_answers,
    registry_proxy,
)
from tests.support.typed_lake import TypedLake, home_typed_lake
from tidemark.app.app import App
from tidemark.cli import engine as cli_engine
from tidemark.core.errors import ExitCode
from tidemark.silver.typed.schema_table import DeltaSchemaStore
from tidemark.spark.engine import Engine, JobRun
from tidemark.spec.decode import RegisteredSchema
from tidemark.spec.ref import DecodeRef

_SECRET = "s3cret"
_TRADE = {"type": "record", "name": "Trade", "fields": [{"name": "n", "type": "int"}]}
_OTHER = {**_TRADE, "fields": [{"name": "n", "type": "string"}]}
_DECODE = "registry: trades, key: {format: avro}, value: {format: avro}"


def trade_payload(schema_id: int) -> bytes:
    """A trade in the frame of a schema."""
    return framed(schema_id, avro_bytes(_TRADE, {"n": 1}))


@pytest.fixture
def lake(tmp_path: Path) -> TypedLake:
    """Two records have landed, whose keys and values are written with schemas 3 and 5."""
    lake = home_typed_lake(tmp_path, _DECODE)
    lake.bronze.land_payloads(
        [(trade_payload(3), trade_payload(5)), (trade_payload(3), trade_payload(3))]
    )
    return lake


def connect(monkeypatch: pytest.MonkeyPatch, place: str, **extra: Any) -> None:
    """Define the connection `trades`."""
    settings = {"url": f"http://{place}", "max.retries": 0, **extra}
    for variable, text in connection_environ(settings, "trades").items():
        monkeypatch.setenv(variable, text)


def error_of(lake: TypedLake, ran: CommandResult) -> dict[str, Any]:
    """Return the error of a command; check that it decoded no record."""
    assert lake.decoded() == []
    assert lake.quarantined() == []
    (error,) = ran.json
    assert "'trades'" in error["problem"]
    assert "no record of this schema was decoded" in error["fix"]
    return dict(error)


def test_the_error_of_a_wrong_password_names_the_connection(
    lake: TypedLake, offline: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No output contains the right or the wrong password."""
    with registry_proxy(registry_answers({3: _TRADE, 5: _TRADE}), f"reader:{_SECRET}") as proxy:
        connect(monkeypatch, proxy.address, **{"basic.auth.user.info": f"reader:not-{_SECRET}"})
        as_json, plain = offline("decode", "events", "--json"), offline("decode", "events")
    assert as_json.code == plain.code == ExitCode.REFUSED
    error = error_of(lake, as_json)
    assert error["error"] == "RegistryRefused"
    assert "HTTP 401" in error["problem"]
    assert "credentials of the connection" in error["fix"]
    assert "connection 'trades'" in plain.out + plain.err
    for ran in (as_json, plain):
        assert _SECRET not in ran.out + ran.err
    assert proxy.requests == []


@pytest.mark.slow
def test_a_registry_that_never_answers_is_a_transient_error(
    lake: TypedLake, offline: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It accepts the connection and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        connect(monkeypatch, address, timeout=1)
        ran = offline("decode", "events", "--json")
        # The setting max.retries of the connection is 0. A first decode commits its bookmark, and
        # asks again.
        silent.setblocking(False)
        for _ in range(2):
            silent.accept()[0].close()
        with pytest.raises(BlockingIOError):
            silent.accept()
    assert ran.code == ExitCode.TRANSIENT
    error = error_of(lake, ran)
    assert error["error"] == "RegistryUnavailable"
    assert f"ReadTimeout at {address}." in error["problem"]
    assert "run the command again" in error["fix"]


@pytest.mark.slow
def test_plans_with_stored_schemas_need_no_registry(
    lake: TypedLake, offline: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No job starts for an unknown schema."""
    submitted: list[str] = []

    def run(
        _: App,
        engine: Engine,
        job: str,
        refs: Sequence[DecodeRef],
        print_line: Callable[[str], None],
        show_tasks: object,
    ) -> JobRun:
        submitted.extend(map(str, refs))
        return JobRun(exit_code=ExitCode.TRANSIENT, results=None)

    monkeypatch.setattr(cli_engine, "run", run)
    with registry_proxy(registry_answers({3: _TRADE, 5: _TRADE})) as proxy:
        connect(monkeypatch, proxy.address)
        offline("decode", "events")
    offline("decode", "events")
    assert submitted == ["events"] * 2
    with monkeypatch.context() as undefined:
        for variable in connection_environ({}, "trades"):
            undefined.delenv(variable)
        refused = offline("decode", "events", "--json")
    # Such runs would not notice that a rebuilt registry uses an id for another schema.
    assert (refused.code, refused.json[0]["error"]) == (ExitCode.REFUSED, "InvalidConnection")
    lake.bronze.land_payloads([(trade_payload(3), trade_payload(4))])
    away = offline("decode", "events", "--json")
    assert (away.code, away.json[0]["error"]) == (ExitCode.TRANSIENT, "RegistryUnavailable")
    assert len(submitted) == 2


def test_a_suite_is_drafted_with_stored_schemas(
    lake: TypedLake, offline: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without the schemas, the draft has no rules about fields, and the command prints why."""
    monkeypatch.setenv("TIDEMARK_PROJECT", str(tmp_path))
    values = [framed(5, avro_bytes(_TRADE, {"n": n % 50})) for n in range(400)]
    lake.bronze.land_payloads([(trade_payload(3), each) for each in values])
    bare = offline("suite", "init", "events")
    assert "no rules about fields" in bare.err
    DeltaSchemaStore(
        App.from_environment().layout.schema_table, "trades", lambda: datetime.now(UTC)
    ).store([RegisteredSchema(id=each, kind="AVRO", text=json.dumps(_TRADE)) for each in (3, 5)])
    drafted = offline("suite", "init", "events", "--name", "mine", "--json").json["suite"]
    columns = [rule["kwargs"]["column"] for rule in drafted["expectations"]]
    assert columns == ["value_problem", "n"]


def test_a_run_requests_each_schema_once(tmp_path: Path, lake: TypedLake) -> None:
    """Keys and values may share it, and a plan may wait for another schema."""
    lake.bronze.land_payloads(
        [(trade_payload(3), framed(4, b"")), (trade_payload(3), trade_payload(5))]
    )
    with registry_proxy(registry_answers({3: _TRADE, 4: _OTHER, 5: _TRADE})) as proxy:
        environ = {
            "TIDEMARK_HOME": str(tmp_path),
            "TIDEMARK_PIPELINES": str(tmp_path / "pipelines"),
            **connection_environ({"url": f"http://{proxy.address}"}, "trades"),
        }
        decodes = App(environ=environ).pipeline("events").typed.decodes
        for _ in range(2):
            work = decodes.next()
            assert work is not None
            assert work.plans.numbers() == [1]
    assert sorted(proxy.requests) == [f"/schemas/ids/{number}" for number in (3, 4, 5)]
