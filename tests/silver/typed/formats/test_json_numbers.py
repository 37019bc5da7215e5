"""Integers of JSON that are written with a point or an exponent."""

from __future__ import annotations

import json
from decimal import Decimal
from random import Random

import pytest

from tests.support.json_reading import read, spec_of

_SPEC = spec_of(
    {
        "big": "long",
        "small": "integer",
        "many": ["long"],
        "ratio": "double",
        "price": "decimal(18,4)",
        "text": "string",
        "inner": {
            "big": "long",
            "legs": [{"qty": "long", "note": "string", "sizes": [["integer"]]}],
        },
    }
)
_LIMITS = {"big": 2**63, "small": 2**31}


def _number(random: Random) -> str:
    """Return a random JSON number, often near the limits of integers."""
    whole = ["0", "1", "10", "100", "9007199254740993", "2147483647", "2147483648"]
    whole += ["9223372036854775807", "9223372036854775808", str(random.randrange(1, 10**9))]
    whole += [str(random.randrange(1, 10**18)), "1" + "0" * random.randrange(1, 30)]
    fraction = random.choice(["", ".0", ".5", ".50", ".000", ".10", ".0" + "0" * 40, ".0000001"])
    fraction = random.choice([fraction, "." + "0" * random.randrange(30) + "1"])
    exponent = random.choice(["", "", "e0", "E+1", "e2", "e-1", "E-2", "e7", "e+18", "e30", "e-30"])
    exponent = random.choice(
        [exponent, f"e{random.randrange(-25, 25)}", "e400", "e-400", "e99999999999", "e007"]
    )
    return random.choice(["", "-"]) + random.choice(whole) + fraction + exponent


def _spelled(random: Random) -> str:
    """Return a random integer with the point at any place."""
    limit = random.choice([10, 2**31, 2**53, 2**63])
    whole = Decimal(random.choice([limit - 1, -limit, random.randrange(-limit, limit)]))
    shift = random.randrange(-5, 25)
    zeros = "." + "0" * random.randrange(1, 9) if shift <= 0 else "0" * random.randrange(9)
    return f"{whole.scaleb(-shift):f}{zeros}{random.choice('eE')}{shift}"


def _exact(number: str, limit: int) -> int | None:
    """Return the integer that equals a number by Python's decimals; None without one."""
    sign, digits, exponent = Decimal(number).as_tuple()
    assert isinstance(exponent, int)
    while exponent < 0 and len(digits) > 1 and digits[-1] == 0:
        digits, exponent = digits[:-1], exponent + 1
    if digits == (0,):
        return 0
    if exponent < 0 or exponent > 30:
        return None
    made = int("".join(map(str, digits))) * 10**exponent * (-1 if sign else 1)
    return made if -limit <= made < limit else None


def test_integers_with_a_zero_fraction_are_decoded_exactly() -> None:
    """The values equal Python's decimals; other numbers make the record malformed in that field."""
    seed = 22
    print(f"seed {seed}")
    random = Random(seed)
    numbers = ["1.0", "1e2", "-0.0", "10.50e1", "9007199254740993.0", "1.5", "1e400", "1e-30"]
    numbers += [f"{n}e{sign}2147483647" for n in ("1", "1.5", "0.001", "12") for sign in ("", "-")]
    numbers += [
        "0e99999999999",
        "1e2147483648",
        "0.01e-2147483648",
        "-9223372036854775808.0",
        "1.00000000000000000000000000001",
    ]
    numbers += [made(random) for made in (_number, _spelled) for _ in range(300)]
    cases = [(number, random.choice(["big", "small"])) for number in numbers]
    payloads = [f'{{"{field}": {number}}}'.encode() for number, field in cases]
    wrong = {}
    for (number, field), row in zip(cases, read(_SPEC, payloads), strict=True):
        expected = _exact(number, _LIMITS[field])
        seen = row["value"] and row["value"][field], row["reason"], row["path"]
        if seen != ((None, "malformed", field) if expected is None else (expected, None, None)):
            wrong[number] = (field, expected, seen)
    assert wrong == {}
    integers = sum(_exact(number, _LIMITS[field]) is not None for number, field in cases)
    assert 150 < integers < len(cases) - 150


def test_the_other_fields_of_such_a_record_are_unchanged() -> None:
    """Numbers in text fields keep their form, decimals their digits, and doubles their sign."""
    payload = {
        "big": 1.0,
        "many": [1.0, None, 200.0, 3],
        "ratio": -0.0,
        "text": {"a": 12.0, "b": "1.0, 2.0 \\", "c": "\u00fc"},
        "inner": {
            "big": None,
            "legs": [
                {"qty": 5.0, "note": 'a "1.0" 7.0', "sizes": [[1.0, 2], [], None]},
                None,
                {"qty": None, "note": None, "sizes": None},
            ],
        },
    }
    text = json.dumps(payload)[:-1] + ', "price": 12345678901234.1234, "other": 1e5, "big2": 1.5}'
    (row,) = read(_SPEC, [text.encode()])
    assert row == {
        "value": {
            "big": 1,
            "small": None,
            "many": [1, None, 200, 3],
            "ratio": 0.0,
            "price": Decimal("12345678901234.1234"),
            "text": '{"a":12.0,"b":"1.0, 2.0 \\\\","c":"\\u00fc"}',
            "inner": {
                "big": None,
                "legs": [
                    {"qty": 5, "note": 'a "1.0" 7.0', "sizes": [[1, 2], [], None]},
                    None,
                    {"qty": None, "note": None, "sizes": None},
                ],
            },
        },
        "reason": None,
        "detail": None,
        "path": None,
    }
    assert str(row["value"]["ratio"]) == "-0.0"


def test_faults_beside_such_an_integer_are_found() -> None:
    """The integer is valid, and hides no fault."""
    cases = {
        b'{"big": 1.0, "small": 1.5}': "small",
        b'{"big": 1.0, "ratio": 1e400}': "ratio",
        b'{"big": 1.0, "ratio": "1"}': "ratio",
        b'{"big": 1.0, "price": 1.23456}': "price",
        '{"big": 1.0, "price": "1\u20192"}'.encode(): "price",
        b'{"big": "1.0"}': "big",
        b'{"big": 1.0, "small": "1"}': "small",
        b'{"big": 1.0, "small": true}': "small",
        b'{"many": [1.0, 1.5]}': "many[]",
        b'{"many": 1.0}': "many",
        b'{"inner": {"big": 1.0, "legs": [{"qty": 1.5}]}}': "inner.legs[].qty",
        b'{"inner": 1.0}': "inner",
    }
    rows = read(_SPEC, list(cases))
    assert [(row["reason"], row["path"]) for row in rows] == [
        ("malformed", path) for path in cases.values()
    ]
    broken = [b'{"big": 1.0', b'{"big": 1.0} x', b'{"big": 1.}', b'{"big": .0}', b'{"big": 1.0-2}']
    broken += [b'{"big": 01.0}', b'{"big": 1.0, "other": "a\n1.0"}', b'{"big": 1e}', b'"1.0']
    assert {row["reason"] for row in read(_SPEC, broken)} == {"not_json"}


def test_large_records_are_read_in_linear_time() -> None:
    """A quadratic search would take hours for each of these texts."""
    text = b'{"big": 1.0, "text": "%s"}' % (b"\\n 1.0" * 160_000)
    many = b'{"many": [%s]}' % b",".join([b"1.0"] * 100_000)
    digits = b'{"big": 1.0' + b"0" * 500_000 + b"1}"
    broken = [
        b'{"big": 1.0, "' + b'\\"' * 500_000,
        b'{"big": 1.0, "other": ' + b"-" * 1_000_000,
        b'{"big": 1.0, ' + b'""' * 500_000,
    ]
    rows = read(_SPEC, [text, many, digits, *broken])
    assert rows[0]["value"]["big"] == 1
    assert rows[0]["value"]["text"] == "\n 1.0" * 160_000
    assert rows[1]["value"]["many"] == [1] * 100_000
    assert [row["reason"] for row in rows[2:]] == ["malformed", *["not_json"] * 3]


@pytest.mark.parametrize(
    ("number", "field"),
    [
        ("1e2000000000", "price"),
        ("-1.5E+0900000000", "price"),
        ("1e900000000", "big"),
        ("1e900000000", "ratio"),
    ],
)
def test_a_huge_exponent_is_malformed_at_once(number: str, field: str) -> None:
    """No reader computes all of its digits."""
    whole = {"big": 1, "small": 2, "ratio": 0.5, "price": 3, "text": "9e900000000"}
    record = json.dumps({**whole, field: 0}).replace(f'"{field}": 0', f'"{field}": {number}')
    (row,) = read(_SPEC, [record.encode()])
    assert (row["reason"], row["path"]) == ("malformed", field)


def test_an_exponent_near_the_limit_of_32_bits_fails_no_run() -> None:
    """The schema has no decimals, so exponents are not bounded."""
    numbers = [
        f"{digits}e{exponent}"
        for digits in ("1", "1.5", "0.001", "12", "-0.0")
        for exponent in (2**31 - 1, -(2**31), 2**31)
    ]
    records = [f'{{"big": {number}}}' for number in numbers]
    records += [f'{{"big": 1.0, "ratio": {number}}}' for number in numbers]
    records += [f'{{"big": 1.0, "other": {number}}}' for number in numbers]
    rows = read(
        spec_of({"big": "long", "ratio": "double"}),
        [record.encode() for record in records],
    )
    reasons = [(row["reason"], row["path"]) for row in rows]
    good, count = (None, None), len(numbers)
    is_zero = [number.startswith("-0.0") for number in numbers]
    assert reasons[:count] == [good if zero else ("malformed", "big") for zero in is_zero]
    assert set(reasons[count : 2 * count]) == {good, ("malformed", "ratio")}
    assert set(reasons[2 * count :]) == {good}


def test_a_huge_exponent_changes_no_valid_record() -> None:
    """Covers texts, fields that the schema does not have, and numbers near zero."""
    record = b'{"text": "9e900000000, 1e-900000000", "other": 1e900000000, "ratio": 1e-900000000}'
    (row,) = read(_SPEC, [record])
    assert row["reason"] is None
    assert row["value"]["text"] == "9e900000000, 1e-900000000"
    assert row["value"]["ratio"] == 0.0
