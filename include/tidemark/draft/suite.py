"""Drafts a quality suite from a profile of sampled records.

The rules describe the sample, so every rule is a warning, and a person edits them. A rule is only
drafted if chance is an unlikely reason for what the sample shows:

- Every rule needs `MIN_VALUES` values. A property of all 300 values is absent in at most 1 % of the
  topic's, with 95 % confidence (the rule of three: 3 / 300).
- A property with exceptions gets a rule with the lower end of the 95 % interval of its share
  (Wilson). The sample itself and batches like it pass this rule.
- A list of values needs `MIN_REPEATS` of each. A further value as frequent as the rarest one would
  be absent from the sample by chance in one of 20,000 cases (e^-10).
- Limits, shapes and a field that equals the key need `MIN_DISTINCT` different values. The sign of
  numbers is a limit, whether they include 0 is not.
- Uniqueness needs `MIN_UNIQUE` values without a repetition, and a field that is an identifier by
  its name or its shape. Values drawn from 16 million ones would repeat in 95 % of such samples (the
  birthday problem). Without that name, prices and times that differ by chance would be unique.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, sqrt
from pathlib import Path
from typing import Any

from tidemark.core.texts import counted
from tidemark.delta.local_files import replace_text, translate_os_errors
from tidemark.draft.profile import MAX_LISTED_VALUES, FieldProfile, Profile
from tidemark.quality.suite import BATCH_COLUMNS
from tidemark.silver.typed.payload_values import avro_columns
from tidemark.spec.decode import FRAME_BYTES, FRAME_MAGIC, Format, Part
from tidemark.spec.errors import FileExists

MAX_SCHEMAS = 10
"""Maximum number of Avro schemas that the rules of a suite decode: those of most sampled values."""
MIN_VALUES = 300
"""Minimum number of values for a rule."""
MIN_REPEATS = 10
"""Minimum number of records with each value of a list."""
MIN_DISTINCT = 10
"""Minimum number of different values for limits, shapes, and equality with the key."""
MIN_UNIQUE = 10_000
"""Minimum number of values for uniqueness."""
_NEARLY_ALL = 0.95
"""Share of the values for a rule with exceptions."""
_Z = 1.96
"""The normal quantile of a two-sided interval of 95 %."""
_IDENTIFIER = re.compile(r"(.*_)?(id|uuid|guid)|.*(Id|ID|Uuid|UUID|Guid|GUID)")
"""Names of fields that identify something."""
_MARGIN = 10
"""Limits of numbers are the largest sampled number times this factor."""
_MAX_LIMITED = 1e15
"""Larger numbers are identifiers or errors, and get no limits."""
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_VALUE_LENGTH = 40
_UUID = "a UUID"
_SHAPES = {
    _UUID: r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$",
    "digits": r"^[0-9]+$",
    "an e-mail address": r"^[^@\s]+@[^@\s]+$",
}
_CONTENT = "content"
_TIMES = ("date", "timestamp")
_KEY_TYPES = ("STRING", "BIGINT")
"""Types of fields that may be equal to the key."""


def check_no_suite(file: Path) -> None:
    """Check that a draft overwrites no suite.

    Raises:
        FileExists: The file exists.
    """
    if file.exists():
        raise FileExists.of_suite(str(file))


def write_suite(file: Path, suite: Mapping[str, Any]) -> None:
    """Write a draft to its file.

    Raises:
        FileExists: The file exists.
        StorageFailure: The file cannot be written.
    """
    check_no_suite(file)
    with translate_os_errors(file, "writing the suite"):
        replace_text(file, json.dumps(suite, indent=2) + "\n")


def draft_suite(name: str, profile: Profile) -> dict[str, Any]:
    """Return the content of a suite's file.

    Args:
        name: Name of the suite.
        profile: The profile of sampled records.

    Returns:
        The content, which `quality.suite.load_suite` reads.
    """
    content = _content(profile)
    fields = list(_usable(profile)) if content and _has_objects(profile) else []
    columns = _column_names(fields, content.columns(fields) if content else ())
    rules = [rule for each in fields for rule in _rules(each, columns[each.name])]
    expressions: dict[str, str] = {}
    if content and fields and profile.values >= MIN_VALUES:
        expressions |= content.columns(fields)
        used = {rule["kwargs"]["column"] for rule in rules}
        expressions |= {
            columns[each.name]: content.path(each) for each in fields if columns[each.name] in used
        }
        expressions["value_problem"] = _value_problem(profile, fields, content)
        sentence = _value_sentence(profile, fields, content)
        rules.insert(0, _null_rule("value_problem", sentence, profile.objects, profile.values))
    has_keys = len(profile.keys) >= MIN_DISTINCT and profile.with_key >= MIN_VALUES
    key_field = next((each for each in fields if has_keys and _is_key(each)), None)
    if content and key_field:
        # In a comparison with a number, Spark casts the key, and fails if it is not a number.
        value = f"CAST({content.path(key_field)} AS STRING)"
        expressions["key_problem"] = (
            f"CASE WHEN key_text <> {value} "
            f"THEN concat('key ', key_text, ', {key_field.name} ', {value}) END"
        )
        sentence = f"every key is the {key_field.name} in its value"
        rules.append(
            _null_rule("key_problem", sentence, key_field.equal_to_key, key_field.with_key)
        )
    elif shape := _shape(profile.keys) if has_keys else None:
        rules.append(_regex_rule("key_text", f"every key is {shape}", _SHAPES[shape]))
    return {
        "name": name,
        "notes": _notes(profile, fields, content),
        "meta": {"tidemark": {"columns": expressions, "checks": dict(_checks(profile))}},
        "expectations": rules,
    }


def _has_objects(profile: Profile) -> bool:
    return profile.objects > 0 and profile.objects >= _NEARLY_ALL * profile.values


def _usable(profile: Profile) -> Iterator[FieldProfile]:
    """Yield fields that can become columns. Spark's column names ignore case."""
    names: set[str] = set()
    for each in profile.fields.values():
        is_scalar = each.present and each.sql_type
        if is_scalar and _PLAIN.fullmatch(each.name) and each.name.lower() not in names:
            names.add(each.name.lower())
            yield each


def _column_names(fields: list[FieldProfile], content: Collection[str]) -> Mapping[str, str]:
    """Return the column name of each field: the field's name, or a similar one if it is taken."""
    reserved = {*BATCH_COLUMNS, *content, "value_problem", "key_problem"}
    taken = {*reserved, *(field.name.lower() for field in fields)}
    names = {}
    for field in fields:
        name = field.name
        if name.lower() in reserved:
            name = f"{name}_field"
            while name.lower() in taken:
                name += "_"
        taken.add(name.lower())
        names[field.name] = name
    return names


@dataclass(frozen=True, slots=True, kw_only=True)
class _JsonContent:
    """The SQL that reads fields of JSON values.

    Attributes:
        text: The SQL of the JSON text.
        frame_check: A branch of CASE for values without a schema id; empty for plain JSON.
    """

    text: str = "value_text"
    frame_check: str = ""

    name = "JSON"
    objects = "JSON objects"
    note = ""

    def columns(self, fields: Sequence[FieldProfile]) -> Mapping[str, str]:
        """Return the columns that `path` reads."""
        schema = ", ".join(f"`{each.name}` {each.sql_type}" for each in fields)
        return {_CONTENT: f"from_json({self.text}, '{schema}')"}

    def path(self, field: FieldProfile) -> str:
        """Return the SQL of a field."""
        return f"{_CONTENT}.`{field.name}`"

    @property
    def problems(self) -> str:
        """The branches of CASE that name a problem of the value as a whole."""
        return f"{self.frame_check}WHEN get_json_object({self.text}, '$') IS NULL THEN 'not JSON' "


@dataclass(frozen=True, slots=True, kw_only=True)
class _AvroContent:
    """The SQL that reads fields of Avro values, each with its own schema.

    Attributes:
        schemas: The schemas of the sampled values, by id.
    """

    schemas: Mapping[int, str]

    name = "Avro"
    objects = "Avro records"

    @property
    def note(self) -> str:
        """The limit of the rules, for the notes of the suite."""
        ids = ", ".join(map(str, self.schemas))
        return (
            f"Values of schemas other than {ids} pass every rule about fields: draft the suite "
            "again after a change of the schema. "
        )

    def columns(self, fields: Sequence[FieldProfile]) -> Mapping[str, str]:  # noqa: ARG002
        """Return the columns that `path` reads."""
        return {
            f"{_CONTENT}_{each}": (
                f"CASE WHEN {_FRAME} = {_frame(each)} THEN from_avro({_BODY}, "
                f"'{_avro_literal(text)}', map('mode', 'PERMISSIVE')) END"
            )
            for each, text in self.schemas.items()
        }

    def path(self, field: FieldProfile) -> str:
        """Return the SQL of a field."""
        values = [
            f"CAST({_CONTENT}_{each}.`{field.name}` AS {field.sql_type})"
            for each, text in self.schemas.items()
            if field.name in avro_columns(text)
        ]
        return values[0] if len(values) == 1 else f"coalesce({', '.join(values)})"

    @property
    def problems(self) -> str:
        """The branches of CASE that name a problem of the value as a whole."""
        known = ", ".join(map(_frame, self.schemas))
        return f"{_UNFRAMED}WHEN {_FRAME} NOT IN ({known}) THEN NULL "


_Content = _JsonContent | _AvroContent

_FRAME = f"substring(value, 1, {FRAME_BYTES})"
_BODY = f"substring(value, {FRAME_BYTES + 1})"
_UNFRAMED = (
    f"WHEN length(value) < {FRAME_BYTES} OR substring(value, 1, 1) <> X'{FRAME_MAGIC.hex()}' "
    "THEN 'no schema id' "
)


def _content(profile: Profile) -> _Content | None:
    """Return the SQL that reads the values' fields.

    None for Protobuf, for unknown schemas, and for schemas of several formats.
    """
    if not profile.schema_ids(Part.VALUE):
        return _JsonContent()
    schemas = profile.schemas(Part.VALUE)
    kinds = {each.kind for each in schemas.values()}
    if kinds == {Format.JSON_SCHEMA.kind}:
        return _JsonContent(text=f"CAST({_BODY} AS STRING)", frame_check=_UNFRAMED)
    if kinds == {Format.AVRO.kind}:
        frequent = [each for each, _ in profile.value_schemas.most_common() if each in schemas]
        return _AvroContent(schemas={each: schemas[each].text for each in frequent[:MAX_SCHEMAS]})
    return None


def _frame(schema_id: int) -> str:
    """Return the first bytes of values of a schema, as a literal in SQL."""
    return f"X'{(FRAME_MAGIC + schema_id.to_bytes(FRAME_BYTES - 1)).hex()}'"


_UNREAD_KEYS = ("aliases", "default", "doc")
"""Keys of an Avro schema that a reader of its own records does not need."""


def _avro_literal(schema: str) -> str:
    """Return a schema as the content of a literal in SQL."""

    def kept(part: dict[str, Any]) -> dict[str, Any]:
        return {name: each for name, each in part.items() if name not in _UNREAD_KEYS}

    text = json.dumps(json.loads(schema, object_hook=kept), separators=(",", ":"))
    return text.replace("\\", "\\\\").replace("'", "\\'")


def _always_present(profile: Profile, fields: list[FieldProfile]) -> list[FieldProfile]:
    """Return the fields that every sampled object has."""
    return [each for each in fields if each.present == profile.objects]


def _value_problem(profile: Profile, fields: list[FieldProfile], content: _Content) -> str:
    missing = "".join(
        f"WHEN {content.path(each)} IS NULL THEN 'no {each.name}' "
        for each in _always_present(profile, fields)
    )
    return f"CASE WHEN value IS NULL THEN NULL {content.problems}{missing}END"


def _value_sentence(profile: Profile, fields: list[FieldProfile], content: _Content) -> str:
    names = ", ".join(each.name for each in _always_present(profile, fields))
    return f"every value is {content.name}{f' with {names}' if names else ''}"


def _rules(field: FieldProfile, column: str) -> Iterator[dict[str, Any]]:
    """Yield the rules of one field, if enough records have it."""
    if field.present < MIN_VALUES:
        return
    largest = max(abs(field.minimum or 0), abs(field.maximum or 0))
    shape = _shape(field.distinct) if len(field.distinct) >= MIN_DISTINCT else None
    is_identifier = _IDENTIFIER.fullmatch(field.name) is not None or shape == _UUID
    # Whole numbers that differ in every record are often counters, which exceed a limit later.
    is_counter = is_identifier or (field.is_unique and field.sql_type == "BIGINT")
    is_limited = largest <= _MAX_LIMITED and len(field.distinct) >= MIN_DISTINCT
    if field.is_number and is_limited and not is_counter:
        yield _range_rule(field, column)
    elif field.texts == field.present:
        # Values of a shape are identifiers, which do not belong in a file in Git.
        if shape:
            yield _regex_rule(column, f"{field.name} is {shape}", _SHAPES[shape])
        # A later batch has other days.
        elif field.common_type not in _TIMES and (values := _listed_values(field)):
            yield _rule(
                "expect_column_values_to_be_in_set",
                {"column": column, "value_set": values},
                f"{field.name} is one of the {counted(len(values), 'sampled value')}",
            )
    if field.is_unique and field.present >= MIN_UNIQUE and is_identifier:
        yield _rule(
            "expect_column_values_to_be_unique",
            {"column": column},
            f"{field.name} is unique in a batch",
        )


def _range_rule(field: FieldProfile, column: str) -> dict[str, Any]:
    minimum, maximum = field.minimum or 0, field.maximum or 0
    limit = _rounded_up(_MARGIN * max(abs(minimum), abs(maximum)))
    kwargs: dict[str, Any] = {"column": column}
    kwargs["min_value"] = 0 if minimum >= 0 else -limit
    kwargs["max_value"] = limit
    return _rule(
        "expect_column_values_to_be_between",
        kwargs,
        f"{field.name} is from {kwargs['min_value']:,} to {limit:,}; sampled values are "
        f"{minimum:,} to {maximum:,}",
    )


def _rounded_up(number: float) -> int:
    """Return the next number with one digit and zeros: `1`, `40`, `7_000`."""
    integer = max(1, -int(-number // 1))
    unit = 10 ** (len(str(integer)) - 1)
    return int(-(-integer // unit) * unit)


def _listed_values(field: FieldProfile) -> list[str]:
    """Return the distinct values if they are few, short, and each is frequent; otherwise none."""
    few = len(field.distinct) <= MAX_LISTED_VALUES and min(field.distinct.values()) >= MIN_REPEATS
    # Great Expectations does not accept an empty text in a set.
    short = all(1 <= len(value) <= _MAX_VALUE_LENGTH for value in field.distinct)
    return sorted(field.distinct) if few and short else []


def _shape(values: Collection[str | None]) -> str | None:
    """Return the name of the shape that all values have; None without a common shape."""
    texts = [value for value in values if isinstance(value, str)]
    if not texts or len(texts) < len(values):
        return None
    for name, pattern in _SHAPES.items():
        if all(re.fullmatch(pattern, text) for text in texts):
            return name
    return None


def _is_key(field: FieldProfile) -> bool:
    """Whether nearly all keys equal this field of their value."""
    return (
        field.sql_type in _KEY_TYPES
        and field.with_key >= MIN_VALUES
        and field.equal_to_key >= _NEARLY_ALL * field.with_key
    )


def _regex_rule(column: str, sentence: str, pattern: str) -> dict[str, Any]:
    kwargs = {"column": column, "regex": pattern}
    return _rule("expect_column_values_to_match_regex", kwargs, sentence)


def _null_rule(column: str, sentence: str, good: int, total: int) -> dict[str, Any]:
    kwargs: dict[str, Any] = {"column": column}
    if good < total:
        kwargs["mostly"] = _lower_bound(good, total)
        sentence = f"{sentence}, in {kwargs['mostly']:.0%} of the records"
    return _rule("expect_column_values_to_be_null", kwargs, sentence)


def _lower_bound(good: int, total: int) -> float:
    """Return the lower end of the 95 % interval of a share (Wilson), rounded down to a percent."""
    share, spread = good / total, _Z**2 / total
    root = _Z * sqrt(share * (1 - share) / total + spread / (4 * total))
    return floor(100 * (share + spread / 2 - root) / (1 + spread)) / 100


def _rule(kind: str, kwargs: Mapping[str, Any], sentence: str) -> dict[str, Any]:
    return {
        "type": kind,
        "kwargs": dict(kwargs),
        "severity": "warning",
        "description": sentence,
    }


def _checks(profile: Profile) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield limits of built-in checks: twice the share in the sample, or its 95 % interval."""
    shares = {
        "null_key_percent": profile.records - profile.with_key,
        "null_value_percent": profile.tombstones,
    }
    for name, without in shares.items():
        if profile.records >= MIN_VALUES and without < profile.records / 2:
            lower = _lower_bound(profile.records - without, profile.records)
            twice = ceil(100 * 2 * without / profile.records)
            limit = max(twice, 100 - round(100 * lower)) if without else 0
            yield name, {"limit": limit, "severity": "warning"}


def _notes(profile: Profile, fields: list[FieldProfile], content: _Content | None) -> str:
    notes = f"Drafted from {counted(profile.records, 'record')}, the newest of each partition. "
    if fields:
        left_out = [name for name in profile.fields if name not in {each.name for each in fields}]
        if left_out:
            notes += (
                f"No rules for {counted(len(left_out), 'field')}: nested, always null, or with a "
                "name that is not a plain identifier. "
            )
        if profile.values < MIN_VALUES:
            notes += f"Rules need {MIN_VALUES} values, so run the command again later. "
        elif content:
            notes += content.note
    elif profile.values and not content:
        notes += (
            "The suite has no rules about fields, because the values are Protobuf, or have unknown "
            "schemas or several formats. Row rules (`decode.rules`) apply to the decoded records. "
        )
    elif profile.values and content:
        notes += (
            f"{profile.objects:,} of {profile.values:,} values are {content.objects}, so the suite "
            "has no rules about fields. "
        )
    return (
        f"{notes}The rules contain sampled values, also of blocked plans. "
        "Edit every rule, and make rules that must hold critical."
    )
