"""Protobuf schemas as a registry has them, in Protobuf's own language, and their descriptors."""

from __future__ import annotations

import json
import logging
import re
import signal
import subprocess
import sys
from base64 import b64decode
from collections.abc import Iterable, Mapping
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from confluent_kafka.schema_registry.confluent import meta_pb2
from confluent_kafka.schema_registry.confluent.type import decimal_pb2, variant_pb2
from google.protobuf import descriptor_pb2, json_format
from google.protobuf.message import DecodeError

from tidemark.typed.formats.descriptors import pool_of
from tidemark.typed.formats.protobuf import NOT_COMPILED, WELL_KNOWN

log = logging.getLogger(__name__)

_OWN = "tidemark"
_MAIN = f"{_OWN}/schema.proto"
_CONFLUENTS = (descriptor_pb2, meta_pb2, decimal_pb2, variant_pb2)
"""What schemas import from Confluent without a reference, and what that imports."""
_TIMEOUT_S = 60
_REFUSED = 1
"""What the compiler ends with if a schema is at fault; but also if the disk is full."""
_OF_A_SCHEMA = re.compile(r"(?m)^[^\n]*(:\d+:\d+:|\.proto: |: File not found)")
"""What it says of a schema, as it does of nothing else."""
_REMARKS = re.compile(r"(?m)^(WARNING:|[WI]\d{4} |[^\n]*: warning:)[^\n]*\n?")
_LONGEST_NAME = 255
"""Bytes of a part of a path that file systems take."""
_TOLD = {"allowAlias", "features", "mapEntry", "packed"}
"""Options that decide how bytes are read."""
_SHOWN = 300
"""Most characters of the compiler's output at the beginning of a schema's text."""
_UNUSED = {"extension", "extensionRange", "service"}
"""What makes no fields: data of extensions is unknown, as nothing in a column would have it."""


def compiled(text: str, imports: Mapping[str, str]) -> str:
    """The descriptors of a schema, in JSON, as `core.protobuf` takes them.

    Two texts that differ in layout, comments or options for code generators have the same.

    Args:
        text: The schema, in Protobuf's language; or, as some clients register it, its descriptor
            in base64, also of an import.
        imports: By the names that it imports them by, the schemas that it refers to, and those
            that they refer to. What registries know themselves need not be among them: Google's
            files and Confluent's own.

    Returns:
        If the schema does not compile, not JSON but `NOT_COMPILED`, the reason and the text.

    Raises:
        OSError: The compiler could not do its work.
    """
    with TemporaryDirectory() as folder:
        sources, result = Path(folder) / "sources", Path(folder) / "result"
        sources.mkdir()
        described = []
        for name, each in {**imports, _MAIN: text}.items():
            if name != _MAIN and not _is_place(name):
                return _refused(text, f"it imports {name!r}, which is no place of a file")
            if file := _descriptor(each):
                file.name = name
                described.append(file)
                continue
            try:
                (sources / name).parent.mkdir(parents=True, exist_ok=True)
                (sources / name).write_text(each, encoding="utf-8")
            except (FileExistsError, NotADirectoryError, IsADirectoryError):
                return _refused(text, f"it imports {name!r}, and another file below or above it")
        problem = _compile(sources, described, Path(folder) / "known", result)
        if problem is not None:
            return _refused(text, problem)
        found = descriptor_pb2.FileDescriptorSet.FromString(result.read_bytes())
    told = json_format.MessageToDict(found)
    kept = [_bare(file) for file in told["file"] if file["name"] not in WELL_KNOWN]
    made = json.dumps({"file": kept})
    try:
        pool_of(made)
    except (TypeError, ValueError, json_format.Error) as unusable:
        return _refused(text, str(unusable))
    return made


def _refused(text: str, why: str) -> str:
    log.warning("a schema cannot be compiled: %s", why[:500])
    return f"{NOT_COMPILED}{' '.join(why.split())[:_SHOWN]}\n{text}"


def _is_place(name: str) -> bool:
    """Whether an import is a file below the folder of all, and not where the schema itself is."""
    path = PurePosixPath(name)
    is_below = bool(path.name) and not path.is_absolute() and ".." not in path.parts
    fits = all(len(part.encode()) <= _LONGEST_NAME for part in path.parts)
    return is_below and fits and path.parts[0] != _OWN


def _descriptor(text: str) -> descriptor_pb2.FileDescriptorProto | None:
    """A schema that is registered as its descriptor, in base64; None of one in the language."""
    try:
        file = descriptor_pb2.FileDescriptorProto.FromString(b64decode(text, validate=True))
    except (ValueError, DecodeError):
        return None
    if file.edition >= descriptor_pb2.EDITION_2024:
        # A descriptor does not have these of its source, which went by them when it was compiled.
        features = file.options.features
        features.enforce_naming_style = descriptor_pb2.FeatureSet.STYLE_LEGACY
        features.default_symbol_visibility = descriptor_pb2.FeatureSet.VisibilityFeature.EXPORT_ALL
    return file if file.message_type or file.enum_type or file.dependency else None


def _compile(
    sources: Path,
    described: Iterable[descriptor_pb2.FileDescriptorProto],
    known: Path,
    result: Path,
) -> str | None:
    """Write the descriptors of a schema and of all that it imports; what is wrong with it.

    In a process of its own: the compiler speaks to standard error, and what it does with hostile
    text it does not do here.
    """
    brought = descriptor_pb2.FileDescriptorSet()
    for module in _CONFLUENTS:
        module.DESCRIPTOR.CopyToProto(brought.file.add())
    brought.file.extend(described)
    known.write_bytes(brought.SerializeToString())
    folders = (sources, files("grpc_tools") / "_proto", _google())
    options = [f"--descriptor_set_in={known}", "--include_imports", f"-o{result}"]
    command = [sys.executable, "-m", "grpc_tools.protoc", *(f"-I{each}" for each in folders)]
    command += [*options, _MAIN]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            timeout=_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"the compiler took more than {_TIMEOUT_S} s") from None
    told = _REMARKS.sub("", done.stderr).strip()
    if done.returncode == _REFUSED and _OF_A_SCHEMA.search(told):
        return told.replace(f"{sources}/", "")
    if done.returncode == -signal.SIGSEGV:
        return "the compiler broke down over it"
    if done.returncode:
        log.error("the compiler of Protobuf schemas ended with %d: %s", done.returncode, told)
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
