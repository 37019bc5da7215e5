"""Texts and payloads that try to become markup, scripts, other lines, or an error of the reader."""

from __future__ import annotations

import json

_MARKUP = (
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    '"><b onmouseover=alert(1)>',
    "'><a href=javascript:alert(1)>x</a>",
    "</td></tr></table><h1>x</h1>",
    "</pre><iframe src=//example.test></iframe>",
    "</title><meta http-equiv=refresh content=0>",
    "<!--",
    "--><script>1</script>",
    "<![CDATA[<b>]]>",
    "<style>*{display:none}</style>",
    "<base href=//example.test/>",
    "<form action=//example.test><input type=submit></form>",
    '<div hx-get="//example.test" hx-trigger="load">',
    '<div hx-on:load="alert(1)" data-hx-get="/">',
    '<button data-trigger="/api/v2/dags" data-conf="{}">',
    "<details open ontoggle=alert(1)>",
    "<math><mtext></mtext><script>1</script></math>",
    "&lt;script&gt;&#60;b&#62;&amp;",
    "<p style=position:fixed;inset:0>",
    "javascript:alert(1)//",
    "<a href='data:text/html,<script>1</script>'>x</a>",
    "<plaintext>",
)
_TEMPLATES = (
    "{{ 7 * 7 }}",
    "{% for x in range(9) %}{% endfor %}",
    "{# comment #}",
    "${7*7}",
    "#{7*7}",
    "<%= 7 * 7 %>",
    "{{ ''.__class__ }}",
    "%(name)s %s %d %n",
    "{0} {name!r} {{",
    "$(touch /tmp/x) `id` ; id | id",
)
_INVISIBLE = tuple(
    f"a{chr(code)}b"
    for code in (
        *range(0x09),
        0x0B,
        0x0C,
        0x0D,
        *range(0x0E, 0x20),
        *range(0x7F, 0xA0),
        0xAD,
        0x061C,
        *range(0x200B, 0x2010),
        0x2028,
        0x2029,
        *range(0x202A, 0x202F),
        *range(0x2060, 0x2070),
        0xFEFF,
        *range(0xFFF9, 0xFFFC),
        0xE0001,
        0xE0041,
        0x10FFFF,
    )
)
_LINES = (
    "a\nb",
    "a\r\nERROR forged",
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "\t\ttabs",
    "a\x00b",
)
_LARGE = (
    "x" * 200_000,
    "<" * 70_000,
    "[" * 20_000,
    '{"a":' * 5_000,
    json.dumps({"n": 10**400}),
    '{"a": NaN, "b": Infinity}',
    "1e999999999",
    "é" * 40_000,
    json.dumps({f"k{n}": n for n in range(5_000)}),
    '{"a":1,"a":2}',
)
_IN_JSON = tuple(json.dumps({"field": text}) for text in (*_MARKUP, *_TEMPLATES))
_BYTES = (
    *(text.encode("utf-16") for text in _MARKUP[:5]),
    b"\xff\xfe\x00a",
    b"\x80",
    b"\xc3\x28",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"\xc0\xaf",
    bytes(range(256)),
    b"\x00" * 100_000,
    b"\x00\x00\x00\x00\x01<script>",
    b"\xef\xbb\xbf{}",
    b"\xf0\x9f\x98",
    b"",
)

TEXTS = (*_MARKUP, *_TEMPLATES, *_INVISIBLE, *_LINES)
"""Texts for places that people write: descriptions, reasons, names of runs."""
PAYLOADS = (*(text.encode() for text in (*TEXTS, *_LARGE, *_IN_JSON)), *_BYTES)
"""Payloads for keys, values and headers."""
