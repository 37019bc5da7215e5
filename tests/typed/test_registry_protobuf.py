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
from tidemark.spec.decode import RegisteredSchema
from tidemark.spec.fields import NoColumn, plain
from tidemark.typed.formats.messages import read
from tidemark.typed.formats.protobuf import column_of
from tidemark.typed.registry_protobuf import compiled

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


def test_a_schema_has_what_it_imports_and_not_what_every_library_brings() -> None:
    """Its own file is the last one."""
    text = compiled(TRADE, {"desk/side.proto": SIDE})
    assert [file["package"] for file in json.loads(text)["file"]] == ["desk", "shop"]
    assert plain(column_of(text)) == {"at": "timestamp", "sides": {"map": {"buy": "boolean"}}}


def test_layout_comments_and_options_for_generators_make_no_other_schema() -> None:
    """A registry that was made anew from the same files says the same."""
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


def test_options_that_decide_how_bytes_are_read_are_kept() -> None:
    """As the compiler itself has them."""
    source = """
      edition = "2023";
      option features.field_presence = IMPLICIT;
      message M {
        int32 plain = 1;
        int32 told = 2 [features.field_presence = EXPLICIT];
        repeated int32 packed = 3 [features.repeated_field_encoding = EXPANDED];
      }
    """
    text = compiled(source, {})
    (made,) = json.loads(text)["file"]
    (expected,) = json.loads(descriptors(source))["file"]
    assert made == {**expected, "name": made["name"]}
    (row,) = read(pa.array([b"\x00\x18\x05"]), text).to_pylist()
    assert row["value"] == {"plain": 0, "told": None, "packed": [5]}


def test_what_registries_know_themselves_need_not_be_referred_to() -> None:
    """Google's files for APIs and Confluent's own: other writers of schemas take them for given."""
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
    assert plain(column_of(text)) == {"price": decimal, "due": whole}
    due = b"\x00\x12\x05\x08\xea\x0f\x10\x02"
    (row,) = read(pa.array([due], pa.binary()), text).to_pylist()
    assert row["value"] == {"price": None, "due": {"year": 2026, "month": 2, "day": 0}}


@pytest.mark.parametrize(
    ("text", "imports", "told"),
    [
        ("message A {", {}, "schema.proto"),
        (TRADE, {}, "desk/side.proto"),
        ('syntax = "proto3"; message A { B b = 1; }', {}, '"B" is not defined'),
        (SIDE, {"../side.proto": SIDE}, "no place of a file"),
        (SIDE, {"/tmp/side.proto": SIDE}, "no place of a file"),
        (SIDE, {"tidemark/side.proto": SIDE}, "no place of a file"),
        (SIDE, {f"{'a' * 256}.proto": SIDE}, "no place of a file"),
        (SIDE, {"a": SIDE, "a/b.proto": SIDE}, "another file below or above it"),
        (SIDE + 'import "caf\xff.proto";', {}, "File not found"),
        ('{"type": "string"}', {}, "schema.proto"),
        ('{"file": [{"messageType": [{"name": "M", "field": [{}]}]}]}', {}, "schema.proto"),
        # The compiler takes it, and the library does not.
        (
            'syntax = "proto3"; package google.protobuf; message Timestamp { int64 seconds = 1; }',
            {},
            "duplicate symbol",
        ),
    ],
)
def test_what_cannot_be_compiled_makes_no_column(
    text: str, imports: Any, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says why, and the next compiler may think better of it."""
    made = compiled(text, imports)
    assert told in caplog.text
    assert not RegisteredSchema(id=1, kind="PROTOBUF", text=made).is_settled
    text = made
    with pytest.raises(ValueError, match="no Protobuf schema that can be compiled"):
        column_of(text)


def test_a_compiler_that_fails_says_nothing_about_the_schema(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or what a busy machine has said once would be kept."""

    def late(*_: Any, **more: Any) -> Any:
        raise subprocess.TimeoutExpired("protoc", more["timeout"])

    def killed(*_: Any, **more: Any) -> Any:
        return subprocess.CompletedProcess("protoc", -9, "", "")

    for failing, problem in ((late, "more than 60 s"), (killed, "ended with -9")):
        monkeypatch.setattr(subprocess, "run", failing)
        with pytest.raises(OSError, match=problem):
            compiled(SIDE, {})


def test_the_compilers_remarks_do_not_hide_what_is_wrong(caplog: pytest.LogCaptureFixture) -> None:
    """It says several lines of each file without a syntax first."""
    imports = {f"a{number}.proto": f"message A{number} {{}}" for number in range(6)}
    lines = "".join(f'import "{name}";' for name in imports)
    compiled(f"{lines} message M {{ optional Nothing a = 1; }}", imports)
    assert '"Nothing" is not defined' in caplog.text
    assert "WARNING:" not in caplog.messages[0]


def test_a_compiler_that_cannot_work_refuses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends with the same number as over a schema that is at fault."""
    (tmp_path / "grpc_tools").mkdir()
    (tmp_path / "grpc_tools" / "__init__.py").write_text("raise ImportError('broken')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(OSError, match="the compiler ended with 1"):
        compiled(SIDE, {})


def test_a_schema_may_be_registered_as_its_descriptor() -> None:
    """As Confluent's client for Python does; some registries give it out as they got it."""
    side, trade = FileDescriptorSet(), FileDescriptorSet()
    json_format.Parse(descriptors(SIDE), side)
    json_format.Parse(descriptors(TRADE, {"desk/side.proto": SIDE}), trade)
    encoded = [b64encode(each.file[-1].SerializeToString()).decode() for each in (side, trade)]
    expected = json.loads(compiled(TRADE, {"desk/side.proto": SIDE}))
    for text, imported in ((encoded[1], encoded[0]), (encoded[1], SIDE), (TRADE, encoded[0])):
        assert json.loads(compiled(text, {"desk/side.proto": imported})) == expected


@pytest.mark.parametrize("style", ["", "option features.enforce_naming_style = STYLE_LEGACY;"])
def test_a_descriptor_of_an_edition_needs_none_of_the_options_of_its_source(style: str) -> None:
    """Compilers leave out whether names may be of any style, and what other files may refer to."""
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


def test_why_a_schema_cannot_be_compiled_is_in_the_message() -> None:
    """With the place in the schema, and no folder of this machine."""
    text = compiled('edition = "2024"; message M { int32 badField = 1; }', {})
    with pytest.raises(NoColumn) as refused:
        column_of(text)
    assert str(refused.value).startswith(
        "it is no Protobuf schema that can be compiled: tidemark/schema.proto:1:37: Field name "
        "badField should be lower_snake_case"
    )


def test_a_few_lines_make_no_million_columns() -> None:
    """Each message has two of the next; they are told of before they are made."""
    text = "".join(f"message M{n} {{ M{n + 1} a = 1; M{n + 1} b = 2; }}" for n in range(40))
    made = compiled(f'syntax = "proto3"; {text} message M40 {{ int32 a = 1; }}', {})
    with pytest.raises(ValueError, match="more than 10,000 columns"):
        column_of(made)
