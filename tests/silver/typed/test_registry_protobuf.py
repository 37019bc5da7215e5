"""Protobuf schemas to descriptors."""

from __future__ import annotations

import json
import subprocess
from base64 import b64encode
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import json_format
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from tests.support.protobuf import descriptors
from tidemark.silver.typed.formats.protobuf_reader import column_of, read
from tidemark.silver.typed.registry_protobuf import compiled
from tidemark.spec.decode import RegisteredSchema
from tidemark.spec.fields import UnsupportedSchema, plain_type

SIDE = 'syntax = "proto3"; package desk; message Side { bool buy = 1; }'
TRADE = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "desk/side.proto";
message Trade {
  google.protobuf.Timestamp at = 1;
  map<string, desk.Side> sides = 2;
}
"""


def test_compiled_schema_has_its_imports_without_well_known_files() -> None:
    """Its own file is the last one."""
    text = compiled(TRADE, {"desk/side.proto": SIDE})
    assert [file["package"] for file in json.loads(text)["file"]] == ["desk", "shop"]
    assert plain_type(column_of(text)) == {"at": "timestamp", "sides": {"map": {"buy": "boolean"}}}


def test_layout_comments_and_generator_options_do_not_change_the_compiled_schema() -> None:
    """A registry rebuilt from the same files returns the same schema."""
    other = """
      // A trade.
      syntax="proto3"; package shop; import "desk/side.proto"; option java_package = "com.shop";
      import "google/protobuf/descriptor.proto";
      extend google.protobuf.FieldOptions { string unit = 50001; }
      service Desk { rpc Get(Trade) returns (Trade); }
      message Trade { int64 number = 1 [(unit) = "pieces"];
        desk.Side side = 2 [deprecated = true]; }
    """
    same = """
      syntax = "proto3";
      package shop;
      import "desk/side.proto";
      import "google/protobuf/descriptor.proto";
      message Trade {
        int64 number = 1;
        desk.Side side = 2;
      }
    """
    changed = same.replace("int64", "int32")
    imports = {"desk/side.proto": SIDE}
    one, two, three = (
        RegisteredSchema(id=1, kind="PROTOBUF", text=compiled(each, imports))
        for each in (other, same, changed)
    )
    assert one.is_same(two)
    assert not one.is_same(three)
    assert not one.is_same(
        RegisteredSchema(
            id=1,
            kind="PROTOBUF",
            text=compiled(same, {"desk/side.proto": SIDE.replace("bool", "string")}),
        )
    )


def test_options_that_affect_reading_are_kept() -> None:
    """The compiler's form of the options is kept."""
    source = """
      edition = "2023";
      option features.field_presence = IMPLICIT;
      message M {
        int32 plain = 1;
        int32 present = 2 [features.field_presence = EXPLICIT];
        repeated int32 packed = 3 [features.repeated_field_encoding = EXPANDED];
      }
    """
    text = compiled(source, {})
    (made,) = json.loads(text)["file"]
    (expected,) = json.loads(descriptors(source))["file"]
    assert made == {**expected, "name": made["name"]}
    (row,) = read(pa.array([b"\x00\x18\x05"]), text).to_pylist()
    assert row["value"] == {"plain": 0, "present": None, "packed": [5]}


def test_google_and_confluent_files_need_no_reference() -> None:
    """Schemas of producers rely on these files."""
    text = compiled(
        """
        syntax = "proto3";
        import "confluent/meta.proto";
        import "confluent/type/decimal.proto";
        import "google/api/annotations.proto";
        import "google/type/date.proto";
        message Trade {
          confluent.type.Decimal price = 1 [(confluent.field_meta) = {doc: "in euros"}];
          google.type.Date due = 2;
        }
        """,
        {},
    )
    whole = {name: "integer" for name in ("year", "month", "day")}
    decimal = {"value": "binary", "precision": "long", "scale": "integer"}
    assert plain_type(column_of(text)) == {"price": decimal, "due": whole}
    due = b"\x00\x12\x05\x08\xea\x0f\x10\x02"
    (row,) = read(pa.array([due], pa.binary()), text).to_pylist()
    assert row["value"] == {"price": None, "due": {"year": 2026, "month": 2, "day": 0}}


@pytest.mark.parametrize(
    ("text", "imports", "reason"),
    [
        ("message A {", {}, "schema.proto"),
        (TRADE, {}, "desk/side.proto"),
        ('syntax = "proto3"; message A { B b = 1; }', {}, '"B" is not defined'),
        (SIDE, {"../side.proto": SIDE}, "not a valid path"),
        (SIDE, {"/tmp/side.proto": SIDE}, "not a valid path"),
        (SIDE, {"tidemark/side.proto": SIDE}, "not a valid path"),
        (SIDE, {f"{'a' * 256}.proto": SIDE}, "not a valid path"),
        (SIDE, {"a": SIDE, "a/b.proto": SIDE}, "whose path is also a folder"),
        (SIDE + 'import "caf\xff.proto";', {}, "File not found"),
        ('{"type": "string"}', {}, "schema.proto"),
        ('{"file": [{"messageType": [{"name": "M", "field": [{}]}]}]}', {}, "schema.proto"),
        # The compiler accepts the schema, and the library does not.
        (
            'syntax = "proto3"; package google.protobuf; message Timestamp { int64 seconds = 1; }',
            {},
            "duplicate symbol",
        ),
    ],
)
def test_an_invalid_schema_has_no_column_and_is_not_final(
    text: str, imports: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has the reason; a later compiler may accept the schema."""
    made = compiled(text, imports)
    # PySpark changes the format of `caplog.text`.
    assert any(reason in message for message in caplog.messages)
    assert not RegisteredSchema(id=1, kind="PROTOBUF", text=made).is_final
    with pytest.raises(ValueError, match="Protobuf schema does not compile"):
        column_of(made)


def test_a_compiler_failure_is_not_stored_as_an_invalid_schema(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A busy machine would otherwise reject the schema permanently."""

    def late(*_: Any, **more: Any) -> Any:
        raise subprocess.TimeoutExpired("protoc", more["timeout"])

    def killed(*_: Any, **more: Any) -> Any:
        return subprocess.CompletedProcess("protoc", -9, "", "")

    for failing, problem in ((late, "more than 60 s"), (killed, "exit code -9")):
        monkeypatch.setattr(subprocess, "run", failing)
        with pytest.raises(OSError, match=problem):
            compiled(SIDE, {})


def test_compiler_warnings_do_not_hide_the_error(caplog: pytest.LogCaptureFixture) -> None:
    """The compiler warns about each file without a syntax first."""
    imports = {f"a{number}.proto": f"message A{number} {{}}" for number in range(6)}
    lines = "".join(f'import "{name}";' for name in imports)
    compiled(f"{lines} message M {{ optional Nothing a = 1; }}", imports)
    assert any('"Nothing" is not defined' in message for message in caplog.messages)
    assert "WARNING:" not in caplog.messages[0]


def test_a_compiler_that_cannot_write_rejects_no_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its exit code is the one for an invalid schema."""
    (tmp_path / "grpc_tools").mkdir()
    (tmp_path / "grpc_tools" / "__init__.py").write_text("raise ImportError('broken')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(OSError, match="exit code 1"):
        compiled(SIDE, {})


def test_a_schema_may_be_registered_as_its_descriptor() -> None:
    """Confluent's Python client does this, and some registries return it unchanged."""
    side, trade = FileDescriptorSet(), FileDescriptorSet()
    json_format.Parse(descriptors(SIDE), side)
    json_format.Parse(descriptors(TRADE, {"desk/side.proto": SIDE}), trade)
    encoded = [b64encode(each.file[-1].SerializeToString()).decode() for each in (side, trade)]
    expected = json.loads(compiled(TRADE, {"desk/side.proto": SIDE}))
    for text, imported in ((encoded[1], encoded[0]), (encoded[1], SIDE), (TRADE, encoded[0])):
        assert json.loads(compiled(text, {"desk/side.proto": imported})) == expected


@pytest.mark.parametrize("style", ["", "option features.enforce_naming_style = STYLE_LEGACY;"])
def test_a_descriptor_of_an_edition_compiles_without_the_options_of_its_source(style: str) -> None:
    """Descriptors lack the naming style and the visibility of their source."""
    visible = "option features.default_symbol_visibility = EXPORT_ALL;" if style else ""
    name = "badName" if style else "good_name"
    side = f"""
      edition = "2024"; package desk; {style} {visible}
      message Side {{ Inner {name} = 1; message Inner {{ bool buy = 1; }} }}
    """
    inner = "bool buy = 2;" if not style else "desk.Side.Inner inner = 2;"
    trade = f"""
      edition = "2024"; {style} import "desk/side.proto";
      message Trade {{ desk.Side {name} = 1; {inner} }}
    """
    expected = column_of(compiled(trade, {"desk/side.proto": side}))
    both = FileDescriptorSet()
    json_format.Parse(descriptors(trade, {"desk/side.proto": side}), both)
    encoded = [b64encode(each.SerializeToString()).decode() for each in both.file]
    for text, imported in ((encoded[1], encoded[0]), (encoded[1], side), (trade, encoded[0])):
        assert column_of(compiled(text, {"desk/side.proto": imported})) == expected


def test_the_reason_of_a_failed_compilation_is_in_the_error() -> None:
    """It contains the line in the schema, and no folder of this machine."""
    text = compiled('edition = "2024"; message M { int32 badField = 1; }', {})
    with pytest.raises(UnsupportedSchema) as refused:
        column_of(text)
    assert str(refused.value).startswith(
        "the Protobuf schema does not compile: tidemark/schema.proto:1:37: Field name "
        "badField should be lower_snake_case"
    )


def test_a_schema_with_too_many_columns_is_rejected_before_they_are_built() -> None:
    """Each message has two fields of the next message."""
    text = "".join(f"message M{n} {{ M{n + 1} a = 1; M{n + 1} b = 2; }}" for n in range(40))
    made = compiled(f'syntax = "proto3"; {text} message M40 {{ int32 a = 1; }}', {})
    with pytest.raises(ValueError, match="more than 2,000 columns"):
        column_of(made)
