"""JSON objects as Spark columns with the types of a schema.

This module is stricter than Spark. Spark's JSON parser ignores text after the first object, and
accepts a number as a timestamp and "12,50" as 1250. It rounds decimals silently, and replaces an
unpaired surrogate by a question mark. A number that it reads as text goes through a double; a
decimal does not. It rejects 1.0 and 1e2 as integers; JSON Schema accepts them.

Some faults do not show in the parser's result. This module searches the text for cheap signs of
these faults, which few texts have. It parses only a text with such a sign a second time.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own docs use

from tidemark.silver.typed.spark_frames import ResultColumns, Steps
from tidemark.spec.decode import QuarantineReason
from tidemark.spec.fields import Decimal, FieldType, ListOf, Struct

SETTINGS = {"spark.sql.json.enablePartialResults": "false"}
"""Session settings for decoding: a text with any fault has no fields."""

_END = f"__end_{secrets.token_hex(8)}"
"""Field of an object that follows each text: the parser ignores text after the first object. The
name is random, so no text can contain this object."""

_OPTIONS = {
    "mode": "PERMISSIVE",
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
    # Its thousands separator in quoted numbers is a character that few texts contain.
    "locale": "khq",
    # The parser's default is 20 million characters. 64 MiB is also the limit of Avro's texts.
    "maxStringLen": str(64 * 2**20),
}
_THOUSANDS = "\u00a0"
"""The thousands separator of that locale; the parser has no locale without one."""
_FOREIGN_DIGIT = r"[\p{Nd}&&[^0-9]]"
"""Characters other than 0-9 that the parser accepts as digits."""
_PLAIN = r"^[ -~]*\z"
_UNPAIRED = (
    r"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
"""The escape of an unpaired surrogate, in a text without an escaped backslash."""
_UNPAIRED_MARK = f"half_{secrets.token_hex(8)}"
_INFINITY = "Infinity"
_INFINITE = r'"-?Infinity"(?!:)'
"""The parser's text for a number that is too large."""
_INFINITY_MARK = f"word_{secrets.token_hex(8)}"
_FIRST_MOMENT, _LAST_MOMENT = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The years 1 to 9999, in microseconds since 1970: Python readers fail on other years."""
_FORMS = {
    "date": r"^(?!0000)\d{4}-\d{2}-\d{2}\z",
    "timestamp": r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(?:\.\d{1,6})?(?:Z|[+-]\d{2}:\d{2})?\z",
}
"""ISO 8601, in UTC without an offset, with at most six digits of a second.
Java's `$` would accept a line end, and capturing groups cost time."""
_MAX_DIGITS = 38
_INTEGERS = ("integer", "long")
_MAX_INTEGER_DIGITS = 19
_MAY_HAVE_FRACTION = r"[0-9](?:\.[0-9]|[eE])"
_HAS_FRACTION = r"^-?[0-9]+(?:\.[0-9]+(?:[eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+)\z"
_LEXEME = r'(?s)"[^"\\]*+(?:\\.[^"\\]*+)*+"?|-?[0-9][0-9.eE+-]*+|(?:[^"0-9-]|-(?![0-9]))++'
"""A JSON string, a number, or the text between them. It never backtracks: time is linear."""
_HUGE_EXPONENT = r"([0-9]\.?[eE][+-]?)0*[1-9][0-9]{5,}"
"""The parser computes all digits of a decimal with such an exponent, which takes minutes."""
_MAX_NUMBER_DIGITS = 1_000
"""Maximum digits of a number that the parser accepts."""
_MAX_SPLIT_BYTES = 1 << 20
"""The longest text, in bytes, that is split into lexemes. They take many times its memory."""
_MAX_NAMED_COLUMNS = 200
"""Maximum columns of a schema whose unreadable fields are named. The size of the query grows with
the square of the number of columns."""
_OVERFLOWING = ("float", "double")
"""Types in which the parser reads a too large number as infinity, which is not valid JSON."""


_Test: TypeAlias = Callable[[Column, FieldType], Column | None]
"""Returns whether a value of a type is invalid; None for a type without invalid values."""
_IsKind: TypeAlias = Callable[[FieldType], bool]


def reading(
    written: Column, schema: Struct, place: ResultColumns, *, names_faults: bool = False
) -> Steps:
    """Projections that decode a text as one JSON object.

    Args:
        written: One object each, or null.
        schema: The fields of the object.
        place: Names of the new columns.
        names_faults: Whether to find the invalid field of each text that the parser rejects, or
            that the text is not one JSON object. This takes a parse for each field, so the field of
            a schema with many fields is not searched.
    """
    has_decimals = any(isinstance(each, Decimal) for each in _leaves(schema))
    bounded = f"__bounded_{place.value}" if has_decimals else None
    text = written if bounded is None else F.col(bounded)
    nothing = F.lit(None).cast("string")
    not_utf8 = F.when(~F.is_valid_utf8(text), QuarantineReason.NOT_UTF8.value)
    names = ("parsed", "fields", "again", "plain")
    parsed, fields, again, plain = (f"__{each}_{place.value}" for each in names)
    has_integers = any(_is_integer(each) for each in _leaves(schema))
    is_whole = (F.size(parsed) == 2) & F.get(parsed, F.lit(1))[_END]
    wrong = (
        F.when(is_wrong, path)
        for path, is_wrong in _faults(F.col(fields), F.col(place.value), schema, "")
    )
    names_fields = names_faults and schema.columns <= _MAX_NAMED_COLUMNS
    hidden = (F.when(is_wrong, path) for path, is_wrong in _hidden_faults(F.col(again), schema))
    is_unread = text.isNotNull() & F.col(fields).isNull()
    reason = F.when(is_unread | F.col(place.detail).isNotNull(), QuarantineReason.MALFORMED.value)
    where = F.col(place.detail)
    if names_faults:
        is_object = _is_whole(_parsed(text, ""))
        reason = F.when(is_unread & ~is_object, QuarantineReason.NOT_JSON.value).otherwise(reason)
    if names_fields:
        unread = F.when(is_unread & is_object, _first_unread(F.col(plain), schema))
        where = F.coalesce(where, unread)
    if bounded is not None:
        yield {bounded: _with_bounded_exponents(written)}
    yield {parsed: _parsed(text, _ddl_fields(schema))}
    read = F.when(is_whole, F.get(parsed, F.lit(0)))
    yield {
        fields: read.otherwise(_with_fractional_integers(text, schema)) if has_integers else read
    }
    yield {place.value: _value(F.col(fields), schema)}
    yield {again: _parsed_again(text, F.col(fields), schema)}
    yield {place.detail: F.coalesce(*wrong, *hidden, nothing)}
    yield {place.reason: F.coalesce(not_utf8, reason)}
    if names_fields:
        is_written_so = is_unread & _may_have_fraction(text)
        yield {plain: F.when(is_written_so, _with_plain_integers(text)).otherwise(text)}
        yield {place.detail: where}
        yield from _explanations(text, schema, place)


def rest_of(text: Column, schema: Struct) -> Column:
    """Return the fields of an object that a schema does not name, as JSON; null without any.

    Numbers of more than 38 digits become doubles. Spark's VARIANT accepts neither an object that
    has a name twice nor 16 MiB of values: then every value is text. If the parser accepts no copy
    of a field, returns the whole object.
    """
    named = [name for name, _ in schema.fields]

    def written(kind: str) -> Column:
        fields = F.from_json(text, f"MAP<STRING, {kind}>", _OPTIONS)
        rest = F.map_filter(fields, lambda name, _: ~name.isin(named))
        return F.when(F.size(rest) > 0, F.to_json(rest))

    has_others = F.exists(F.json_object_keys(text), lambda name: ~name.isin(named))
    return F.when(has_others, F.coalesce(written("VARIANT"), written("STRING"), text))


def _parsed(text: Column, fields: str) -> Column:
    """Return a text parsed with these fields and the end mark; null if it does not fit."""
    both = F.concat(F.lit("["), text, F.lit(f',{{"{_END}":true}}]'))
    some = f"{fields}, " if fields else ""
    return F.from_json(both, f"ARRAY<STRUCT<{some}`{_END}`: BOOLEAN>>", _OPTIONS)


def _is_whole(parsed: Column) -> Column:
    """Return whether a text was exactly one object; never null."""
    first, behind = F.get(parsed, F.lit(0)), F.get(parsed, F.lit(1))[_END]
    return F.coalesce((F.size(parsed) == 2) & first.isNotNull() & behind, F.lit(False))


def _with_fractional_integers(text: Column, schema: Struct) -> Column:
    """Return the fields of a text with integers such as 1.0 and 1e2; null for other texts.

    The parser rejects such integers. This function takes the integers from a copy of the text that
    writes them with digits alone, and all other fields from the text itself.
    """
    integers = _parsed(
        _with_plain_integers(text), _ddl_fields(schema, lambda k: not _is_integer(k))
    )
    others = _parsed(text, _ddl_fields(schema, _is_integer))
    both = F.struct(integers.alias("integers"), others.alias("others"))
    all_fields = Struct((*schema.fields, (_END, "boolean")))

    def joined(read: Column) -> Column:
        integers, others = read["integers"], read["others"]
        made = _with_integers(F.get(others, F.lit(0)), F.get(integers, F.lit(0)), all_fields)
        return F.when(_is_whole(integers) & _is_whole(others), made)

    # As an element of a list, Spark computes both once, and only for these texts.
    made = F.get(F.transform(F.array(both), joined), F.lit(0))
    return F.when(_may_have_fraction(text), made)


def _with_bounded_exponents(text: Column) -> Column:
    """Return a text with e9999 in place of larger exponents; no type can store either number."""
    lexemes = F.regexp_extract_all(text, F.lit(_LEXEME), F.lit(0))
    bounded = F.transform(
        lexemes,
        lambda lexeme: F.when(
            lexeme.rlike("^[0-9-]"), F.regexp_replace(lexeme, _HUGE_EXPONENT, "$19999")
        ).otherwise(lexeme),
    )
    has_one = (F.octet_length(text) <= _MAX_SPLIT_BYTES) & text.rlike(_HUGE_EXPONENT)
    return F.when(has_one, F.array_join(bounded, "")).otherwise(text)


def _may_have_fraction(text: Column) -> Column:
    return (F.octet_length(text) <= _MAX_SPLIT_BYTES) & text.rlike(_MAY_HAVE_FRACTION)


def _with_plain_integers(text: Column) -> Column:
    """Return a text with 1 in place of 1.0, and 100 in place of 1e2."""
    lexemes = F.regexp_extract_all(text, F.lit(_LEXEME), F.lit(0))
    return F.array_join(F.transform(lexemes, _with_digits_alone), "")


def _with_digits_alone(lexeme: Column) -> Column:
    """Return the digits of a number without a fraction; return other lexemes unchanged."""
    mantissa = F.regexp_replace(lexeme, "^-|[eE].*", "")
    written = F.replace(mantissa, F.lit("."))
    digits = F.regexp_replace(written, "^0+", "")
    exponent = F.regexp_extract(lexeme, "[eE](.*)", 1).try_cast("int")
    point = (
        F.length(F.substring_index(mantissa, ".", 1))
        - (F.length(written) - F.length(digits))
        # A sum of 32-bit numbers may overflow, which fails the job.
        + F.when(~lexeme.rlike("[eE]"), 0).otherwise(exponent).cast("bigint")
    )
    significant = F.rtrim(digits, F.lit("0"))
    is_integer = point.between(F.length(significant), _MAX_INTEGER_DIGITS)
    sign = F.regexp_extract(lexeme, "^-?", 0)
    plain = F.when(digits == "", F.lit("0")).when(
        is_integer, F.concat(sign, F.rpad(significant, point.try_cast("int"), F.lit("0")))
    )
    is_written_so = (F.length(lexeme) <= _MAX_NUMBER_DIGITS) & lexeme.rlike(_HAS_FRACTION)
    return F.when(is_written_so, F.coalesce(plain, lexeme)).otherwise(lexeme)


def _with_integers(read: Column, integers: Column, kind: FieldType) -> Column:
    """Return a value with the integers of another value of the same structure."""
    if not any(_is_integer(each) for each in _leaves(kind)):
        return read
    match kind:
        case Struct():
            fields = [
                _with_integers(read[name], integers[name], each).alias(name)
                for name, each in kind.fields
            ]
            return F.when(read.isNotNull(), F.struct(*fields))
        case ListOf(element=element):
            return F.zip_with(read, integers, lambda a, b: _with_integers(a, b, element))
        case _:
            return integers


def _parsed_again(text: Column, fields: Column, schema: Struct) -> Column:
    """Return the fields of texts with signs of a hidden fault, with decimals as text; else null.

    In these fields, a mark replaces each unpaired surrogate, and another mark the text `Infinity`,
    which the parser also returns for a too large number.
    """
    signs = []
    kinds = set(_leaves(schema))
    # This text has no escaped backslash, so each backslash begins an escape.
    escapes = F.replace(text, F.lit("\\\\"), F.lit("\\u005c"))
    if "string" in kinds:
        may_be_unpaired = F.contains(text, F.lit("\\u")) & (
            F.contains(text, F.lit("\\ud")) | F.contains(text, F.lit("\\uD"))
        )
        signs.append(may_be_unpaired & escapes.rlike(_UNPAIRED))
        signs += [is_there for _, is_there in _found(fields, schema, "", _has_infinity)]
    if any(isinstance(each, Decimal) for each in kinds):
        is_foreign = F.contains(text, F.lit(_THOUSANDS)) | text.rlike(_FOREIGN_DIGIT)
        signs.append((F.length(text) != F.octet_length(text)) & is_foreign)
    if not signs:
        return F.lit(None).cast(f"STRUCT<{_ddl_fields(schema)}>")
    marked = F.regexp_replace(escapes, _UNPAIRED, _UNPAIRED_MARK)
    marked = F.replace(marked, F.lit(_INFINITY), F.lit(_INFINITY_MARK))
    doubtful = F.coalesce(*(F.when(sign, F.lit(True)) for sign in signs), F.lit(False))
    as_text = _ddl_fields(schema, lambda kind: isinstance(kind, Decimal) or _is_integer(kind))
    parsed = _parsed(marked, as_text)
    return F.when(fields.isNotNull() & doubtful, F.get(parsed, F.lit(0)))


def _has_infinity(read: Column, kind: FieldType) -> Column | None:
    return F.contains(read, F.lit(f'{_INFINITY}"')) if kind == "string" else None


def _hidden_faults(again: Column, schema: Struct) -> Iterator[tuple[str, Column]]:
    """Yield the path and the condition of each fault that only the second parse shows."""

    def is_wrong(read: Column, kind: FieldType) -> Column | None:
        if isinstance(kind, Decimal):
            return ~read.rlike(_PLAIN)
        if kind == "string":
            return F.contains(read, F.lit(_UNPAIRED_MARK)) | read.rlike(_INFINITE)
        return None

    return _found(again, schema, "", is_wrong)


def _found(read: Column, kind: FieldType, path: str, test: _Test) -> Iterator[tuple[str, Column]]:
    """Yield the path and the condition of each value that a test can reject; a list counts once."""
    match kind:
        case Struct():
            for name, each in kind.fields:
                yield from _found(read[name], each, f"{path}.{name}" if path else name, test)
        case ListOf(element=element):

            def any_is(each: Column) -> Column:
                inner = (F.when(wrong, F.lit(True)) for _, wrong in _found(each, element, "", test))
                return F.coalesce(*inner, F.lit(False))

            if any(test(read, each) is not None for each in _leaves(element)):
                yield f"{path}[]", F.exists(read, any_is)
        case _:
            if (wrong := test(read, kind)) is not None:
                yield path, wrong


def _first_unread(text: Column, schema: Struct) -> Column:
    """Return the path of the first field that the parser rejects; parses each field separately."""
    found = [
        F.when(~_is_whole(_parsed(text, fields)), path) for path, fields in _each_field(schema)
    ]
    return F.coalesce(*found, F.lit(None).cast("string"))


def _each_field(schema: Struct) -> Iterator[tuple[str, str]]:
    """Yield the path and the parser's type of each field; an object precedes its fields."""
    for name, kind in schema.fields:
        if isinstance(kind, Struct):
            yield name, f"`{name}`: STRUCT<`{_END}`: BOOLEAN>"
            for path, fields in _each_field(kind):
                yield f"{name}.{path}", f"`{name}`: STRUCT<{fields}>"
        else:
            yield name + "[]" * isinstance(kind, ListOf), f"`{name}`: {_ddl(kind)}"


def _explanations(text: Column, schema: Struct, place: ResultColumns) -> Steps:
    """Projections that add the expected type and the JSON type of the value to a path.

    They add no value, so each field has few different details.
    """
    document, found = f"__document_{place.value}", f"__found_{place.value}"
    path = F.col(place.detail)
    yield {document: F.when(path.isNotNull(), F.try_parse_json(text))}
    places = {each: (names, kind) for each, names, kind in _places(schema, ())}
    values = [
        F.when(path == each, F.try_variant_get(document, _variant_path(names), "variant"))
        for each, (names, _) in places.items()
        # Such a path has no escape for an apostrophe.
        if "'" not in "".join(names)
    ]
    yield {found: F.schema_of_variant(F.coalesce(*values, F.try_parse_json(F.lit(None))))}
    expected = {each: _expected(kind) for each, (_, kind) in places.items()}
    own = {each: _json_type(kind) for each, (_, kind) in places.items()}
    kind = F.col(found)
    seen = (
        F.when(kind.startswith("OBJECT"), "object")
        .when(kind.startswith("ARRAY"), "list")
        .when(kind == "STRING", "text")
        .when(kind == "BOOLEAN", "boolean")
        .when(kind != "VOID", "number")
    )
    yield {found: seen}
    another = F.when(kind == _looked_up(own, path), "another ").otherwise("")
    tail = F.coalesce(F.concat(F.lit(", found "), another, kind), F.lit(""))
    yield {place.detail: F.concat(path, F.lit(": expected "), _looked_up(expected, path), tail)}


def _looked_up(texts: Mapping[str, str], key: Column) -> Column:
    return F.element_at(
        F.create_map(*(F.lit(each) for pair in texts.items() for each in pair)), key
    )


def _variant_path(names: Sequence[str]) -> str:
    return "$" + "".join(f"['{name}']" for name in names)


def _places(
    schema: Struct, before: tuple[str, ...]
) -> Iterator[tuple[str, tuple[str, ...], FieldType]]:
    """Yield the path, the names and the type of each field at which a fault can be."""
    for name, kind in schema.fields:
        names = (*before, name)
        yield ".".join(names) + "[]" * isinstance(kind, ListOf), names, kind
        if isinstance(kind, Struct):
            yield from _places(kind, names)


def _expected(kind: FieldType) -> str:
    match kind:
        case Struct():
            return "object"
        case ListOf(element=element):
            return f"list of {_expected(element)}"
        case _:
            return "text" if kind == "string" else str(kind)


def _json_type(kind: FieldType) -> str:
    """Return the JSON type in which values of a type are written."""
    match kind:
        case Struct():
            return "object"
        case ListOf():
            return "list"
        case Decimal():
            return "number"
        case "boolean":
            return "boolean"
        case _:
            return "number" if kind in (*_INTEGERS, *_OVERFLOWING) else "text"


def _ddl_fields(schema: Struct, as_text: _IsKind = lambda _: False) -> str:
    return ", ".join(f"`{name}`: {_ddl(kind, as_text)}" for name, kind in schema.fields)


def _ddl(kind: FieldType, as_text: _IsKind = lambda _: False) -> str:
    """Return the parser's type for a field: text where the parser is too lenient."""
    match kind:
        case Struct():
            return f"STRUCT<{_ddl_fields(kind, as_text)}>"
        case ListOf():
            return f"ARRAY<{_ddl(kind.element, as_text)}>"
        case _ if as_text(kind):
            return "STRING"
        case Decimal(precision=precision, scale=scale):
            # With as many digits after the point as possible, to detect a lost digit.
            return f"DECIMAL({_MAX_DIGITS},{scale + _MAX_DIGITS - precision})"
        case _:
            return "STRING" if kind in _FORMS else str(kind)


def _is_integer(kind: FieldType) -> bool:
    return kind in _INTEGERS


def _leaves(kind: FieldType) -> Iterator[FieldType]:
    match kind:
        case Struct():
            for _, each in kind.fields:
                yield from _leaves(each)
        case ListOf():
            yield from _leaves(kind.element)
        case _:
            yield kind


def _needs_cast(kind: FieldType) -> bool:
    return any(isinstance(each, Decimal) or each in _FORMS for each in _leaves(kind))


def _can_be_wrong(kind: FieldType) -> bool:
    return _needs_cast(kind) or any(each in _OVERFLOWING for each in _leaves(kind))


def _value(read: Column, kind: FieldType) -> Column:
    """Return the parser's value in the type of the field; null if it does not fit."""
    match kind:
        case Struct():
            fields = [_value(read[name], each).alias(name) for name, each in kind.fields]
            return F.when(read.isNotNull(), F.struct(*fields))
        case ListOf() if _needs_cast(kind):
            return F.transform(read, lambda each: _value(each, kind.element))
        case _:
            return read.try_cast(str(kind)) if _needs_cast(kind) else read


def _faults(read: Column, made: Column, kind: FieldType, path: str) -> Iterator[tuple[str, Column]]:
    """Yield the path and the condition of each value that may not fit its type."""
    match kind:
        case Struct():
            for name, each in kind.fields:
                place = f"{path}.{name}" if path else name
                yield from _faults(read[name], made[name], each, place)
        case ListOf(element=element) if _can_be_wrong(kind):
            yield f"{path}[]", F.exists(read, lambda each: _is_wrong(each, element))
        case _ if _can_be_wrong(kind):
            yield path, _differs(read, made, kind)


def _is_wrong(read: Column, kind: FieldType) -> Column:
    """Return whether an element of a list does not fit its type; never null."""
    either = F.lit(False)
    for _, wrong in _faults(read, _value(read, kind), kind, ""):
        either = either | wrong
    return F.coalesce(either, F.lit(False))


def _differs(read: Column, made: Column, kind: FieldType) -> Column:
    """Return whether the parser's value differs from the converted one; never null."""
    if kind in _OVERFLOWING:
        return F.coalesce(F.abs(read) == F.lit(float("inf")), F.lit(False))
    if isinstance(kind, Decimal):
        return read.isNotNull() & ~F.coalesce(made == read, F.lit(False))
    wrong = made.isNull() | ~read.rlike(_FORMS[str(kind)])
    if kind == "timestamp":
        # With an offset from UTC, the time may be outside the years 1 to 9999.
        wrong = wrong | ~F.unix_micros(made).between(_FIRST_MOMENT, _LAST_MOMENT)
    return read.isNotNull() & wrong
