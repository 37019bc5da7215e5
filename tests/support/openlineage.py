"""Events of OpenLineage, read strictly by the specification.

No package of a registry contains the JSON Schemas of the specification. The Python client has
classes that are generated from them, with the version of the schema. An event is valid here if
these classes have all of its fields, with values of their types. Facets of Tidemark must match
their own JSON Schema.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import attr
from jsonschema import Draft202012Validator
from openlineage.client import facet_v2  # noqa: F401  loads the classes of all facets
from openlineage.client.generated import base

from tests.support import PROJECT

SPECIFICATION = "https://openlineage.io/spec/"
PAGE = PROJECT / "docs" / "reference" / "lineage.md"
FACETS = PROJECT / "include" / "tidemark" / "airflow" / "lineage" / "facets-1-0-0.json"
OWN = "x-tidemark://openlineage/1-0-0/facets.json"


def transport(folder: Path) -> str:
    """Return the setting of Airflow that writes each event to a new file of a folder."""
    return json.dumps({"type": "file", "log_file_path": str(folder / "event")})


def settings(folder: Path) -> dict[str, str]:
    """Return the settings of an Airflow that writes events to a folder, as on the page.

    Only tasks with datasets have events.
    """
    (policy,) = re.findall(r"EMISSION_POLICY='(.*?)'", PAGE.read_text(), flags=re.DOTALL)
    return {
        "AIRFLOW__OPENLINEAGE__TRANSPORT": transport(folder),
        "AIRFLOW__OPENLINEAGE__EMISSION_POLICY": policy,
        # A busy machine needs more than the ten seconds of the provider.
        "AIRFLOW__OPENLINEAGE__EXECUTION_TIMEOUT": "60",
    }


def events(folder: Path) -> list[dict[str, Any]]:
    """Return the events of a folder, oldest first; raises ValueError if one is invalid."""
    texts = [file.read_text() for file in sorted(folder.glob("event-*.json"))]
    # Another process may not have written its event yet.
    found = [json.loads(text) for text in texts if text]
    for event in found:
        check_event(event)
    return found


def ended_tasks(folder: Path, run_id: str) -> dict[str, list[dict[str, Any]]]:
    """Return the last events of the tasks of a DAG run, oldest first, by DAG and task."""
    by_job: dict[str, list[dict[str, Any]]] = {}
    for event in events(folder):
        run = event["run"]["facets"].get("airflow", {}).get("dagRun", {})
        if run.get("run_id") == run_id and event["eventType"] in ("COMPLETE", "FAIL"):
            by_job.setdefault(event["job"]["name"], []).append(event)
    return by_job


def check_event(event: Mapping[str, Any]) -> None:
    """Check that an event is valid; raises ValueError with its first fault."""
    _parsed(base.RunEvent, event, "event")


@cache
def _classes() -> Mapping[str, type[Any]]:
    """Return the generated classes of facets, by the URL of their schema."""
    return {
        each._get_schema(): each
        for name, module in sys.modules.items()
        if name.startswith("openlineage.client.generated.")
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, base.BaseFacet)
    }


def _parsed(kind: Any, value: Any, path: str) -> Any:
    """Return a value as its class or type."""
    if kind is Any:
        return value
    if isinstance(kind, type) and issubclass(kind, base.BaseFacet):
        return _facet(kind, value, path)
    if attr.has(kind):
        return _object(kind, value, path)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _one_of([each for each in inner if each is not NoneType], value, path)
    if origin is Literal:
        if value not in inner:
            raise ValueError(f"{path}: {value!r} is none of {inner}")
        return value
    if origin is list:
        _expect(list, value, path)
        return [_parsed(inner[0], each, f"{path}[{n}]") for n, each in enumerate(value)]
    if origin is dict:
        _expect(dict, value, path)
        return {name: _parsed(inner[1], each, f"{path}.{name}") for name, each in value.items()}
    _expect(kind, value, path)
    return value


def _one_of(kinds: list[Any], value: Any, path: str) -> Any:
    faults = []
    for kind in kinds:
        try:
            return _parsed(kind, value, path)
        except ValueError as fault:
            faults.append(str(fault))
    raise ValueError("; ".join(faults))


def _expect(kind: type[Any], value: Any, path: str) -> None:
    # JSON has one type for true and another one for 1.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{path}: {value!r} is no {kind.__name__}")


def _facet(declared: type[Any], value: Any, path: str) -> Any:
    _expect(dict, value, path)
    missing = {"_producer", "_schemaURL"} - value.keys()
    if missing:
        raise ValueError(f"{path}: lacks {sorted(missing)}")
    url = value["_schemaURL"]
    if url.startswith(OWN):
        _check_facet(url.partition("#/$defs/")[2], declared, value, path)
        return None
    if not url.startswith(SPECIFICATION):
        # A facet of Airflow's provider.
        return None
    kind = _classes().get(url)
    if kind is declared:
        # A custom facet with the schema that all facets share, which allows any fields.
        return None
    if kind is None or not issubclass(kind, declared):
        raise ValueError(f"{path}: {url} is no {declared.__name__}")
    return _object(kind, value, path)


def _check_facet(name: str, declared: type[Any], value: Any, path: str) -> None:
    if not name.startswith("Tidemark") or not name.endswith(declared.__name__):
        raise ValueError(f"{path}: {name} is no {declared.__name__}")
    check_own(name, value, path)


def check_own(name: str, value: Any, path: str = "value") -> None:
    """Check a value by a definition of Tidemark's JSON Schema; raises ValueError."""
    schema = json.loads(FACETS.read_text())
    if name not in schema["$defs"]:
        raise ValueError(f"{path}: no schema of {name}")
    validator = Draft202012Validator({**schema, "$ref": f"#/$defs/{name}"})
    for fault in validator.iter_errors(value):
        raise ValueError(f"{path}{fault.json_path[1:]}: {fault.message}")


def _object(kind: type[Any], value: Any, path: str) -> Any:
    _expect(dict, value, path)
    hints, given = get_type_hints(kind), {}
    fields = {field.name: field for field in attr.fields(kind)}
    if unknown := value.keys() - fields.keys():
        raise ValueError(f"{path}: {kind.__name__} has no {sorted(unknown)}")
    for name, field in fields.items():
        if name in value:
            found = _parsed(hints[name], value[name], f"{path}.{name}")
            if field.init:
                given[field.alias] = found
        elif field.default is attr.NOTHING:
            raise ValueError(f"{path}: lacks {name}")
    # The validators of the class run here.
    return kind(**given)


def datasets(event: Mapping[str, Any], side: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the datasets of one side of an event, `inputs` or `outputs`, by their names."""
    found = list(_named(event[side]))
    assert len(dict(found)) == len(found)
    return dict(found)


def _named(found: list[dict[str, Any]]) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
    for each in found:
        yield (each["namespace"], each["name"]), each
