"""What records may be written with: a schema that does not fit, and one that is not what it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.registered_lake import MemoryRegistry, RegisteredLake
from tidemark.errors import SchemaConflict, SchemaReplaced

_ONE, _OTHER = {"id": 1}, {"id": 2.0}


@pytest.fixture
def lake(tmp_path: Path) -> RegisteredLake:
    """Two records of schema 1 are decoded; schema 9 has doubles where it has whole numbers."""
    lake = RegisteredLake(
        root=tmp_path, registry=MemoryRegistry({1: {"id": "integer"}, 9: {"id": "number"}})
    )
    lake.land_objects(1, _ONE, _ONE)
    lake.run()
    return lake


def test_a_schema_that_does_not_fit_stops_its_partition_alone(lake: RegisteredLake) -> None:
    """What comes before it is decoded; nothing of it, nor after it, until somebody decides."""
    lake.land_objects(1, _ONE)
    lake.land_objects(9, _OTHER)
    lake.land_objects(1, _ONE)
    lake.land_objects(1, _ONE, partition=1)
    for _ in range(2):
        with pytest.raises(SchemaConflict) as stopped:
            lake.run()
        assert (stopped.value.schema_id, stopped.value.offset) == (9, 3)
        assert sorted(lake.rows()) == [(0, 0), (0, 1), (0, 2), (1, 0)]
    lake.decode = replace(lake.decode, refused_schemas=(9,))
    lake.broken = {3}
    lake.run()
    lake.check()
    assert lake.quarantined() == [(0, 3)]


def test_an_id_that_is_of_another_schema_now_stops_all(lake: RegisteredLake) -> None:
    """A registry that was made anew: records of before would decode to nonsense."""
    lake.registry = MemoryRegistry({1: {"id": "integer", "price": "number"}})
    lake.land_objects(1, _ONE)
    with pytest.raises(SchemaReplaced) as stopped:
        lake.run()
    assert stopped.value.schema_id == 1
    assert sorted(lake.rows()) == [(0, 0), (0, 1)]
