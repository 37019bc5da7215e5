"""Reads pipeline specs from YAML files. Pydantic parses them and rejects unknown keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from pathlib import Path
from reprlib import Repr
from typing import Annotated, Any, Literal, Self, get_args

from croniter import croniter
from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

from tidemark.core.errors import TidemarkError
from tidemark.core.publication import PublishRule
from tidemark.core.texts import did_you_mean, some_of
from tidemark.core.watermarks import IsolationLevel
from tidemark.spec import bounded_yaml
from tidemark.spec.decode import (
    DEFAULT_QUARANTINE_PERCENT,
    DEFAULT_REGISTRY,
    REST,
    DecodeSpec,
    Format,
    PayloadSpec,
)
from tidemark.spec.errors import Problem, SpecError
from tidemark.spec.fields import Struct, inner_names
from tidemark.spec.layout import Layout, spec_files
from tidemark.spec.model import (
    PIPELINE_NAME,
    SUITE_NAME,
    AlarmRules,
    PipelineSpec,
    StartPolicy,
)
from tidemark.spec.ref import PipelineRef
from tidemark.spec.rule_check import rule_problem
from tidemark.spec.schema_limits import MAX_COLUMNS, MAX_LEVELS, SchemaTooLarge, check_size
from tidemark.spec.targets import target_conflicts, target_problems
from tidemark.spec.type_parsing import InvalidType, TypeProblem, parse_type
from tidemark.spec.upsert import Deletes, Envelope, UpsertSpec


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _StartAt(_Section):
    timestamp: datetime

    @field_validator("timestamp", mode="before")
    @classmethod
    def _is_moment(cls, value: Any) -> datetime:
        """Parse a timestamp. YAML parses an unquoted value to a datetime or a date itself."""
        if isinstance(value, str):
            with suppress(ValueError):
                value = datetime.fromisoformat(value)
        if not isinstance(value, datetime) or value.tzinfo is None:
            raise ValueError("a time with a UTC offset, such as 2026-03-01T00:00:00Z")
        return value


_Start = Annotated[
    Annotated[Literal["earliest", "latest", "none"], Tag("_policy")]
    | Annotated[_StartAt, Tag("_moment")],
    # Selects the form first, so that a mistake in one form is not reported for the other too.
    Discriminator(lambda value: "_moment" if isinstance(value, dict) else "_policy"),
]

_Number = Annotated[int, Field(le=2**62)]
"""A number that Kafka and Delta can store."""
_Minutes = Annotated[int, Field(le=100 * 366 * 24 * 60)]
"""At most a century."""


class _Limits(_Section):
    records_per_run: _Number | None = Field(default=None, ge=1)
    bytes_per_run: _Number | None = Field(default=None, ge=2**20)
    minutes_per_run: _Minutes | None = Field(default=None, ge=1)
    catch_up: bool = False
    records_per_task: _Number = Field(default=1_000_000, ge=1_000)
    bytes_per_task: _Number = Field(default=256 * 2**20, ge=2**20)
    records_per_chunk: _Number = Field(default=10_000_000, ge=1)
    records_per_backfill: _Number = Field(default=100_000_000, ge=1)


class _Alarms(_Section):
    lag_records: _Number | None = Field(default=None, ge=1)
    lag_minutes: _Minutes | None = Field(default=None, ge=1)
    runway_minutes: _Minutes | None = Field(default=None, ge=0)
    stalled_minutes: _Minutes | None = Field(default=None, ge=0)
    quarantined_records: _Number | None = Field(default=None, ge=0)
    deadline_minutes: _Minutes | None = Field(default=None, ge=1)

    def to_rules(self, schedule: str) -> AlarmRules:
        """Return the alarm rules. By default, two missed runs raise an alarm."""
        longest = _longest_wait(schedule)
        two_runs = None if longest is None else 2 * longest + timedelta(hours=1)

        def or_two_runs(minutes: int | None) -> timedelta | None:
            return two_runs if minutes is None else _minutes(minutes)

        return AlarmRules(
            lag_records=self.lag_records,
            lag_time=_minutes(self.lag_minutes),
            runway=or_two_runs(self.runway_minutes),
            stalled=or_two_runs(self.stalled_minutes),
            quarantined_records=self.quarantined_records,
            deadline=_minutes(self.deadline_minutes),
        )


def _minutes(number: int | None) -> timedelta | None:
    """Return a duration; None and 0 mean no limit."""
    return timedelta(minutes=number) if number else None


@cache
def _longest_wait(schedule: str) -> timedelta | None:
    """Return the longest time between two runs; None for a schedule that does not repeat.

    It compares the runs around moments of five weeks, each at a different minute, because nights,
    weekends and months are long waits among short ones. That takes milliseconds, and every command
    loads all specs, so the result is cached.
    """
    if schedule == "@once":
        return None
    if schedule == "@continuous":
        return timedelta(0)
    monday = datetime(2024, 1, 1, tzinfo=UTC)
    times = croniter(schedule, monday, ret_type=datetime)

    def wait_around(moment: datetime) -> timedelta:
        later: datetime = times.get_next(start_time=moment)
        return later - times.get_prev()  # type: ignore[no-any-return]  # croniter ships no types

    return max(wait_around(monday + n * timedelta(hours=6, minutes=11)) for n in range(140))


_CONNECTION = r"^[a-zA-Z0-9_.-]+$"


class _Payload(_Section):
    format: Format = Field(strict=False)
    fields: Any = Field(default=None, alias="schema")
    keep_rest: bool = False

    @field_validator("fields")
    @classmethod
    def _is_schema(cls, value: Any) -> Struct | None:
        if not isinstance(value, dict):
            raise ValueError("a mapping of the fields' names to their types")
        parsed = parse_type(value)
        try:
            check_size(parsed)
        except SchemaTooLarge as large:
            raise ValueError(f"at most {MAX_COLUMNS:,} columns and {MAX_LEVELS} levels") from large
        return parsed if isinstance(parsed, Struct) else None

    @field_validator("keep_rest")
    @classmethod
    def _has_rest(cls, value: bool, others: ValidationInfo) -> bool:
        fields = others.data.get("fields")
        if value and others.data.get("format", Format.JSON) is not Format.JSON:
            raise ValueError(f"the format {Format.JSON}, the only one with unnamed fields")
        if value and fields and REST in {name.lower() for name, _ in fields.fields}:
            raise ValueError(f"a schema without the field {REST}, which keeps the other fields")
        return value

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.format.has_fields != (self.fields is not None):
            rule = "a schema" if self.format.has_fields else "no schema"
            raise ValueError(f"{rule} for the format {self.format}")
        return self

    def to_spec(self) -> PayloadSpec:
        return PayloadSpec(format=self.format, schema=self.fields, keeps_rest=self.keep_rest)


class _Quarantine(_Section):
    records: _Number = Field(default=100, ge=0)
    percent: float = Field(default=DEFAULT_QUARANTINE_PERCENT, ge=0, le=100, strict=False)
    schemas: list[Annotated[int, Field(ge=0, lt=2**31)]] = Field(default_factory=list)


class _Upsert(_Section):
    target: str | None = Field(default=None, min_length=1)
    deletes: Deletes = Field(default=Deletes.SOFT, strict=False)
    envelope: Envelope = Field(default=Envelope.NONE, strict=False)
    deletion_vectors: bool = False

    def to_spec(self, pipeline: str, *, flattens: bool) -> UpsertSpec:
        return UpsertSpec(
            target=self.target or f"silver/{pipeline}_latest",
            deletes=self.deletes,
            envelope=self.envelope,
            flattens=flattens,
            deletion_vectors=self.deletion_vectors,
        )


class _Decode(_Section):
    key: _Payload = _Payload(format=Format.BINARY)
    value: _Payload
    flatten: bool = False
    registry: str = Field(default=DEFAULT_REGISTRY, pattern=_CONNECTION)
    widen: bool = True
    target: str | None = Field(default=None, min_length=1)
    publish: PublishRule = Field(default=PublishRule.CHECKED, strict=False)
    rules: dict[str, str] = Field(default_factory=dict)
    quarantine: _Quarantine = _Quarantine()
    upsert: _Upsert | None = None

    @field_validator("key")
    @classmethod
    def _is_key(cls, value: _Payload) -> _Payload:
        if value.keep_rest:
            raise ValueError("a key without keep_rest, which is a setting of values")
        return value

    @field_validator("flatten")
    @classmethod
    def _has_fields(cls, value: bool, others: ValidationInfo) -> bool:
        of_value = others.data.get("value")
        if value and of_value and of_value.format in (Format.BINARY, Format.STRING):
            raise ValueError(f"false for the format {of_value.format}, whose values have no fields")
        return value

    @field_validator("upsert")
    @classmethod
    def _has_envelope(cls, value: _Upsert | None, others: ValidationInfo) -> _Upsert | None:
        of_value = others.data.get("value")
        if value is None or of_value is None or of_value.format.has_schema_ids:
            return value
        if value.envelope.path_in(inner_names(of_value.fields)) is None:
            names = " and ".join(sorted(value.envelope.fields))
            raise ValueError(
                f"envelope {value.envelope} with {names} in the schema of the value, or in its "
                "field payload"
            )
        return value

    @field_validator("rules")
    @classmethod
    def _are_rules(cls, value: dict[str, str]) -> dict[str, str]:
        if wrong := [name for name in value if not re.fullmatch(SUITE_NAME, name)]:
            raise ValueError(f"rules with names like {SUITE_NAME}, not {_listed(wrong)}")
        return value

    def to_spec(self, pipeline: str) -> DecodeSpec:
        return DecodeSpec(
            key=self.key.to_spec(),
            value=self.value.to_spec(),
            target=self.target or f"silver/{pipeline}",
            publish=self.publish,
            registry=self.registry,
            widens=self.widen,
            refused_schemas=tuple(sorted(set(self.quarantine.schemas))),
            rules=tuple(self.rules.items()),
            max_quarantined=self.quarantine.records,
            max_quarantined_percent=self.quarantine.percent,
            upsert=self.upsert.to_spec(pipeline, flattens=self.flatten) if self.upsert else None,
            flattens=self.flatten,
        )


class _Quality(_Section):
    suite: str | None = Field(default=None, pattern=f"^{SUITE_NAME}$")


class _Spec(_Section):
    """Schema of the YAML file; docs/reference/pipelines.md documents it."""

    name: str = Field(pattern=f"^{PIPELINE_NAME}$")
    description: str = ""
    topic: str = Field(pattern=r"^[a-zA-Z0-9._-]{1,249}$")
    connection: str = Field(default="kafka_default", pattern=_CONNECTION)
    target: str | None = Field(default=None, min_length=1)
    schedule: str
    group: str | None = Field(default=None, pattern=r"^[a-z][a-z0-9_]{0,63}$")
    start: _Start = "none"
    isolation_level: IsolationLevel = Field(default=IsolationLevel.READ_COMMITTED, strict=False)
    limits: _Limits = _Limits()
    decode: _Decode | None = None
    quality: _Quality = _Quality()
    alarms: _Alarms = _Alarms()
    retries: int = Field(default=3, ge=0, le=20)
    tags: list[str] = Field(default_factory=list)
    spark: dict[str, str] = Field(default_factory=dict)

    @field_validator("schedule")
    @classmethod
    def _is_schedule(cls, value: str) -> str:
        if value in _PRESETS or _is_cron(value):
            return value
        raise ValueError(
            f"a cron expression of five fields or one of {', '.join(_PRESETS)}"
            f"{did_you_mean(value, _PRESETS)}"
        )

    @field_validator("spark")
    @classmethod
    def _are_spark_settings(cls, value: dict[str, str]) -> dict[str, str]:
        foreign = [each for each in value if not re.match(r"spark\.(?!kafka\.)", each)]
        if foreign:
            raise ValueError(f"keys that begin with 'spark.', not {_listed(foreign)}")
        if own := [each for each in value if each.startswith("spark.tidemark.")]:
            raise ValueError(f"keys of Spark, not {_listed(own)}")
        return value

    def to_spec(self) -> PipelineSpec:
        if isinstance(self.start, _StartAt):
            start, start_at = StartPolicy.TIMESTAMP, self.start.timestamp
        else:
            start, start_at = StartPolicy(self.start), None
        limits = self.limits
        return PipelineSpec(
            ref=PipelineRef(self.name),
            description=self.description.strip(),
            topic=self.topic,
            connection=self.connection,
            target=self.target or f"bronze/{self.name}",
            schedule=self.schedule,
            group=self.group,
            start=start,
            start_at=start_at,
            isolation_level=self.isolation_level,
            records_per_run=limits.records_per_run,
            bytes_per_run=limits.bytes_per_run,
            time_per_run=_minutes(limits.minutes_per_run),
            catch_up=limits.catch_up,
            records_per_task=limits.records_per_task,
            bytes_per_task=limits.bytes_per_task,
            records_per_chunk=limits.records_per_chunk,
            records_per_backfill=limits.records_per_backfill,
            decode=self.decode.to_spec(self.name) if self.decode else None,
            suite=self.quality.suite,
            alarms=self.alarms.to_rules(self.schedule),
            retries=self.retries,
            tags=tuple(self.tags),
            spark=dict(self.spark),
        )


def _is_cron(value: str) -> bool:
    """Return whether a text is a cron expression of five fields that matches some moment."""
    if len(value) > _LONGEST_CRON or len(value.split()) != 5:
        return False
    try:
        _longest_wait(value)
    except ValueError:
        return False
    return True


_LONGEST_CRON = 200
_PRESETS = ("@once", "@continuous", "@hourly", "@daily", "@weekly", "@monthly", "@yearly")
_MOST_PROBLEMS = 20
"""Maximum number of reported problems of one kind in a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecFolder:
    """The specs of a folder.

    Attributes:
        specs: The valid specs, by name, sorted.
        broken: The error of each other spec, by file name without the extension. If the control
            table cannot be read, contradicting specs have its error.
    """

    specs: Mapping[str, PipelineSpec]
    broken: Mapping[str, TidemarkError]

    def check(self) -> None:
        """Raise SpecError with every problem of every file, unless all specs are valid.

        Raises:
            SpecError: Some files have problems.
            TidemarkError: The control table cannot be read, and some specs contradict each other.
        """
        invalid = [each for each in self.broken.values() if isinstance(each, SpecError)]
        if invalid:
            problems = (problem for error in invalid for problem in error.problems)
            raise SpecError(problems=tuple(problems))
        for unknown in self.broken.values():
            raise unknown


def load_specs(
    folder: Path,
    layout: Layout,
    recorded_pipelines: Callable[[], Collection[str]],
    table_owner: Callable[[str], str | None],
) -> SpecFolder:
    """Read every spec in a folder. A broken file does not affect the other specs.

    If specs contradict each other, the pipelines in the control table are valid, and the others are
    broken. So a new spec cannot stop an existing pipeline. The control table is read only after
    a contradiction, because Airflow loads the specs at each parse of the DAG files. Data tables are
    read only if the control table does not decide. If a data table cannot be read, the specs that
    it decides about are refused with its error; for the control table, every contradicting spec.

    Args:
        folder: Contains one YAML file for each pipeline.
        layout: Has the quality suites that specs name, and the locations of tables.
        recorded_pipelines: Returns the texts of all pipelines in the control table.
        table_owner: Returns the property `tidemark.pipeline` of the table at a location; None
            without a table.

    Raises:
        SpecError: The folder does not exist.
    """
    if not folder.is_dir():
        missing = Problem.of(folder, "(folder)", "a folder of YAML files", "no such folder")
        raise SpecError(problems=(missing,))
    problems: list[Problem] = []
    found: dict[Path, PipelineSpec] = {}
    for path in spec_files(folder):
        spec, of_file = _load(path)
        problems += of_file
        if spec:
            found[path] = spec
            problems += _file_problems(path, spec, layout.expectations)
    problems += _repeated_names(found)
    problems += target_problems(found, layout)
    invalid = {problem.file for problem in problems}
    conflicts = _conflicts(found, layout, recorded=(), table_owner=lambda *_: None, invalid=invalid)
    unknown: dict[str, TidemarkError] = {}

    def owner(location: str, files: Collection[Path]) -> str | None:
        try:
            return table_owner(location)
        except TidemarkError as unreadable:
            unknown.update((file.stem, unreadable) for file in files)
            return None

    if conflicts:
        try:
            recorded = recorded_pipelines()
        except TidemarkError as unreadable:
            unknown = {Path(problem.file).stem: unreadable for problem in conflicts}
        else:
            problems += _conflicts(
                found, layout, recorded=recorded, table_owner=owner, invalid=invalid
            )
    by_stem: dict[str, list[Problem]] = {}
    for problem in problems:
        by_stem.setdefault(Path(problem.file).stem, []).append(problem)
    broken = {stem: SpecError(problems=tuple(some)) for stem, some in by_stem.items()}
    broken_or_unknown = {**broken, **unknown}
    usable = (spec for path, spec in found.items() if path.stem not in broken_or_unknown)
    return SpecFolder(
        specs={spec.name: spec for spec in sorted(usable, key=lambda spec: spec.name)},
        broken=broken_or_unknown,
    )


def _conflicts(
    found: Mapping[Path, PipelineSpec],
    layout: Layout,
    *,
    recorded: Collection[str],
    table_owner: Callable[[str, Collection[Path]], str | None],
    invalid: Collection[str],
) -> list[Problem]:
    """Return the problems between specs. Arguments as for `target_conflicts`."""
    # The best-known pipelines first.
    by_age = dict(
        sorted(
            found.items(),
            key=lambda each: (
                each[1].name not in recorded or each[0].stem != each[1].name,
                each[0].name in invalid,
            ),
        )
    )
    of_targets = target_conflicts(
        found, layout, recorded=recorded, table_owner=table_owner, invalid=invalid
    )
    return [*of_targets, *_group_problems(by_age, recorded)]


def _load(path: Path) -> tuple[PipelineSpec | None, list[Problem]]:
    """Read one file: its spec, if it has one, and its problems, up to the limit for each kind."""
    try:
        raw, repeated = bounded_yaml.load(path)
    except bounded_yaml.UnusableYaml as refused:
        return None, [Problem.of(path, "(file)", refused.expected, refused.found)]
    problems = [
        Problem.of(path, key, "each key once", f"the key again in line {line}")
        for key, line in repeated[:_MOST_PROBLEMS]
    ]
    if not isinstance(raw, dict):
        return None, [Problem.of(path, "(file)", "a mapping of keys", type(raw).__name__)]
    spec = None
    try:
        spec = _Spec.model_validate(raw).to_spec()
    except ValidationError as invalid:
        found = [
            (error, field)
            for error in invalid.errors(include_url=False)
            for field in _invalid_fields(error)
        ]
        problems += [_from_pydantic(path, *each) for each in found[:_MOST_PROBLEMS]]
        more = len(found) - _MOST_PROBLEMS
        if more > 0:
            problems.append(Problem.of(path, "(file)", "no further problem", f"{more:,} more"))
    return spec, problems


def _listed(names: Sequence[str]) -> str:
    """Return the first names in quotes."""
    return _SHORT.repr([*names])[1:-1]


_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 200
"""Like `repr`, with a limit on the length."""


def _shown(value: Any) -> str:
    """Return a value of a spec for a message: of a mapping only the keys."""
    if isinstance(value, dict) and value:
        return f"a mapping with {_listed([*value])}"
    # YAML parses some texts to dates and times.
    return value.isoformat() if isinstance(value, date) else _SHORT.repr(value)


def _invalid_fields(error: Mapping[str, Any]) -> Sequence[TypeProblem | None]:
    """Return the problem of each field of an invalid schema; None for another error."""
    cause = error.get("ctx", {}).get("error")
    return cause.problems if isinstance(cause, InvalidType) else [None]


def _from_pydantic(path: Path, error: Mapping[str, Any], field: TypeProblem | None) -> Problem:
    location = [str(part) for part in error["loc"] if not str(part).startswith(("literal[", "_"))]
    if field:
        key = ".".join([*location, field.path] if field.path else location)
        found = f"{_shown(field.value)}{field.suggestion}"
        return Problem.of(path, key, field.expected, found)
    key = ".".join(location)
    value = error["input"]
    found = _shown(value)
    match error["type"]:
        case "extra_forbidden":
            section = _section(location[:-1])
            expected = f"one of {some_of(_keys(section))}"
            found = f"unknown key{did_you_mean(location[-1], _keys(section))}"
        case "missing":
            expected, found = "a value", "nothing"
        case "model_type":
            expected = f"a mapping with keys among {some_of(_keys(_section(location)))}"
        case "value_error":
            expected = str(error["ctx"]["error"])
        case "string_pattern_mismatch":
            expected = f"text that matches {error['ctx']['pattern']}"
        case "literal_error" | "enum":
            values = error["ctx"]["expected"]
            expected = f"{values}, or timestamp: TIME" if key == "start" else values
            found += did_you_mean(value, re.findall(r"'([^']*)'", values))
        case _:
            expected = error["msg"].removeprefix("Input should be ").removeprefix("a valid ")
    return Problem.of(path, key, expected, found)


def _keys(section: type[_Section]) -> list[str]:
    return list(_fields(section))


def _fields(section: type[_Section]) -> Mapping[str, FieldInfo]:
    """Return the fields of a section by their keys in a spec."""
    return {field.alias or name: field for name, field in section.model_fields.items()}


def _section(location: Sequence[str]) -> type[_Section]:
    """Return the section of a spec at a location, such as `("decode", "key")`."""
    section: type[_Section] = _Spec
    for key in location:
        section = next(_sections_of(_fields(section)[key].annotation))
    return section


def _sections_of(annotation: Any) -> Iterator[type[_Section]]:
    """Yield the sections among the types of an annotation, such as `_Upsert | None`."""
    if isinstance(annotation, type) and issubclass(annotation, _Section):
        yield annotation
    for part in get_args(annotation):
        yield from _sections_of(part)


def _file_problems(path: Path, spec: PipelineSpec, suites: Path) -> Iterator[Problem]:
    if path.stem != spec.name:
        yield Problem.of(path, "name", f"{path.stem!r}, the file's name", repr(spec.name))
    for name, sql in spec.decode.rules if spec.decode else ():
        if spec.decode and (problem := rule_problem(sql, spec.decode)):
            found = f"{problem}, in {_SHORT.repr(sql)}"
            yield Problem.of(path, f"decode.rules.{name}", "a condition in Spark SQL", found)
    if spec.suite and not (suites / f"{spec.suite}.json").is_file():
        available = sorted(file.stem for file in suites.glob("*.json"))
        expected = f"a suite that exists ({some_of(available) or 'none yet'})"
        found = f"{spec.suite!r}{did_you_mean(spec.suite, available)}"
        yield Problem.of(path, "quality.suite", expected, found)


def _repeated_names(found: Mapping[Path, PipelineSpec]) -> Iterator[Problem]:
    """Yield a problem for each name of another file: the file with this name, or an earlier one."""
    first: dict[str, Path] = {}
    for path, spec in sorted(found.items(), key=lambda each: each[0].stem != each[1].name):
        other = first.setdefault(spec.name, path)
        if other is not path:
            yield Problem.of(
                path, "name", "a name of its own", f"{spec.name!r}, as in {other.name}"
            )


def _group_problems(
    found: Mapping[Path, PipelineSpec], recorded: Collection[str]
) -> Iterator[Problem]:
    """Yield problems of groups: a group has one DAG and one Spark application.

    Args:
        found: Specs by file. An earlier one is valid beside a later one.
        recorded: Names of all pipelines in the control table.
    """
    first: dict[str, tuple[Path, PipelineSpec]] = {}
    for path, spec in found.items():
        if spec.group is None:
            continue
        example, other = first.setdefault(spec.group, (path, spec))
        for key in ("schedule", "spark"):
            wanted, value = getattr(other, key), getattr(spec, key)
            if value != wanted:
                expected = f"{wanted!r}, as in {example.name} of the same group"
                yield Problem.of(path, key, expected, repr(value))
    alone = {spec.dag_id: spec for spec in found.values() if spec.group is None}
    for group, (_, member) in first.items():
        single = alone.get(member.dag_id)
        if single is None:
            continue
        is_group_new = single.name in recorded and member.name not in recorded
        for path, spec in found.items():
            if is_group_new and spec.group == group:
                expected = "a group whose DAG id is not the DAG id of a pipeline"
                yield Problem.of(path, "group", expected, repr(group))
            elif spec is single and not is_group_new:
                expected = "a name whose DAG id is not the DAG id of a group"
                yield Problem.of(path, "name", expected, repr(spec.name))
