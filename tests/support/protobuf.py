"""Protobuf messages, made by Google's compiler and library."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessages

_MAIN = "main.proto"


def descriptors(source: str, imports: Mapping[str, str] | None = None) -> str:
    """Return the descriptors of a schema and of its imports in JSON.

    Args:
        source: The schema.
        imports: Imported files, by name.
    """
    return json_format.MessageToJson(_compiled(source, tuple((imports or {}).items())))


def message(
    source: str, name: str, values: Any = None, imports: Mapping[str, str] | None = None
) -> Message:
    """Return a message of a schema.

    Args:
        source: The schema.
        name: The message's full name.
        values: Its fields, as in Protobuf's JSON.
        imports: Imported files, by name.
    """
    kind = message_type(source, name, imports)
    return json_format.ParseDict(values or {}, kind(), descriptor_pool=kind.DESCRIPTOR.file.pool)


def message_type(source: str, name: str, imports: Mapping[str, str] | None = None) -> Any:
    """Return the class of a message of a schema, by its full name."""
    return _kinds(source, tuple((imports or {}).items()))[name]


def proto_bytes(
    source: str, name: str, values: Any = None, imports: Mapping[str, str] | None = None
) -> bytes:
    """Return a file's first message with its index, as Confluent's serializers write it."""
    return b"\x00" + message(source, name, values, imports).SerializeToString()


@lru_cache(maxsize=64)
def _kinds(source: str, imports: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    made: dict[str, Any] = GetMessages(_compiled(source, imports).file)
    return made


@lru_cache(maxsize=64)
def _compiled(source: str, imports: tuple[tuple[str, str], ...]) -> FileDescriptorSet:
    with TemporaryDirectory() as folder:
        for name, text in ((_MAIN, source), *imports):
            (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / name).write_text(text)
        result = Path(folder) / "result"
        places = [f"-I{folder}", f"-I{files('grpc_tools') / '_proto'}"]
        options = ["--include_imports", f"-o{result}"]
        subprocess.run(
            [sys.executable, "-m", "grpc_tools.protoc", *places, *options, _MAIN], check=True
        )
        return FileDescriptorSet.FromString(result.read_bytes())
