"""A draft of a spec's section `decode`, from a profile of sampled records.

A person edits the draft and stores it in the spec. A schema inferred in each run would change under
its readers. Each assumption of the draft has its evidence: the number of values that it rests on.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from tidemark.core.errors import TidemarkError
from tidemark.core.plain import plain
from tidemark.draft.profile import Profile
from tidemark.silver.typed.json_types import ENOUGH, MAX_FIELDS, UNKNOWN, TypeCounts
from tidemark.silver.typed.payload_values import avro_columns
from tidemark.silver.typed.registry_answers import RegistryAnswers
from tidemark.spec.decode import DEFAULT_QUARANTINE_PERCENT, Format, Part
from tidemark.spec.fields import FieldType, ListOf, Struct, inner_names, plain_type
from tidemark.spec.schema_limits import MAX_COLUMNS
from tidemark.spec.type_parsing import parse_type
from tidemark.spec.upsert import Envelope

_LONGEST_NAME = 255
"""Characters of a field's name. Longer names are values of a map, and no YAML key."""
_LISTED = 5
"""Maximum schema ids that the evidence of a format lists."""
_CONNECT_FIELDS = {"schema", "payload"}
"""Fields of the values of Connect's JsonConverter with schemas."""
_MARGIN = 1.5
"""Factor from the share of sampled records that do not fit to the limit of the quarantine."""


class NoUsableField(ValueError):
    """The chosen format needs a schema, and no sampled value is an object with a usable field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """A key of a drafted spec, its value, and the sampled records that the value rests on."""

    key: str
    value: str
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeDraft:
    """A draft of the section `decode`.

    Attributes:
        records: Number of records in the sample.
        key: Format of the keys.
        value: Format of the values.
        schema: Fields of the values; None if they are not JSON.
        assumptions: The formats, and the types of the fields by the keys of the spec.
        left_out: Paths of fields that the schema leaves out, each with the reason.
        unfit: Upper bound of the sampled records that would go to quarantine. It does not include
            records that only Spark refuses (see `payload_values`).
        envelope: The structure around the content of the values.
        registry_problem: Why a schema registry did not return the schemas of the values, so that
            their format is unknown; None without a problem.
    """

    records: int
    key: Format
    value: Format
    schema: Struct | None
    assumptions: Sequence[Assumption]
    left_out: Sequence[tuple[str, str]]
    unfit: int
    envelope: Envelope
    registry_problem: TidemarkError | None

    @property
    def quarantine_percent(self) -> int | None:
        """The limit of the quarantine that the sample needs; None if the default is enough."""
        share = _MARGIN * 100 * self.unfit / self.records if self.records else 0
        return None if share <= DEFAULT_QUARANTINE_PERCENT else min(100, math.ceil(share))

    def as_section(self) -> dict[str, Any]:
        """Return the section `decode` of a spec as plain values."""
        value: dict[str, Any] = {"format": str(self.value)}
        if self.schema:
            value["schema"] = plain_type(self.schema)
        section: dict[str, Any] = {"key": {"format": str(self.key)}, "value": value}
        if self.quarantine_percent:
            section["quarantine"] = {"percent": self.quarantine_percent}
        return section

    def as_record(self) -> dict[str, Any]:
        """Return the draft as plain values, for `--json`."""
        return {
            "records": self.records,
            "decode": self.as_section(),
            "assumptions": plain(self.assumptions),
            "left_out": [{"field": path, "why": why} for path, why in self.left_out],
            "unfit": self.unfit,
        }

    def yaml_lines(self) -> Iterator[str]:
        """Yield the section as lines of YAML, with the evidence as comments."""
        evidence = {each.key: f"  # {each.evidence}" for each in self.assumptions}
        yield "decode:"
        if self.unfit:
            share = self.unfit / self.records
            yield (
                f"  # At most {self.unfit:,} of {self.records:,} sampled records ({share:.1%}) do "
                "not fit, and go to quarantine."
            )
        if self.quarantine_percent:
            yield (
                f"  quarantine: {{percent: {self.quarantine_percent}}}  # the default of "
                f"{DEFAULT_QUARANTINE_PERCENT:g} would stop the runs"
            )
        yield "  key:"
        yield f"    format: {self.key}{evidence['decode.key.format']}"
        yield "  value:"
        yield f"    format: {self.value}{evidence['decode.value.format']}"
        # A producer chooses the names of fields, so they are quoted.
        for path, why in self.left_out:
            yield f"    # left out: {path!a} ({why!a})"
        if self.schema:
            yield "    schema:"
            yield from _type_lines(self.schema, "decode.value.schema", evidence, " " * 6)


def draft_decode(profile: Profile, chosen: Format | None = None) -> DecodeDraft:
    """Return a draft for sampled records.

    A format or the type of a field needs the share `ENOUGH` of the payloads or values.

    Args:
        profile: The profile of the records.
        chosen: The format of the values; None if the records decide.

    Raises:
        NoUsableField: The chosen format needs a schema, and no value is an object with a field.
    """
    ids = {part: profile.schema_ids(part) for part in Part}
    answers = profile.answers
    key, key_evidence, unfit_keys = _key_format(profile, ids[Part.KEY], answers)
    is_json = not ids[Part.VALUE] and _is_enough(profile.objects, profile.values)
    if chosen is not None:
        is_json = chosen is Format.JSON
    schema = _SchemaDraft() if is_json else None
    struct = schema.of_fields(profile) if schema else None
    is_too_wide = struct is not None and struct.columns > MAX_COLUMNS
    if is_too_wide:
        struct = None
    value, value_evidence, unfit_values = _value_format(
        profile, ids[Part.VALUE], answers, has_fields=struct is not None, is_too_wide=is_too_wide
    )
    if chosen is Format.JSON and struct is None:
        raise NoUsableField(f"no sampled value has fields for the format json: {value_evidence}")
    if chosen is not None and chosen is not value:
        value = chosen
        value_evidence, unfit_values = _evidence_of_choice(profile, chosen, value_evidence)
    unfit = unfit_keys + unfit_values + (schema.unfit if schema and struct else 0)
    return DecodeDraft(
        records=profile.records,
        key=key,
        value=value,
        schema=struct,
        assumptions=(
            Assumption(key="decode.key.format", value=str(key), evidence=key_evidence),
            Assumption(key="decode.value.format", value=str(value), evidence=value_evidence),
            *(schema.assumptions if schema and struct else ()),
        ),
        left_out=schema.left_out if schema else (),
        unfit=min(unfit, profile.records),
        envelope=_envelope(profile, struct, value, answers, ids[Part.VALUE]),
        registry_problem=answers.problem
        if answers and ids[Part.VALUE] and value is Format.BINARY
        else None,
    )


# -- formats ---------------------------------------------------------------------------------------


def _is_enough(count: int, total: int) -> bool:
    return 0 < ENOUGH * total <= count


_Choice = tuple[Format, str, int]
"""A format, its evidence, and the number of payloads that do not fit it."""


def _key_format(profile: Profile, ids: Counter[int], answers: RegistryAnswers | None) -> _Choice:
    if not profile.with_key:
        return Format.STRING, f"no key in {profile.records:,} records", 0
    if ids:
        malformed = profile.malformed[Part.KEY]
        return _registered_format("keys", ids, profile.with_key, answers, malformed)
    found = _of(profile.text_keys, profile.with_key, "keys", "text")
    if _is_enough(profile.text_keys, profile.with_key):
        return Format.STRING, found, profile.with_key - profile.text_keys
    return Format.BINARY, found, 0


def _value_format(
    profile: Profile,
    ids: Counter[int],
    answers: RegistryAnswers | None,
    *,
    has_fields: bool,
    is_too_wide: bool,
) -> _Choice:
    total = profile.values
    if not total:
        return Format.BINARY, f"no value in {profile.records:,} records, all are tombstones", 0
    if ids:
        return _registered_format("values", ids, total, answers, profile.malformed[Part.VALUE])
    objects = _of(profile.objects, total, "values", "JSON objects")
    if has_fields and _is_enough(profile.objects, total):
        return Format.JSON, objects, total - profile.objects
    is_text = _is_enough(profile.text_values, total)
    evidence = f"{_of(profile.text_values, total, 'values', 'text')}; {objects}"
    if profile.objects:
        evidence += f" ({profile.objects / total:.1%}, and a format needs {ENOUGH:.0%})"
    if profile.objects and _is_enough(profile.objects, total):
        why = f"with more than {MAX_COLUMNS:,} fields" if is_too_wide else "without a usable field"
        evidence = f"{objects}, {why}"
    if is_text:
        return Format.STRING, evidence, total - profile.text_values
    return Format.BINARY, evidence, 0


def _evidence_of_choice(profile: Profile, chosen: Format, found: str) -> tuple[str, int]:
    """Return the evidence for a chosen format, and the number of values that do not fit it."""
    fitting = {
        Format.JSON: profile.objects,
        Format.STRING: profile.text_values,
        Format.BINARY: profile.values,
    }.get(chosen, profile.value_schemas.total())
    return f"chosen; {found}", profile.values - fitting


def _registered_format(
    payloads: str,
    ids: Counter[int],
    total: int,
    answers: RegistryAnswers | None,
    malformed: int,
) -> _Choice:
    """Return the format of payloads with schema ids, by the registry's answers."""
    begin = f"{_of(ids.total(), total, payloads)} begin with a schema id"
    by_id = ", ".join(each for each in Format if each.has_schema_ids)
    if answers is None or not answers.schemas:
        why = "the registry has none of the ids"
        if answers is None:
            why = "no registry was read"
        elif answers.problem is not None:
            why = answers.problem.rendered("problem").removesuffix(".")
        return Format.BINARY, f"{begin}: the format may be {by_id}. {why}", 0
    kinds: Counter[str] = Counter()
    for schema_id, count in ids.items():
        if schema_id in answers.schemas:
            kinds[answers.schemas[schema_id].kind] += count
    ((kind, count),) = kinds.most_common(1)
    formats = [each for each in Format if each.has_schema_ids and each.kind == kind]
    if not formats or not _is_enough(count, total):
        found = ", ".join(f"{each:,} {name}" for name, each in kinds.most_common())
        return Format.BINARY, f"{begin} of several kinds: {found}", 0
    some = sorted(ids)[:_LISTED]
    listed = ", ".join(map(str, some)) + (", ..." if len(ids) > len(some) else "")
    evidence = f"{_of(count, total, payloads)} have a schema of {answers.connection}, id {listed}"
    if malformed:
        evidence += f"; {malformed:,} do not match their schema"
    return formats[0], evidence, total - count + malformed


def _of(count: int, total: int, noun: str, what: str = "") -> str:
    """Return a text such as `506 of 508 values are text` or `all 508 keys`."""
    are = f" are {what}" if what else ""
    if count == total:
        return f"all {total:,} {noun}{are}"
    return f"{count:,} of {total:,} {noun}{are}"


def _envelope(
    profile: Profile,
    struct: Struct | None,
    value: Format,
    answers: RegistryAnswers | None,
    ids: Iterable[int],
) -> Envelope:
    """Return the structure around the content: Debezium's change, or its unwrapped row."""
    if struct:
        return next((each for each in _ENVELOPES if _has_envelope(profile, struct, each)), _NONE)
    if value is not Format.AVRO or answers is None:
        return _NONE
    columns = [avro_columns(answers.schemas[each].text) for each in ids if each in answers.schemas]
    return next(
        (each for each in _ENVELOPES if all(each.fields <= some.keys() for some in columns)), _NONE
    )


_NONE = Envelope.NONE
_ENVELOPES = (Envelope.DEBEZIUM, Envelope.UNWRAPPED)


def _has_envelope(profile: Profile, struct: Struct, envelope: Envelope) -> bool:
    """Whether nearly all objects have the operation of an envelope."""
    path = envelope.path_in(inner_names(struct))
    if path is None or envelope.operation is None:
        return False
    fields = {name: each.types for name, each in profile.fields.items()}
    for name in path:
        fields = fields[name].fields
    return _is_enough(fields[envelope.operation].values, profile.objects)


# -- fields ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _SchemaDraft:
    """The drafted fields, with their evidence.

    Attributes:
        assumptions: The type of each field.
        left_out: See `DecodeDraft`.
        unfit: Number of values that do not fit the type of their field.
    """

    assumptions: list[Assumption] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    unfit: int = 0

    def of_fields(self, profile: Profile) -> Struct | None:
        """Return the schema of the values; None without a usable field."""
        counts = {name: each.types for name, each in profile.fields.items()}
        if counts.keys() == _CONNECT_FIELDS:
            del counts["schema"]
            self.left_out.append(("schema", "Connect's schema, which each record repeats"))
        return self._struct(counts, "")

    def _struct(self, counts: Mapping[str, TypeCounts], path: str) -> Struct | None:
        fields: dict[str, tuple[str, FieldType]] = {}
        for name, each in counts.items():
            field_path = f"{path}.{_step(name)}" if path else _step(name)
            why = _refusal(name) or (
                "the name of another field differs only in case" if name.lower() in fields else ""
            )
            if why:
                self.left_out.append((field_path, why))
                continue
            kind = self._type(each, field_path, "values")
            if kind is not None:
                fields[name.lower()] = (name, kind)
        if not fields and path:
            self.left_out.append((path, "an object without usable fields"))
        return Struct(tuple(fields.values())) if fields else None

    def _type(self, counts: TypeCounts, path: str, noun: str) -> FieldType | None:
        """Return the type of a field without its unknown parts; None if none is left."""
        kind = counts.type_for(ENOUGH)
        if kind == UNKNOWN:
            self.left_out.append((path, "only null values or empty lists"))
            return None
        before = len(self.assumptions)
        if isinstance(kind, ListOf) and counts.elements:
            element = self._type(counts.elements, f"{path}[]", "elements")
            if element is None:
                return None
            kind = ListOf(element)
        elif isinstance(kind, Struct):
            struct = self._struct(counts.fields, path)
            if struct is None:
                return None
            kind = struct
        self.assumptions.insert(before, self._assumption(counts, kind, path, noun))
        return kind

    def _assumption(self, counts: TypeCounts, kind: FieldType, path: str, noun: str) -> Assumption:
        fitting = counts.fitting(kind)
        self.unfit += counts.values - fitting
        evidence = _of(fitting, counts.values, noun)
        if counts.is_map:
            evidence += f", as JSON text: the objects have more than {MAX_FIELDS} different fields"
        elif kind == "string" and len(counts.kinds) > 1:
            evidence += f", of several types: {_by_frequency(counts.kinds)}"
        elif fitting < counts.values:
            others = _by_frequency(
                {
                    each: number
                    for each, number in counts.kinds.items()
                    if not _is_counted(counts, kind, each)
                }
            )
            evidence += f"; quarantine: {others}"
        elif len(counts.kinds) > 1:
            evidence += f": {_by_frequency(counts.kinds)}"
        name = {ListOf: "a list", Struct: "an object"}.get(type(kind), str(kind))
        return Assumption(key=f"decode.value.schema.{path}", value=name, evidence=evidence)


def _is_counted(counts: TypeCounts, kind: FieldType, each: FieldType) -> bool:
    """Whether values of one type fit another type."""
    return TypeCounts(kinds=Counter({each: counts.kinds[each]})).fitting(kind) > 0


def _by_frequency(kinds: Mapping[FieldType, int]) -> str:
    """Return a text such as `300 long, 2 string`, the most frequent type first."""
    return ", ".join(f"{count:,} {kind}" for kind, count in Counter(kinds).most_common())


def _step(name: str) -> str:
    """Return a name as a part of a path, in quotes if it contains a separator of paths."""
    return json.dumps(name) if re.search(r'[.\[\]"]', name) else name


def _refusal(name: str) -> str:
    """Return why a column cannot have a name; an empty text if it can."""
    if len(name) > _LONGEST_NAME:
        return f"a name of more than {_LONGEST_NAME} characters"
    try:
        parse_type({name: "string"})
    except ValueError as error:
        return str(error)
    return ""


# -- YAML ------------------------------------------------------------------------------------------

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _type_lines(kind: Struct, path: str, evidence: Mapping[str, str], indent: str) -> Iterator[str]:
    """Yield the lines of a mapping of fields to their types."""
    for name, each in kind.fields:
        field_path = f"{path}.{_step(name)}"
        head = f"{indent}{_quoted(name)}:"
        yield from _value_lines(head, each, field_path, evidence, indent + "  ")


def _value_lines(
    head: str, kind: FieldType, path: str, evidence: Mapping[str, str], indent: str
) -> Iterator[str]:
    """Yield the line of a key or of a list's dash, and the lines of a nested type."""
    comment = evidence.get(path, "")
    match kind:
        case Struct():
            yield f"{head}{comment}"
            yield from _type_lines(kind, path, evidence, indent)
        case ListOf():
            yield f"{head}{comment}"
            yield from _value_lines(
                f"{indent}-", kind.element, f"{path}[]", evidence, indent + "  "
            )
        case _:
            yield f"{head} {kind}{comment}"


def _quoted(name: str) -> str:
    """Return a name as a key of YAML."""
    if _PLAIN_NAME.fullmatch(name) and yaml.safe_load(name) == name:
        return name
    return str(yaml.safe_dump(name, default_style='"', width=10 * _LONGEST_NAME)).rstrip("\n")
