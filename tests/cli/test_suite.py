"""`tidemark suite init` and `schema init` over real tables, without Spark and Kafka."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.support.commands import Command
from tests.support.file_lake import FileLake
from tests.support.memory import MemoryKafka
from tidemark.core.errors import ExitCode
from tidemark.core.offsets import SpanSet
from tidemark.core.record import LogRecord
from tidemark.core.watermarks import IsolationLevel
from tidemark.quality.suite import load_suite


@dataclass
class JsonLog(MemoryKafka):
    """A log with values in JSON."""

    def read(
        self, topic: str, isolation_level: IsolationLevel, spans: Mapping[int, SpanSet]
    ) -> Iterator[LogRecord]:
        """See `LogReader.read`."""
        for record in super().read(topic, isolation_level, spans):
            value = {"price": record.offset + 1, "side": "buy"}
            yield replace(record, key=b"buy", value=json.dumps(value).encode())


@pytest.fixture
def lake(tmp_path: Path) -> FileLake:
    """Pipeline `events`, with its spec."""
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "events.yaml").write_text(
        'name: events\ntopic: events\ntarget: bronze/events\nschedule: "@daily"\nstart: earliest\n',
        encoding="utf-8",
    )
    return FileLake(root=tmp_path / "lakehouse", kafka=JsonLog())


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a project folder of this test."""
    monkeypatch.setenv("TIDEMARK_PROJECT", str(tmp_path))


def test_a_draft_is_written_and_never_overwritten(
    lake: FileLake, offline: Command, tmp_path: Path
) -> None:
    """An edited file stays; the draft uses the newest records."""
    lake.run(300)
    file = tmp_path / "include" / "expectations" / "events.json"
    shown = offline("suite", "init", "events", "--dry-run")
    assert (shown.code, file.exists()) == (ExitCode.OK, False)
    ran = offline("suite", "init", "events")
    assert ran.code == ExitCode.OK, ran.err
    assert json.loads(shown.out) == json.loads(file.read_text(encoding="utf-8"))
    assert "quality: {suite: events}" in ran.out
    assert load_suite(file).expectations

    file.write_text("mine", encoding="utf-8")
    refused = offline("suite", "init", "events", "--json")
    assert (refused.code, refused.json["error"]) == (ExitCode.REFUSED, "FileExists")
    assert file.read_text(encoding="utf-8") == "mine"
    other = offline("suite", "init", "events", "--name", "strict", "--records", "20", "--json")
    assert other.json["profile"]["records"] == 20
    assert load_suite(Path(other.json["file"])).name == "strict"
    assert other.json["suite"]["notes"].startswith("Drafted from 20 records")


@pytest.mark.parametrize("name", ["../evil", "Strict", "ü", "", "a" * 300])
def test_an_invalid_name_is_refused(
    lake: FileLake, offline: Command, tmp_path: Path, name: str
) -> None:
    """Nothing is written."""
    lake.run(3)
    ran = offline("suite", "init", "events", "--name", name)
    assert (ran.code, "the name of a suite must match" in ran.err.replace("\n", " ")) == (
        ExitCode.USAGE,
        True,
    )
    assert not (tmp_path / "include").exists()


def test_a_draft_uses_the_newest_records_and_not_the_newest_offsets(
    lake: FileLake, offline: Command
) -> None:
    """A transaction's marker is the last offset of every commit."""
    lake.kafka.produce("events", 0, 50)
    lake.kafka.add_gaps("events", 0, 30)
    lake.run(1, partition=1)
    ran = offline("suite", "init", "events", "--records", "20", "--dry-run", "--json")
    assert ran.json["profile"]["records"] == 20


def test_a_draft_without_landed_records_is_refused(
    lake: FileLake, offline: Command, tmp_path: Path
) -> None:
    """Nothing is written."""
    assert not lake.uri.exists()
    refused = offline("suite", "init", "events", "--json")
    assert (refused.code, refused.json["error"]) == (ExitCode.REFUSED, "NothingLanded")
    assert not (tmp_path / "include").exists()
    unknown = offline("suite", "init", "nosuch", "--json")
    assert unknown.json["error"] == "UnknownPipeline"


def test_a_section_of_the_spec_is_drafted(lake: FileLake, offline: Command, tmp_path: Path) -> None:
    """The output can be appended to the spec; nothing is written."""
    refused = offline("schema", "init", "events", "--json")
    assert (refused.code, refused.json["error"]) == (ExitCode.REFUSED, "NothingLanded")
    lake.run(300)
    spec = tmp_path / "pipelines" / "events.yaml"
    before = spec.read_text(encoding="utf-8")
    shown = offline("schema", "init", "events")
    assert (shown.code, spec.read_text(encoding="utf-8")) == (ExitCode.OK, before)
    spec.write_text(before + shown.out, encoding="utf-8")
    assert offline("decode", "events", "--dry-run").code == ExitCode.OK
    found = offline("schema", "init", "events", "--records", "20", "--json").json
    assert found == {
        "records": 20,
        "decode": {
            "key": {"format": "string"},
            "value": {"format": "json", "schema": {"price": "long", "side": "string"}},
        },
        "assumptions": [
            {
                "key": "decode.key.format",
                "value": "string",
                "evidence": "all 20 keys are text",
            },
            {
                "key": "decode.value.format",
                "value": "json",
                "evidence": "all 20 values are JSON objects",
            },
            {
                "key": "decode.value.schema.price",
                "value": "long",
                "evidence": "all 20 values",
            },
            {
                "key": "decode.value.schema.side",
                "value": "string",
                "evidence": "all 20 values",
            },
        ],
        "left_out": [],
        "unfit": 0,
    }
