"""Compiles the Protobuf schemas of a registry to descriptors."""

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

from tidemark.silver.typed.formats.protobuf import NOT_COMPILED, WELL_KNOWN, files_of, pool_of

log = logging.getLogger(__name__)

_MAIN_FOLDER = "tidemark"
_MAIN = f"{_MAIN_FOLDER}/schema.proto"
_CONFLUENT_FILES = (descriptor_pb2, meta_pb2, decimal_pb2, variant_pb2)
"""Files that schemas import from Confluent without a reference, and the files that those import."""
_TIMEOUT_S = 60
_INVALID_SCHEMA = 1
"""Exit code of the compiler for an invalid schema, but also for a full disk."""
_SCHEMA_ERROR = re.compile(r"(?m)^[^\n]*(:\d+:\d+:|\.proto: |: File not found)")
"""A line of the compiler's output about a schema; other errors have none."""
_REMARKS = re.compile(r"(?m)^(WARNING:|[WI]\d{4} |[^\n]*: warning:)[^\n]*\n?")
_MAX_NAME_BYTES = 255
"""Maximum bytes of a path segment in file systems."""
_READING_OPTIONS = {"allowAlias", "features", "mapEntry", "packed"}
"""Options that affect how bytes are read."""
_MAX_REASON_CHARS = 300
"""Maximum characters of the compiler's output at the beginning of a schema's text."""
_UNUSED = {"extension", "extensionRange", "service"}
"""Definitions without columns. Data of extensions counts as unknown data."""


def compiled(text: str, imports: Mapping[str, str]) -> str:
    """Return the descriptors of a schema in JSON, as `formats.protobuf` reads them.

    Texts that differ only in layout, comments or options for code generators have the same
    descriptors.

    Args:
        text: The schema in Protobuf's language; or its descriptor in base64, as some clients
            register it. The same holds for imports.
        imports: The texts of all directly and indirectly imported schemas, by the names in the
            import statements. Google's and Confluent's own files may be left out.

    Returns:
        If the schema does not compile, not JSON but `NOT_COMPILED`, the reason and the text.

    Raises:
        OSError: The compiler failed for a reason other than the schema.
    """
    with TemporaryDirectory() as folder:
        sources, result = Path(folder) / "sources", Path(folder) / "result"
        sources.mkdir()
        described = []
        for name, each in {**imports, _MAIN: text}.items():
            if name != _MAIN and not _is_valid_path(name):
                return _uncompiled_text(
                    text, f"it imports {name!r}, which is not a valid path of a file"
                )
            if file := _descriptor(each):
                file.name = name
                described.append(file)
                continue
            try:
                (sources / name).parent.mkdir(parents=True, exist_ok=True)
                (sources / name).write_text(each, encoding="utf-8")
            except (FileExistsError, NotADirectoryError, IsADirectoryError):
                return _uncompiled_text(
                    text, f"it imports {name!r}, whose path is also a folder of another import"
                )
        problem = _compile(sources, described, Path(folder) / "known", result)
        if problem is not None:
            return _uncompiled_text(text, problem)
        found = descriptor_pb2.FileDescriptorSet.FromString(result.read_bytes())
    descriptors = json_format.MessageToDict(found)
    kept = [_without_unused(file) for file in descriptors["file"] if file["name"] not in WELL_KNOWN]
    made = json.dumps({"file": kept})
    try:
        pool_of(files_of(made))
    except (TypeError, ValueError, json_format.Error) as unusable:
        return _uncompiled_text(text, str(unusable))
    return made


def _uncompiled_text(text: str, why: str) -> str:
    log.warning("schema does not compile message=%s", why[:500])
    return f"{NOT_COMPILED}{' '.join(why.split())[:_MAX_REASON_CHARS]}\n{text}"


def _is_valid_path(name: str) -> bool:
    """Return whether an import is a relative path, apart from the folder of the schema itself."""
    path = PurePosixPath(name)
    is_below = (
        "\0" not in name and bool(path.name) and not path.is_absolute() and ".." not in path.parts
    )
    fits = all(len(part.encode()) <= _MAX_NAME_BYTES for part in path.parts)
    return is_below and fits and path.parts[0] != _MAIN_FOLDER


def _descriptor(text: str) -> descriptor_pb2.FileDescriptorProto | None:
    """Return the descriptor of a schema registered in base64; None for Protobuf's language."""
    try:
        file = descriptor_pb2.FileDescriptorProto.FromString(b64decode(text, validate=True))
    except (ValueError, DecodeError):
        return None
    if file.edition >= descriptor_pb2.EDITION_2024:
        # A descriptor lacks these features; its source was compiled with them.
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
    """Compile a schema and its imports into a file of descriptors.

    The compiler runs in a separate process: it writes to standard error, and hostile text may crash
    it.

    Returns:
        The compiler's error about the schema; None if it compiled.
    """
    provided = descriptor_pb2.FileDescriptorSet()
    for module in _CONFLUENT_FILES:
        module.DESCRIPTOR.CopyToProto(provided.file.add())
    provided.file.extend(described)
    known.write_bytes(provided.SerializeToString())
    folders = (sources, files("grpc_tools") / "_proto", _google_folder())
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
    output = _REMARKS.sub("", done.stderr).strip()
    if done.returncode == _INVALID_SCHEMA and _SCHEMA_ERROR.search(output):
        return output.replace(f"{sources}/", "")
    if done.returncode == -signal.SIGSEGV:
        return "the compiler crashed on the schema"
    if done.returncode:
        log.error("Protobuf compiler failed exit_code=%d message=%s", done.returncode, output)
        raise OSError(f"the Protobuf compiler failed with exit code {done.returncode}")
    return None


def _google_folder() -> Path:
    """Return the folder with google/type and google/api, which registries also provide."""
    spec = find_spec("google.type.money_pb2")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("googleapis-common-protos")
    return Path(spec.origin).parents[2]


def _without_unused(descriptor: Any) -> Any:
    """Return a descriptor without the parts that do not affect bytes or fields."""
    if isinstance(descriptor, list):
        return [_without_unused(each) for each in descriptor]
    if not isinstance(descriptor, dict):
        return descriptor
    kept = {name: _without_unused(each) for name, each in descriptor.items() if name not in _UNUSED}
    if options := kept.pop("options", None):
        kept["options"] = {name: each for name, each in options.items() if name in _READING_OPTIONS}
    return {name: each for name, each in kept.items() if each != {}}
