"""Answers of a registry that no decode can use: each one affects its own schema alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.support.registry import registry_proxy
from tidemark.silver.typed.errors import RegistryRefused
from tidemark.silver.typed.formats.column import column_of
from tidemark.silver.typed.registry import ConfluentRegistry
from tidemark.spec.decode import Format
from tidemark.spec.fields import UnsupportedSchema

_LONG = "1" * 4_301
_MANY_DIGITS = "has a number of more than 4,300 digits"
_OTHER = {"name": "x.Other", "subject": "other", "version": 1}


def _record(kind: str, **more: str) -> str:
    field = "".join(f', "{name}": {text}' for name, text in more.items())
    return f'{{"type": "record", "name": "R", "fields": [{{"name": "a", "type": {kind}{field}}}]}}'


_ANSWERS: Mapping[str, Mapping[str, Any]] = {
    "1": {"schema": _record('"long"')},
    "2": {
        "schemaType": "JSON",
        "schema": f'{{"properties": {{"a": {{"type": "integer", "maximum": {_LONG}}}}}}}',
    },
    "3": {"schema": _record('"long"', default=f"-{_LONG}")},
    "4": {"schema": _record('"x.Other"'), "references": [_OTHER]},
    "5": {"schema": _record('"x.Other"'), "references": [{**_OTHER, "subject": "invalid"}]},
    "6": {
        "schemaType": "PROTOBUF",
        "schema": 'syntax = "proto3"; message R { int32 a = 1; }',
        "references": [{**_OTHER, "name": "a\0.proto"}],
    },
    "7": {"schema": _record('"long"', doc='"\ud800"')},
    "other": {"schema": f'{{"type": "fixed", "name": "x.Other", "size": {_LONG}}}'},
    "invalid": {"schema": '{"type": "record", "name": "x.Other", "fields": [5]}'},
}


@pytest.fixture
def registry() -> Iterator[ConfluentRegistry]:
    """A registry with `_ANSWERS`."""

    def answer(path: str) -> bytes | None:
        # schemas/ids/1, or subjects/other/versions/1
        kind, *place = path.partition("?")[0].strip("/").split("/")
        name = place[1] if kind == "schemas" else place[0]
        by_version = {"subject": name, "version": 1, "id": 99} if kind == "subjects" else {}
        return json.dumps({**_ANSWERS[name], **by_version}).encode()

    with registry_proxy(answer) as proxy:
        yield ConfluentRegistry("registry", {"url": f"http://{proxy.address}", "max.retries": 0})


@pytest.mark.parametrize("number", [2, 3, 4])
def test_a_number_that_python_cannot_parse_makes_its_schema_too_large(
    registry: ConfluentRegistry, number: int
) -> None:
    """Records of such a schema go to the quarantine, and others are decoded."""
    found = registry.schema(number)
    assert found is not None
    assert _MANY_DIGITS in found.excess
    assert not found.is_final
    other = registry.schema(1)
    assert other is not None
    assert not other.excess


@pytest.mark.parametrize(
    ("number", "problem"),
    [(5, "does not define x.Other"), (6, "not a valid path of a file")],
)
def test_an_invalid_reference_makes_its_schema_unusable(
    registry: ConfluentRegistry, number: int, problem: str
) -> None:
    """Plans with records of such a schema wait, and others are decoded."""
    found = registry.schema(number)
    assert found is not None
    kind = Format.PROTOBUF if found.kind == "PROTOBUF" else Format.AVRO
    with pytest.raises(UnsupportedSchema, match=problem):
        column_of(kind, found.text)


def test_a_text_with_an_unpaired_surrogate_can_be_stored(registry: ConfluentRegistry) -> None:
    found = registry.schema(7)
    assert found is not None
    assert json.loads(found.text)["fields"][0]["doc"] == "?"


def test_an_answer_in_another_form_is_refused() -> None:
    with registry_proxy(lambda _: b'{"schema": "no JSON"}') as proxy:
        client = ConfluentRegistry("registry", {"url": f"http://{proxy.address}", "max.retries": 0})
        with pytest.raises(RegistryRefused, match="not a schema registry's"):
            client.schema(1)
