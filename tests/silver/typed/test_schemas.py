"""Schemas of records: conflicts with columns, replaced schemas, and failures of the registry."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Barrier, Event, Lock
from typing import Any

import pytest

from tests.support.registered_lake import MemoryRegistry, RegisteredLake
from tests.support.registry import framed
from tidemark.silver.typed.errors import (
    RegistryFailure,
    RegistryRefused,
    RegistryUnavailable,
    SchemaConflict,
    SchemaReplaced,
)
from tidemark.spec import schema_limits
from tidemark.spec.decode import RegisteredSchema

pytestmark = pytest.mark.slow

_ONE, _OTHER = {"id": 1}, {"id": 2.0}


@pytest.fixture
def lake(tmp_path: Path) -> RegisteredLake:
    """Two records of schema 1 are decoded; its integers are doubles in schema 9."""
    lake = RegisteredLake(
        root=tmp_path, registry=MemoryRegistry({1: {"id": "integer"}, 9: {"id": "number"}})
    )
    lake.land_objects(1, _ONE, _ONE)
    lake.run()
    return lake


def test_a_schema_that_does_not_fit_stops_only_its_plan(lake: RegisteredLake) -> None:
    """All records of the plan wait for a decision. Later plans are decoded."""
    lake.land_objects(1, _ONE)
    values = [
        framed(number, json.dumps(each).encode()) for number, each in ((1, _ONE), (9, _OTHER))
    ]
    lake.bronze.land_payloads([(None, each) for each in values])
    lake.land_objects(1, _ONE)
    lake.land_objects(1, _ONE, partition=1)
    for _ in range(2):
        with pytest.raises(SchemaConflict) as stopped:
            lake.run()
        assert (stopped.value.schema_id, stopped.value.offset) == (9, 4)
        assert "`tidemark decode events --from-scratch" in stopped.value.rendered("fix")
        assert sorted(lake.rows()) == [(0, 0), (0, 1), (0, 2), (0, 5), (1, 0)]
    lake.decode = replace(lake.decode, refused_schemas=(9,))
    lake.broken = {4}
    lake.run()
    lake.check()
    assert lake.quarantined() == [(0, 4)]


def test_a_schema_beyond_a_limit_stops_no_plan(
    lake: RegisteredLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One exceeds the limit itself, the other one together with the column of the table."""
    monkeypatch.setattr(schema_limits, "MAX_COLUMNS", 2)
    too_wide, too_wide_together = {"id": "integer", "a": "string", "b": "string"}, {"c": "string"}
    lake.registry = MemoryRegistry(
        {1: {"id": "integer"}, 7: {"a": "string"}, 8: too_wide, 9: too_wide_together}
    )
    for schema_id, value in ((8, _ONE), (7, {"a": "x"}), (9, {"c": "x"}), (1, _ONE)):
        lake.land_objects(schema_id, value)
    lake.broken = {2, 4}
    work = lake.decodes.next()
    assert work is not None
    assert (work.schemas, work.oversized) == ({"value": (1, 7)}, {"value": (8, 9)})
    assert lake.run() == [2, 3, 4, 5]
    lake.check()
    assert lake.run() == []


def test_another_schema_under_a_known_id_stops_decodes(lake: RegisteredLake) -> None:
    """After a rebuild of the registry, older records would decode to wrong values."""
    lake.registry = MemoryRegistry({1: {"id": "integer", "price": "number"}})
    lake.land_objects(1, _ONE)
    with pytest.raises(SchemaReplaced) as stopped:
        lake.run()
    assert stopped.value.schema_id == 1
    assert sorted(lake.rows()) == [(0, 0), (0, 1)]


_MANY = range(1, 41)
_DEADLINE_S = 30.0


@dataclass
class _ConcurrentRegistry(MemoryRegistry):
    """Answers once eight requests have arrived, and counts concurrent requests."""

    eight: Barrier = field(default_factory=lambda: Barrier(8))
    lock: Lock = field(default_factory=Lock)
    now: int = 0
    most: int = 0

    def schema(self, schema_id: int) -> RegisteredSchema | None:
        """See `SchemaRegistry.schema`."""
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        self.eight.wait(_DEADLINE_S)
        with self.lock:
            self.now -= 1
        return super().schema(schema_id)


@dataclass
class _FailingRegistry(MemoryRegistry):
    """Fails for some ids, for the lowest of them last."""

    failures: dict[int, type[RegistryFailure]] = field(default_factory=dict)
    lowest_may_fail: Event = field(default_factory=Event)
    requests: list[int] = field(default_factory=list)

    def schema(self, schema_id: int) -> RegisteredSchema | None:
        """See `SchemaRegistry.schema`."""
        self.requests.append(schema_id)
        if schema_id == min(self.failures):
            assert self.lowest_may_fail.wait(_DEADLINE_S)
        if failure := self.failures.get(schema_id):
            self.lowest_may_fail.set()
            raise failure(connection="registry", schema_id=schema_id, reason="HTTP 503")
        return super().schema(schema_id)


def _land_many(lake: RegisteredLake) -> None:
    values = [framed(schema_id, json.dumps(_ONE).encode()) for schema_id in _MANY]
    lake.bronze.land_payloads([(None, each) for each in values])


def test_eight_ids_are_requested_at_the_same_time(tmp_path: Path) -> None:
    """At most eight requests are concurrent, and each id is requested once."""
    registry = _ConcurrentRegistry({each: {"id": "integer"} for each in _MANY})
    lake = RegisteredLake(root=tmp_path, registry=registry)
    _land_many(lake)
    lake.run()
    assert registry.most == 8
    assert len(lake.rows()) == len(_MANY)
    lake.check()


@pytest.mark.parametrize("failure", [RegistryUnavailable, RegistryRefused])
def test_the_failure_of_the_lowest_id_is_raised(
    tmp_path: Path, failure: type[RegistryFailure]
) -> None:
    """It is raised even if a request for a higher id fails earlier.

    The run stores the other answers after `RegistryUnavailable`, and none after `RegistryRefused`.
    """
    other = RegistryRefused if failure is RegistryUnavailable else RegistryUnavailable
    fields: dict[int, dict[str, str]] = {each: {"id": "integer"} for each in _MANY}
    registry = _FailingRegistry({**fields}, failures={2: failure, 5: other})
    lake = RegisteredLake(root=tmp_path, registry=registry)
    _land_many(lake)
    requested = set[int]()
    for _ in range(2):
        registry.requests.clear()
        with pytest.raises(failure) as failed:
            lake.run()
        error: Any = failed.value
        assert error.schema_id == 2
        requested.update(registry.requests)
    assert len(registry.requests) == len(set(registry.requests))
    assert lake.decoded() == []
    kept = set(lake.schemas.store.stored(_MANY))
    answered = requested - registry.failures.keys()
    assert kept == (answered if failure is RegistryUnavailable else set())
    lake.registry = MemoryRegistry({**fields})
    lake.run()
    assert len(lake.rows()) == len(_MANY)


def test_no_request_starts_after_a_failure(tmp_path: Path) -> None:
    """An unavailable registry does not get a request for each of many ids."""
    registry = _FailingRegistry({}, failures=dict.fromkeys(_MANY, RegistryUnavailable))
    registry.lowest_may_fail.set()
    lake = RegisteredLake(root=tmp_path, registry=registry)
    _land_many(lake)
    lake.decodes.next()
    assert 1 <= len(registry.requests) <= 8
    with pytest.raises(RegistryUnavailable):
        lake.run()
