"""Tests of drafts of whole specs, from sampled records of a topic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.plans import make_record, no_owner
from tidemark.draft.spec import SpecDraft, pipeline_name
from tidemark.kafka.errors import InvalidConnection
from tidemark.kafka.topics import TopicSample
from tidemark.silver.typed.registry_answers import RegistryAnswers
from tidemark.spec.decode import Format
from tidemark.spec.errors import FileExists, SpecError
from tidemark.spec.layout import Layout
from tidemark.spec.loading import load_specs
from tidemark.spec.upsert import Envelope


def sample(*records: tuple[bytes | None, bytes | None], topic: str = "events") -> TopicSample:
    """Return a sample of records with these keys and values."""
    return TopicSample(
        topic=topic,
        partitions=1,
        offsets=len(records),
        records=tuple(
            make_record(value, key, offset) for offset, (key, value) in enumerate(records)
        ),
        is_complete=True,
    )


def draft(found: TopicSample, **options: Any) -> SpecDraft:
    """Return the draft of a sample."""
    defaults: dict[str, Any] = {
        "name": None,
        "connection": "kafka_default",
        "schedule": "@daily",
        "upsert": None,
        "registry": lambda _: RegistryAnswers(connection="registry"),
    }
    return SpecDraft.of(found, **(defaults | options))


def layout_of(folder: Path) -> Layout:
    return Layout(project=folder, home=folder)


def written(found: SpecDraft, specs: Path, root: Path) -> Path:
    """Check a draft, write it to a folder of specs, and return its file."""
    file = found.check(specs, layout_of(root), list, no_owner)
    found.write(file)
    return file


def json_records(count: int, keys: int) -> list[tuple[bytes | None, bytes | None]]:
    return [(b"k%d" % (n % keys), json.dumps({"n": n}).encode()) for n in range(count)]


def test_a_draft_names_the_missing_registry() -> None:
    """Values with a schema id stay bytes if no registry is defined."""
    framed = [(b"k", b"\0\0\0\0\7" + b"%d" % n) for n in range(20)]
    missing = InvalidConnection.of_undefined("registry")
    answers = RegistryAnswers(connection="registry", problem=missing)
    found = draft(sample(*framed), registry=lambda _: answers)
    (shown,) = (each for each in found.assumptions if each.key == "decode.value.format")
    assert shown.value == "binary"
    assert "all 20 values begin with a schema id" in shown.evidence
    assert "registry" in shown.evidence
    assert not found.is_decoded


def test_a_written_draft_is_a_valid_spec(tmp_path: Path) -> None:
    found = draft(sample(*json_records(40, keys=4), topic="Shop.orders-v2"), connection="kafka_b")
    file = written(found, tmp_path / "specs", tmp_path)
    spec = load_specs(tmp_path / "specs", layout_of(tmp_path), list, no_owner).specs[
        "shop_orders_v2"
    ]
    assert file.name == "shop_orders_v2.yaml"
    suite = found.assumptions[-1]
    assert (suite.key, suite.value, spec.suite) == ("quality.suite", "no suite", None)
    assert "tidemark suite init shop_orders_v2" in suite.evidence
    assert "`tidemark suite init shop_orders_v2`" in file.read_text()
    assert (spec.topic, spec.connection, spec.schedule) == ("Shop.orders-v2", "kafka_b", "@daily")
    assert spec.decode is not None
    assert spec.decode.value.format is Format.JSON
    assert spec.decode.upsert is not None
    assert spec.decode.upsert.envelope is Envelope.NONE


@pytest.mark.parametrize(
    ("records", "sections"),
    [
        (json_records(40, keys=4), {"decode", "upsert"}),
        (json_records(40, keys=40), {"decode"}),
        ([(None, value) for _, value in json_records(40, keys=4)], {"decode"}),
        ([(b"k", None)] * 40, set()),
        ([(b"k", b"\xff\xfe")] * 40, set()),
        ([(b"k", b"text")] * 40, {"decode", "upsert"}),
        ([], set()),
    ],
    ids=["json", "unique-keys", "no-keys", "tombstones", "binary", "text", "empty"],
)
def test_the_records_decide_the_sections(
    tmp_path: Path, records: list[tuple[bytes | None, bytes | None]], sections: set[str]
) -> None:
    found = draft(sample(*records))
    found.check(tmp_path, layout_of(tmp_path), list, no_owner)
    content = yaml.safe_load(found.text)
    decode = content.get("decode", {})
    assert {*(["decode"] if decode else ()), *({"upsert"} & set(decode))} == sections


_CHANGE = {"before": None, "after": {"id": 1}, "op": "c"}
_UNWRAPPED = {"id": 1, "__deleted": "false"}
_CONNECT = {"schema": {"type": "struct", "fields": []}}


@pytest.mark.parametrize(
    ("value", "envelope", "fields"),
    [
        (_CHANGE, "debezium", {"after", "op"}),
        ({**_CONNECT, "payload": _CHANGE}, "debezium", {"payload"}),
        (_UNWRAPPED, "debezium_unwrapped", {"id", "__deleted"}),
        ({**_CONNECT, "payload": _UNWRAPPED}, "debezium_unwrapped", {"payload"}),
        ({**_CONNECT, "payload": {"id": 1}}, None, {"payload"}),
    ],
)
def test_values_of_debezium_get_its_envelope(
    value: Any, envelope: str | None, fields: set[str]
) -> None:
    """The schema that Connect repeats in each value has no column."""
    found = draft(sample(*[(b"1", json.dumps(value).encode())] * 30))
    decode = yaml.safe_load(found.text)["decode"]
    assert decode["upsert"].get("envelope") == envelope
    assert set(decode["value"]["schema"]) == fields


def test_an_existing_spec_is_not_overwritten(tmp_path: Path) -> None:
    found = draft(sample(*json_records(4, keys=2)))
    file = tmp_path / "events.yml"
    file.write_text("name: events\n")
    with pytest.raises(FileExists, match="The spec"):
        written(found, tmp_path, tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["events.yml"]


def test_a_draft_that_contradicts_another_spec_is_not_written(tmp_path: Path) -> None:
    """The other pipeline writes the table that the draft would write."""
    (tmp_path / "other.yaml").write_text(
        "name: other\ntopic: other\nschedule: '@daily'\ntarget: bronze/zebra\n"
    )
    found = draft(sample(topic="zebra"))
    with pytest.raises(SpecError):
        written(found, tmp_path, tmp_path)
    assert not (tmp_path / "zebra.yaml").exists()


def test_an_invalid_schedule_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as refused:
        written(draft(sample(), schedule="@dayly"), tmp_path, tmp_path)
    assert "did you mean '@daily'" in str(refused.value)


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        ("payments", "payments"),
        ("Shop.Orders-v2", "shop_orders_v2"),
        ("2026-sales", "topic_2026_sales"),
        ("___", "topic"),
        ("x" * 249, "x" * 64),
    ],
)
def test_a_pipeline_gets_a_valid_name_from_any_topic(topic: str, name: str) -> None:
    assert pipeline_name(topic) == name


@pytest.mark.parametrize("topic", ["yes", "123", "1.5", "null", "1e3", "a.b"])
def test_names_that_yaml_reads_as_other_types_stay_text(topic: str) -> None:
    assert yaml.safe_load(draft(sample(topic=topic)).text)["topic"] == topic


@pytest.mark.parametrize("topic", ["yes", "null", "On", "TRUE"])
def test_a_topic_that_yaml_reads_as_another_type_gets_a_valid_spec(
    topic: str, tmp_path: Path
) -> None:
    file = written(draft(sample(topic=topic)), tmp_path / "specs", tmp_path)
    specs = load_specs(file.parent, layout_of(tmp_path), list, no_owner).specs
    assert specs[topic.lower()].topic == topic
