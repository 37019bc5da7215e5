"""Every payload has a text that is safe to print and leaves out nothing."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.hostile import PAYLOADS
from tidemark.core.payload_text import MAX_SHOWN_BYTES, Encoding, PayloadText

_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def check_safe(shown: PayloadText, payload: bytes) -> None:
    """Check that a text has only visible characters, and the size of the payload."""
    categories = {unicodedata.category(each) for each in shown.text if each not in "\n\t"}
    assert not categories & {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"}
    assert shown.size == len(payload)
    assert shown.truncated == (len(payload) > MAX_SHOWN_BYTES)


@settings(max_examples=50, deadline=None)
@given(st.binary() | st.text().map(str.encode) | _JSON.map(lambda each: json.dumps(each).encode()))
def test_every_payload_has_a_text_without_invisible_characters(payload: bytes) -> None:
    check_safe(PayloadText.of(payload), payload)


@pytest.mark.parametrize("payload", PAYLOADS, ids=range(len(PAYLOADS)))
def test_a_hostile_payload_has_a_text_without_invisible_characters(payload: bytes) -> None:
    shown = PayloadText.of(payload)
    check_safe(shown, payload)
    assert len(shown.text) <= 8 * MAX_SHOWN_BYTES


@settings(max_examples=50, deadline=None)
@given(_JSON.filter(lambda each: isinstance(each, list | dict)))
def test_indented_json_has_the_value_of_the_payload(value: object) -> None:
    shown = PayloadText.of(json.dumps(value).encode())
    assert shown.encoding is Encoding.JSON
    assert json.loads(shown.text) == value


def test_json_keeps_numbers_escapes_and_repeated_names() -> None:
    shown = PayloadText.of(b'{"a":1.10,"a":[1e999, -0 ,{}],"b":"\\u202e","c":[]}')
    assert shown.encoding is Encoding.JSON
    assert shown.text == "\n".join(
        (
            *("{", '  "a": 1.10,', '  "a": [', "    1e999,", "    -0,", "    {}", "  ],"),
            *('  "b": "\\u202e",', '  "c": []', "}"),
        )
    )


@pytest.mark.parametrize(
    "payload",
    [
        b"[" * 10_000 + b"]" * 10_000,
        b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
        b"[NaN]",
        b"[1] x",
        b'{"a": "\x01"}',
        b"12",
        b'"text"',
    ],
)
def test_text_without_a_json_object_or_array_is_not_indented(payload: bytes) -> None:
    shown = PayloadText.of(payload)
    assert shown.encoding is Encoding.UTF_8
    assert shown.text == payload.decode().replace("\x01", "\\u{0001}")


def test_a_number_of_any_length_is_json() -> None:
    assert PayloadText.of(b"[" + b"9" * 10_000 + b"]").encoding is Encoding.JSON


def test_bytes_that_are_not_utf8_are_hexadecimal() -> None:
    shown = PayloadText.of(b"ab\xff\x00")
    assert (shown.text, shown.encoding) == ("61 62 ff 00", Encoding.HEX)


def test_a_long_text_is_cut_before_a_divided_character() -> None:
    payload = b"a" + "é".encode() * MAX_SHOWN_BYTES
    shown = PayloadText.of(payload)
    assert (shown.encoding, shown.truncated) == (Encoding.UTF_8, True)
    assert shown.text == "a" + "é" * (MAX_SHOWN_BYTES // 2 - 1)


def test_the_same_bytes_at_the_end_of_a_short_text_are_not_utf8() -> None:
    assert PayloadText.of("aé".encode()[:-1]).encoding is Encoding.HEX


def test_escape_sequences_of_a_terminal_are_escaped() -> None:
    assert PayloadText.of(b"a\x1b[2Jb\r\n\tc").text == "a\\u{001B}[2Jb\\u{000D}\n\tc"
