"""Protobuf schemas to descriptors."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pyarrow as pa
import pytest

from tests.support.protobuf import descriptors
from tidemark.adapters.registry.protobuf import compiled
from tidemark.adapters.spark.messages import read
from tidemark.core.decoding import RegisteredSchema
from tidemark.core.fields import plain
from tidemark.core.protobuf import column_of

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
        ('{"type": "string"}', {}, "schema.proto"),
    ],
)
def test_what_cannot_be_compiled_stays_as_it_is(
    text: str, imports: Any, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says why, and no column can be made of it."""
    assert compiled(text, imports) == text
    assert told in caplog.text
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
