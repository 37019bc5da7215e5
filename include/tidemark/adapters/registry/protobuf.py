"""Protobuf schemas as a registry has them, in Protobuf's own language, and their descriptors."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Mapping
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from confluent_kafka.schema_registry.confluent import meta_pb2
from confluent_kafka.schema_registry.confluent.type import decimal_pb2, variant_pb2
from google.protobuf import descriptor_pb2, json_format

from tidemark.core.protobuf import WELL_KNOWN

log = logging.getLogger(__name__)

_MAIN = "tidemark/schema.proto"
_CONFLUENTS = (descriptor_pb2, meta_pb2, decimal_pb2, variant_pb2)
"""What schemas import from Confluent without a reference, and what that imports."""
_TIMEOUT_S = 60
_REFUSED = 1
"""What the compiler ends with if a schema is at fault."""
_TOLD = {"allowAlias", "features", "mapEntry", "packed"}
"""Options that decide how bytes are read."""
_UNUSED = {"extension", "extensionRange", "service"}
"""What makes no fields: data of extensions is unknown, as nothing in a column would have it."""


def compiled(text: str, imports: Mapping[str, str]) -> str:
    """The descriptors of a schema, in JSON, as `core.protobuf` takes them.

    Two texts that differ in layout, comments or options for code generators have the same.

    Args:
        text: The schema.
        imports: By the names that it imports them by, the schemas that it refers to, and those
            that they refer to. What registries know themselves need not be among them: Google's
            files and Confluent's own.

    Returns:
        The schema as it is if it cannot be compiled; why is logged.

    Raises:
        OSError: The compiler could not do its work.
    """
    with TemporaryDirectory() as folder:
        sources, result = Path(folder) / "sources", Path(folder) / "result"
        for name, each in {**imports, _MAIN: text}.items():
            if not _is_within(name):
                log.warning("a schema is imported as %r, which is no place of a file", name)
                return text
            (sources / name).parent.mkdir(parents=True, exist_ok=True)
            (sources / name).write_text(each, encoding="utf-8")
        problem = _compile(sources, Path(folder) / "known", result)
        if problem is not None:
            log.warning("a schema cannot be compiled: %s", problem)
            return text
        found = descriptor_pb2.FileDescriptorSet.FromString(result.read_bytes())
    told = json_format.MessageToDict(found)
    kept = [_bare(file) for file in told["file"] if file["name"] not in WELL_KNOWN]
    return json.dumps({"file": kept})


def _is_within(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(path.name) and not path.is_absolute() and ".." not in path.parts


def _compile(sources: Path, known: Path, result: Path) -> str | None:
    """Write the descriptors of a schema and of all that it imports; what is wrong with it.

    In a process of its own: the compiler speaks to standard error, and what it does with hostile
    text it does not do here.
    """
    brought = descriptor_pb2.FileDescriptorSet()
    for module in _CONFLUENTS:
        module.DESCRIPTOR.CopyToProto(brought.file.add())
    known.write_bytes(brought.SerializeToString())
    folders = (sources, files("grpc_tools") / "_proto", _google())
    options = [f"--descriptor_set_in={known}", "--include_imports", f"-o{result}"]
    command = [sys.executable, "-m", "grpc_tools.protoc", *(f"-I{each}" for each in folders)]
    command += [*options, _MAIN]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"the compiler took more than {_TIMEOUT_S} s") from None
    if done.returncode == _REFUSED:
        return done.stderr.strip()[:500]
    if done.returncode:
        raise OSError(f"the compiler ended with {done.returncode}")
    return None


def _google() -> Path:
    """Where google/type and google/api are, which registries know as well."""
    spec = find_spec("google.type.money_pb2")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("googleapis-common-protos")
    return Path(spec.origin).parents[2]


def _bare(told: Any) -> Any:
    """A descriptor without what says nothing about bytes and fields."""
    if isinstance(told, list):
        return [_bare(each) for each in told]
    if not isinstance(told, dict):
        return told
    kept = {name: _bare(each) for name, each in told.items() if name not in _UNUSED}
    if options := kept.pop("options", None):
        kept["options"] = {name: each for name, each in options.items() if name in _TOLD}
    return {name: each for name, each in kept.items() if each != {}}
