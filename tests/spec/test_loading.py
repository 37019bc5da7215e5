"""Valid and invalid spec files; all problems are reported at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from croniter import croniter
from pydantic import BaseModel

from tests.conftest import PROJECT
from tests.support.plans import no_owner
from tidemark.core.errors import TidemarkError
from tidemark.core.publication import PublishRule
from tidemark.core.watermarks import IsolationLevel
from tidemark.spec import loading as specs
from tidemark.spec.decode import DecodeSpec, Format, PayloadSpec
from tidemark.spec.errors import Problem, SpecError, UnknownPipeline
from tidemark.spec.fields import Struct
from tidemark.spec.layout import Layout
from tidemark.spec.loading import SpecFolder, load_specs
from tidemark.spec.model import AlarmRules, PipelineSpec, StartPolicy
from tidemark.spec.ref import PipelineRef
from tidemark.spec.upsert import Deletes, Envelope, UpsertSpec

SHIPPED = Layout(project=PROJECT, home=PROJECT / ".tidemark")
MINIMAL = {"name": "events", "topic": "events", "schedule": "'@hourly'"}


class Folders(NamedTuple):
    """Folders with the specs and suites of a test."""

    specs: Path
    layout: Layout
    recorded: Sequence[str] = ()
    """The pipelines in the control table."""
    owners: Mapping[str, str] = {}
    """The property `tidemark.pipeline` of existing tables, by location below the lakehouse."""

    def folder(self) -> SpecFolder:
        """Return the specs of the folder."""
        owners = {self.layout.data_table(place): owner for place, owner in self.owners.items()}
        return load_specs(self.specs, self.layout, lambda: self.recorded, owners.get)

    def write(self, text: str, file: str = "events.yaml") -> None:
        """Write one spec file."""
        (self.specs / file).write_text(text, encoding="utf-8")

    def spec(self, file: str = "events.yaml", **keys: str) -> None:
        """Write a minimal spec, with these keys."""
        merged = {**MINIMAL, **keys}
        self.write("".join(f"{key}: {value}\n" for key, value in merged.items()), file)

    def load(self) -> dict[str, PipelineSpec]:
        """Return the specs of the folder, all valid."""
        found = self.folder()
        found.check()
        return dict(found.specs)

    def problems(self) -> list[tuple[str, str, str, str]]:
        """Return every problem of the folder: file, key, expected, found."""
        with pytest.raises(SpecError) as caught:
            self.load()
        return [(p.file, p.key, p.expected, p.found) for p in caught.value.problems]

    def problem(self) -> tuple[str, str, str]:
        """Return the only problem of the only file: key, expected, found."""
        ((file, *rest),) = self.problems()
        assert file == "events.yaml"
        key, expected, found = rest
        return key, expected, found


def problems_of(error: TidemarkError) -> Sequence[Problem]:
    """Return the problems of a broken spec."""
    assert isinstance(error, SpecError)
    return error.problems


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    """Empty folders, and one suite."""
    made = Folders(specs=tmp_path / "pipelines", layout=Layout(project=tmp_path, home=tmp_path))
    made.specs.mkdir()
    made.layout.expectations.mkdir(parents=True)
    (made.layout.expectations / "basic.json").write_text("{}")
    return made


# -- valid specs ---------------------------------------------------------------------------------


def test_the_shipped_specs_load() -> None:
    """S22, S23: the tutorial's pipeline, prices, orders, and a second one over prices."""
    found = load_specs(SHIPPED.specs, SHIPPED, list, no_owner)
    found.check()
    specs = found.specs
    topics = {name: spec.topic for name, spec in specs.items()}
    assert topics == {
        "orders": "orders",
        "prices": "prices",
        "prices_strategy": "prices",
        "streams_intro": "streams-intro",
    }
    assert list(specs) == sorted(specs)


def test_a_minimal_spec_has_safe_defaults(folders: Folders) -> None:
    """S8, S9: no default start offset, and no record of an open transaction is read."""
    folders.spec()
    spec = folders.load()["events"]
    assert spec.start is StartPolicy.NONE
    assert spec.isolation_level is IsolationLevel.READ_COMMITTED
    assert spec.target == "bronze/events"
    assert spec.connection == "kafka_default"
    assert (spec.records_per_run, spec.records_per_task) == (None, 1_000_000)
    assert spec.suite is None


def missing_keys(section: type[BaseModel], used: Iterable[str]) -> set[str]:
    """Return the keys of a section that a file does not have."""
    return {field.alias or name for name, field in section.model_fields.items()} - set(used)


@pytest.mark.parametrize(
    ("section", "page", "prefix"),
    [
        (specs._Spec, "reference/pipelines.md", ""),
        (specs._Limits, "reference/pipelines.md", "limits."),
        (specs._Quality, "reference/pipelines.md", "quality."),
        (specs._Alarms, "how-to/alarms.md", ""),
        (specs._Decode, "reference/typed.md", "decode."),
        (specs._Payload, "reference/typed.md", "decode.value."),
        (specs._Quarantine, "reference/typed.md", "decode.quarantine."),
        (specs._Upsert, "how-to/upsert.md", "decode.upsert."),
    ],
)
def test_every_key_is_documented(section: type[BaseModel], page: str, prefix: str) -> None:
    """A row of a table begins with the key, or with the keys of its section."""
    rows = (PROJECT / "docs" / page).read_text(encoding="utf-8").splitlines()
    first = " ".join(row.split(" | ")[0] for row in rows if row.startswith("| `"))
    named = {key.removeprefix(prefix) for key in re.findall(r"`([^`]+)`", first)}
    named |= {key.partition(".")[0] for key in named}
    assert missing_keys(section, named) == set(), f"add a row for each of these keys to docs/{page}"


def test_every_key_reaches_the_spec(folders: Folders) -> None:
    """The file of this test has all keys; a new key needs a line in it."""
    text = """
name: events
description: |
  All of them.
topic: raw.events-1
connection: kafka_other
target: s3://lake/events
schedule: "*/5 9-17 * * mon-fri"
group: raw
start: latest
isolation_level: read_uncommitted
limits:
  records_per_run: 5000
  bytes_per_run: 3000000
  minutes_per_run: 20
  catch_up: true
  records_per_task: 1000
  bytes_per_task: 2000000
  records_per_chunk: 2000
  records_per_backfill: 3000
quality: {suite: basic}
alarms:
  lag_records: 7
  lag_minutes: 8
  runway_minutes: 9
  stalled_minutes: 0
  quarantined_records: 0
  deadline_minutes: 10
retries: 0
tags: [one, two]
spark: {spark.executor.memory: 2g}
"""
    used = yaml.safe_load(text)
    # Another test covers the section `decode`.
    assert missing_keys(specs._Spec, used) == {"decode"}
    assert missing_keys(specs._Limits, used["limits"]) == set()
    assert missing_keys(specs._Quality, used["quality"]) == set()
    assert missing_keys(specs._Alarms, used["alarms"]) == set()
    folders.write(text)
    spec = folders.load()["events"]
    assert spec == PipelineSpec(
        ref=PipelineRef("events"),
        description="All of them.",
        topic="raw.events-1",
        connection="kafka_other",
        target="s3://lake/events",
        schedule="*/5 9-17 * * mon-fri",
        group="raw",
        start=StartPolicy.LATEST,
        isolation_level=IsolationLevel.READ_UNCOMMITTED,
        records_per_run=5000,
        bytes_per_run=3_000_000,
        time_per_run=timedelta(minutes=20),
        catch_up=True,
        records_per_task=1000,
        bytes_per_task=2_000_000,
        records_per_chunk=2000,
        records_per_backfill=3000,
        suite="basic",
        alarms=AlarmRules(
            lag_records=7,
            lag_time=timedelta(minutes=8),
            runway=timedelta(minutes=9),
            stalled=None,
            quarantined_records=0,
            deadline=timedelta(minutes=10),
        ),
        retries=0,
        tags=("one", "two"),
        spark={"spark.executor.memory": "2g"},
    )


@pytest.mark.parametrize(
    ("schedule", "hours"),
    [
        ("'@hourly'", 3),
        ("'@daily'", 49),
        ("0 6 * * mon-fri", 145),
        ("'*/5 9-17 * * mon-fri'", 127.17),
        ("'@monthly'", 1489),
        ("'@continuous'", 1),
    ],
)
def test_two_missed_runs_are_an_alarm_by_default(
    folders: Folders, schedule: str, hours: float
) -> None:
    """The limit is twice the longest time between two runs, and one hour."""
    folders.spec(schedule=schedule)
    alarms = folders.load()["events"].alarms
    assert alarms.stalled == alarms.runway
    assert alarms.stalled is not None
    assert abs(alarms.stalled - timedelta(hours=hours)) < timedelta(minutes=1)
    assert (alarms.lag_records, alarms.lag_time, alarms.deadline) == (None, None, None)


def test_specs_that_share_a_schedule_compute_its_longest_wait_once(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command and every parse of a DAG file loads all specs."""
    made: list[str] = []

    class Counted(croniter):  # type: ignore[misc]  # croniter ships no types
        def __init__(self, expression: str, *args: Any, **kwargs: Any) -> None:
            made.append(expression)
            super().__init__(expression, *args, **kwargs)

    monkeypatch.setattr(specs, "croniter", Counted)
    for number in range(30):
        folders.spec(f"events_{number}.yaml", name=f"events_{number}", schedule="17 */3 * * *")
    loaded = folders.load()
    assert {spec.alarms.stalled for spec in loaded.values()} == {timedelta(hours=7)}
    assert len(made) == 1


def test_a_pipeline_that_runs_once_has_no_default_alarm(folders: Folders) -> None:
    """There is no next run."""
    folders.spec(schedule="'@once'")
    alarms = folders.load()["events"].alarms
    assert (alarms.stalled, alarms.runway) == (None, None)


@pytest.mark.parametrize(
    "written",
    [
        "2026-03-01T00:00:00Z",
        "2026-03-01 00:00:00+00:00",
        "'2026-03-01T00:00:00Z'",
        "2026-03-01T02:00:00+02:00",
        "'2026-03-01T02:00:00.000+02:00'",
    ],
)
def test_s9_a_start_timestamp_may_be_quoted_or_not(folders: Folders, written: str) -> None:
    """YAML parses an unquoted timestamp itself, with its UTC offset."""
    folders.spec(start=f"{{timestamp: {written}}}")
    spec = folders.load()["events"]
    assert spec.start is StartPolicy.TIMESTAMP
    assert spec.start_at == datetime(2026, 3, 1, tzinfo=UTC)
    assert spec.start_at.utcoffset() in (timedelta(0), timedelta(hours=2))


def test_s13_two_pipelines_may_read_one_topic(folders: Folders) -> None:
    """Consumers are independent; only name and target must differ."""
    folders.spec()
    folders.spec("copy.yaml", name="copy")
    assert set(folders.load()) == {"copy", "events"}


def test_no_spec_is_no_problem(folders: Folders) -> None:
    """An empty folder is valid."""
    assert folders.load() == {}


# -- invalid specs -------------------------------------------------------------------------------


def test_unknown_keys_are_refused_and_the_valid_ones_listed(folders: Folders) -> None:
    """This holds for the file and for every section."""
    folders.spec(topics="x", limits="{per_run: 5}", quality="{suit: basic}", start="{offset: 5}",
                 alarms="{lag: 5}")  # fmt: skip
    found = {key: expected for _, key, expected, _ in folders.problems()}
    assert set(found) == {"topics", "limits.per_run", "quality.suit", "alarms.lag",
                          "start.offset", "start.timestamp"}  # fmt: skip
    assert found["alarms.lag"] == (
        "one of lag_records, lag_minutes, runway_minutes, stalled_minutes, quarantined_records, "
        "deadline_minutes"
    )
    assert found["topics"] == (
        "one of name, description, topic, connection, target, schedule, group, start, "
        "isolation_level, limits, decode, quality, alarms, retries, tags, spark"
    )
    assert found["limits.per_run"] == (
        "one of records_per_run, bytes_per_run, minutes_per_run, catch_up, records_per_task, "
        "bytes_per_task, records_per_chunk, records_per_backfill"
    )
    assert found["quality.suit"] == "one of suite"
    assert found["start.offset"] == "one of timestamp"


@pytest.mark.parametrize(
    ("keys", "key", "expected", "found"),
    [
        ({"name": "Events"}, "name", "text that matches ^[a-z][a-z0-9_]{0,63}$", "'Events'"),
        ({"topic": "a b"}, "topic", "text that matches ^[a-zA-Z0-9._-]{1,249}$", "'a b'"),
        ({"topic": "5"}, "topic", "string", "5"),
        ({"retries": "'3'"}, "retries", "integer", "'3'"),
        ({"retries": "true"}, "retries", "integer", "True"),
        ({"retries": "21"}, "retries", "less than or equal to 20", "21"),
        ({"tags": "one"}, "tags", "list", "'one'"),
        ({"tags": "[1]"}, "tags.0", "string", "1"),
        ({"limits": "5"}, "limits", "a mapping with keys among records_per_run, bytes_per_run, "
         "minutes_per_run, catch_up, records_per_task, bytes_per_task, records_per_chunk, "
         "records_per_backfill", "5"),
        ({"limits": "{records_per_run: many}"}, "limits.records_per_run", "integer", "'many'"),
        ({"limits": "{records_per_task: 999}"}, "limits.records_per_task",
         "greater than or equal to 1000", "999"),
        ({"limits": "{records_per_run: 0}"}, "limits.records_per_run",
         "greater than or equal to 1", "0"),
        ({"spark": "{executor.cores: '2'}"}, "spark",
         "keys that begin with 'spark.', not 'executor.cores'", "a mapping with 'executor.cores'"),
        ({"spark": "{spark.kafka.a: '2', executor.cores: '2'}"}, "spark",
         "keys that begin with 'spark.', not 'spark.kafka.a', 'executor.cores'",
         "a mapping with 'spark.kafka.a', 'executor.cores'"),
        ({"decode": "{value: {format: json, schema: {a: long}}, rules: {A b: a > 1, c-d: a > 2}}"},
         "decode.rules", "rules with names like [a-z][a-z0-9_]{0,63}, not 'A b', 'c-d'",
         "a mapping with 'A b', 'c-d'"),
        ({"spark": "{spark.executor.cores: 2}"}, "spark.spark.executor.cores", "string", "2"),
        ({"isolation_level": "committed"}, "isolation_level",
         "'read_committed' or 'read_uncommitted'",
         "'committed' (did you mean 'read_committed'?)"),
        ({"schedule": ""}, "schedule", "string", "None"),
    ],
)  # fmt: skip
def test_an_invalid_value_is_reported_with_the_expected_one(
    folders: Folders, keys: dict[str, str], key: str, expected: str, found: str
) -> None:
    """One mistake is one problem."""
    folders.spec(**keys)
    problems = [problem for problem in folders.problems() if problem[1] == key]
    assert problems == [("events.yaml", key, expected, found)]


@pytest.mark.parametrize(
    "schedule",
    ["every day", "'* * * *'", "'* * * * x'", "'* * * * * *'", "'61 * * * *'", "'@sometimes'"],
)
def test_a_schedule_that_airflow_would_refuse_is_refused(folders: Folders, schedule: str) -> None:
    """The message contains both valid forms."""
    folders.spec(schedule=schedule)
    key, expected, found = folders.problem()
    assert key == "schedule"
    assert expected.startswith("a cron expression of five fields or one of @once")
    assert found == repr(schedule.strip("'"))


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("2026-03-01T00:00:00", "2026-03-01T00:00:00"),
        ("2026-03-01", "2026-03-01"),
        ("'2026-03-01T00:00:00'", "'2026-03-01T00:00:00'"),
        ("yesterday", "'yesterday'"),
        ("1767225600", "1767225600"),
        ("", "None"),
    ],
)
def test_s9_a_start_timestamp_without_a_utc_offset_is_refused(
    folders: Folders, written: str, found: str
) -> None:
    """Local times are ambiguous, and a date is a whole day."""
    folders.spec(start=f"{{timestamp: {written}}}")
    assert folders.problem() == (
        "start.timestamp",
        "a time with a UTC offset, such as 2026-03-01T00:00:00Z",
        found,
    )


@pytest.mark.parametrize("written", ["sometimes", "5", "", "[earliest]"])
def test_s9_an_unknown_start_policy_is_one_problem(folders: Folders, written: str) -> None:
    """The message lists all valid values."""
    folders.spec(start=written)
    key, expected, _ = folders.problem()
    assert key == "start"
    assert expected == "'earliest', 'latest' or 'none', or timestamp: TIME"


def test_missing_keys_are_all_named(folders: Folders) -> None:
    """An empty mapping lacks all keys without a default."""
    folders.write("{}")
    assert [problem[1:] for problem in folders.problems()] == [
        (key, "a value", "nothing") for key in ("name", "topic", "schedule")
    ]


def test_a_suite_must_exist(folders: Folders) -> None:
    """The suites that exist are listed."""
    folders.spec(quality="{suite: no_such}")
    assert folders.problem() == ("quality.suite", "a suite that exists (basic)", "'no_such'")


def test_a_spec_with_another_name_than_its_file_is_refused(folders: Folders) -> None:
    """A name leads to its file."""
    folders.spec(name="other")
    assert folders.problem() == ("name", "'events', the file's name", "'other'")


def test_a_repeated_key_is_refused(folders: Folders) -> None:
    """YAML would use the last one, in the file and in sections."""
    folders.write(
        "name: events\ntopic: events\nschedule: '@daily'\ntopic: others\n"
        "limits:\n  records_per_run: 100\n  records_per_run: 200\n"
    )
    assert folders.problems() == [
        ("events.yaml", "topic", "each key once", "the key again in line 4"),
        ("events.yaml", "records_per_run", "each key once", "the key again in line 7"),
    ]


@pytest.mark.parametrize("text", ["topic: [", "schedule: @daily", "a: b: c", "\tname: x"])
def test_invalid_yaml_is_reported_with_its_line(folders: Folders, text: str) -> None:
    """An unquoted @daily is a common mistake."""
    folders.write(text)
    key, expected, found = folders.problem()
    assert (key, expected) == ("(file)", "YAML")
    assert "line 1" in found or "line 2" in found


@pytest.mark.parametrize(("text", "found"), [("", "NoneType"), ("- a", "list"), ("text", "str")])
def test_a_file_that_is_no_mapping_is_refused(folders: Folders, text: str, found: str) -> None:
    """Covers an empty file, a list and a text."""
    folders.write(text)
    assert folders.problem() == ("(file)", "a mapping of keys", found)


def test_a_file_that_is_not_utf8_is_refused(folders: Folders) -> None:
    """The error is a problem of the file, not a crash."""
    (folders.specs / "events.yaml").write_bytes(b"name: \xff\xfe")
    assert folders.problem()[:2] == ("(file)", "YAML")


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    """Otherwise a mistyped folder would be an empty project."""
    with pytest.raises(SpecError, match="no such folder"):
        load_specs(tmp_path / "none", SHIPPED, list, no_owner)


def test_an_invalid_spec_does_not_affect_the_others(folders: Folders) -> None:
    """If specs contradict each other, those in the control table are valid."""
    folders = folders._replace(recorded=("events",))
    folders.spec()
    folders.spec("a.yaml", name="a", retries="many")
    folders.write("name: [", "b.yaml")
    folders.spec("later.yaml", name="later", target="bronze/events")
    folders.spec("inner.yaml", name="inner", target="bronze/events/sub")
    folders.spec("twice.yaml", name="twice")
    folders.spec("twice.yml", name="twice", target="bronze/elsewhere")
    found = folders.folder()
    assert list(found.specs) == ["events"]
    assert sorted(found.broken) == ["a", "b", "inner", "later", "twice"]
    (problem,) = problems_of(found.broken["later"])
    assert (problem.file, problem.key) == ("later.yaml", "target")
    (problem,) = problems_of(found.broken["twice"])
    assert (problem.file, problem.found) == ("twice.yml", "'twice', as in twice.yaml")


TYPE = (
    "one of string, boolean, integer, long, double, date, timestamp, decimal(p,s), a mapping of "
    "fields, or a list with one type"
)


def test_every_wrong_type_of_a_schema_is_reported_with_its_path(folders: Folders) -> None:
    """The rest of the schema is not part of the error."""
    schema = (
        "{id: bigint, ok: long, legs: [{price: doubel, at: datetime}], tags: [string, long], "
        "'a b': string, ID: string, empty: {}, none: }"
    )
    folders.spec(
        decode=f"{{key: {{format: json, schema: {{k: int}}}}, "
        f"value: {{format: json, schema: {schema}}}}}"
    )
    value = "decode.value.schema"
    assert [each[1:] for each in folders.problems()] == [
        ("decode.key.schema.k", TYPE, "'int' (did you mean 'integer'?)"),
        (f"{value}.id", TYPE, "'bigint' (did you mean 'long'?)"),
        (f"{value}.legs[].price", TYPE, "'doubel' (did you mean 'double'?)"),
        (f"{value}.legs[].at", TYPE, "'datetime' (did you mean 'timestamp'?)"),
        (
            *(f"{value}.tags", "a list with one type, the type of its elements"),
            "['string', 'long']",
        ),
        (value, "field names without spaces or any of ,;{}()=`", "'a b'"),
        (value, "field names that differ in more than case", "'ID'"),
        (f"{value}.empty", "at least one field", "{}"),
        (f"{value}.none", TYPE, "None"),
    ]


def test_a_schema_of_a_format_without_fields_is_not_printed(folders: Folders) -> None:
    schema = "{secret_field: long}"
    folders.spec(decode=f"{{value: {{format: avro, schema: {schema}}}}}")
    key, expected, found = folders.problem()
    assert (key, expected) == ("decode.value", "no schema for the format avro")
    assert found == "a mapping with 'format', 'schema'"


def test_many_wrong_types_make_a_short_error(folders: Folders) -> None:
    fields = ", ".join(f"f{number}: bigint" for number in range(500))
    folders.spec(decode=f"{{value: {{format: json, schema: {{{fields}}}}}}}")
    problems = folders.problems()
    assert (len(problems), problems[-1][3]) == (21, "480 more")


def test_all_problems_of_all_files_are_reported_at_once(folders: Folders) -> None:
    """One command shows everything to fix."""
    folders.spec("a.yaml", name="a", retries="many", wrong="1", schedule="never")
    folders.write("name: [", "b.yaml")
    folders.spec("c.yaml", name="d", quality="{suite: gone}")
    folders.spec("e.yaml", name="e", target="bronze/d")
    assert {(file, key) for file, key, _, _ in folders.problems()} == {
        ("a.yaml", "retries"),
        ("a.yaml", "wrong"),
        ("a.yaml", "schedule"),
        ("b.yaml", "(file)"),
        ("c.yaml", "name"),
        ("c.yaml", "quality.suite"),
        ("c.yaml", "target"),
    }
    with pytest.raises(SpecError) as caught:
        folders.load()
    assert "7 problems" in str(caught.value)
    assert "a.yaml: retries: found 'many', expected integer" in str(caught.value)


# -- groups --------------------------------------------------------------------------------------


def test_pipelines_may_share_a_group(folders: Folders) -> None:
    """Schedule and Spark settings are equal; all other keys may differ."""
    for name in ("one", "two"):
        folders.spec(f"{name}.yaml", name=name, group="tides", spark="{spark.x: '1'}", retries="2")
    folders.spec("three.yaml", name="three", schedule="'@daily'")
    assert {name: spec.group for name, spec in folders.load().items()} == {
        "one": "tides",
        "two": "tides",
        "three": None,
    }


def test_a_group_has_one_schedule_and_one_set_of_spark_settings(folders: Folders) -> None:
    """A group has one DAG and one Spark application."""
    folders.spec("one.yaml", name="one", group="tides")
    folders.spec("two.yaml", name="two", group="tides", schedule="'@daily'")
    folders.spec("zoo.yaml", name="zoo", group="tides", spark="{spark.x: '1'}")
    assert folders.problems() == [
        ("two.yaml", "schedule", "'@hourly', as in one.yaml of the same group", "'@daily'"),
        ("zoo.yaml", "spark", "{}, as in one.yaml of the same group", "{'spark.x': '1'}"),
    ]


def test_a_spec_with_a_spark_setting_of_tidemark_is_refused(folders: Folders) -> None:
    """Spark itself accepts any key."""
    folders.spec(spark="{spark.tidemark.logs: /tmp}")
    key, expected, _ = folders.problem()
    assert (key, expected) == ("spark", "keys of Spark, not 'spark.tidemark.logs'")


def test_a_new_member_of_a_group_does_not_stop_recorded_ones(folders: Folders) -> None:
    """Its file sorts first."""
    folders.spec("aaa.yaml", name="aaa", group="tides", schedule="'@daily'")
    folders.spec("one.yaml", name="one", group="tides")
    folders.spec("two.yaml", name="two", group="tides")
    found = folders._replace(recorded=("one", "two")).folder()
    assert (list(found.specs), list(found.broken)) == (["one", "two"], ["aaa"])


def test_a_new_group_does_not_stop_the_pipeline_with_its_dag(folders: Folders) -> None:
    folders.spec("one.yaml", name="one", group="tides")
    folders.spec("group_tides.yaml", name="group_tides")
    found = folders._replace(recorded=("group_tides",)).folder()
    assert list(found.specs) == ["group_tides"]
    (problem,) = problems_of(found.broken["one"])
    assert (problem.key, problem.found) == ("group", "'tides'")


def test_a_pipeline_may_not_be_named_as_a_groups_dag(folders: Folders) -> None:
    """Airflow would show one of the two DAGs."""
    folders.spec("one.yaml", name="one", group="tides")
    folders.spec("group_tides.yaml", name="group_tides")
    ((file, key, _, found),) = folders.problems()
    assert (file, key, found) == ("group_tides.yaml", "name", "'group_tides'")


# -- typed tables --------------------------------------------------------------------------------


def test_every_key_of_a_decoder_reaches_the_spec(folders: Folders) -> None:
    """The file of this test has all keys, each with another value than its default."""
    text = """
name: events
topic: events
schedule: "@daily"
decode:
  key: {format: avro}
  value: {format: json, schema: {after: {id: long}, op: string}, keep_rest: true}
  flatten: true
  registry: registry_other
  widen: false
  target: s3://lake/typed
  publish: always
  rules: {small: offset < 5}
  quarantine: {records: 5, percent: 2.5, schemas: [9, 7, 9]}
  upsert: {target: s3://lake/newest, deletes: hard, envelope: debezium, deletion_vectors: true}
"""
    used = yaml.safe_load(text)["decode"]
    assert missing_keys(specs._Decode, used) == set()
    assert missing_keys(specs._Payload, used["value"]) == set()
    assert missing_keys(specs._Quarantine, used["quarantine"]) == set()
    assert missing_keys(specs._Upsert, used["upsert"]) == set()
    folders.write(text)
    assert folders.load()["events"].decode == DecodeSpec(
        key=PayloadSpec(format=Format.AVRO),
        value=PayloadSpec(
            format=Format.JSON,
            schema=Struct((("after", Struct((("id", "long"),))), ("op", "string"))),
            keeps_rest=True,
        ),
        flattens=True,
        registry="registry_other",
        widens=False,
        target="s3://lake/typed",
        publish=PublishRule.ALWAYS,
        rules=(("small", "offset < 5"),),
        max_quarantined=5,
        max_quarantined_percent=2.5,
        refused_schemas=(7, 9),
        upsert=UpsertSpec(
            target="s3://lake/newest",
            deletes=Deletes.HARD,
            envelope=Envelope.DEBEZIUM,
            flattens=True,
            deletion_vectors=True,
        ),
    )


def test_an_upsert_table_has_safe_defaults(folders: Folders) -> None:
    """No envelope is removed, and no row is deleted, by default."""
    folders.spec(decode="{value: {format: string}, upsert: {}}")
    decode = folders.load()["events"].decode
    assert decode is not None
    assert (decode.registry, decode.widens) == ("schema_registry_default", True)
    assert decode.upsert == UpsertSpec(
        target="silver/events_latest", deletes=Deletes.SOFT, envelope=Envelope.NONE
    )


@pytest.mark.parametrize(
    ("decode", "key", "expected"),
    [
        ("{value: {format: json}}", "decode.value", "a schema for the format json"),
        (
            "{value: {format: string}, flatten: true}",
            "decode.flatten",
            "false for the format string, whose values have no fields",
        ),
        (
            "{value: {format: avro, keep_rest: true}}",
            "decode.value.keep_rest",
            "the format json, the only one with unnamed fields",
        ),
        (
            "{value: {format: json, schema: {_REST: long}, keep_rest: true}}",
            "decode.value.keep_rest",
            "a schema without the field _rest, which keeps the other fields",
        ),
        (
            "{key: {format: json, schema: {n: long}, keep_rest: true}, value: {format: string}}",
            "decode.key",
            "a key without keep_rest, which is a setting of values",
        ),
        (
            "{value: {format: string, schema: {a: long}}}",
            "decode.value",
            "no schema for the format string",
        ),
        (
            "{value: {format: xml}}",
            "decode.value.format",
            "'binary', 'string', 'json', 'avro', 'json_schema' or 'protobuf'",
        ),
        (
            "{value: {format: json, schema: [a]}}",
            "decode.value.schema",
            "a mapping of the fields' names to their types",
        ),
        (
            "{value: {format: string}, rules: {A: value > 0}}",
            "decode.rules",
            "rules with names like [a-z][a-z0-9_]{0,63}, not 'A'",
        ),
        (
            "{value: {format: string}, target: bronze/events}",
            "decode.target",
            "a target that no other table has",
        ),
        ("{key: {format: string}}", "decode.value", "a value"),
        (
            "{value: {format: string}, quaratine: 5}",
            "decode.quaratine",
            "one of key, value, flatten, registry, widen, target, publish, rules, quarantine, "
            "upsert",
        ),
        (
            "{value: {format: json, fields: {n: long}}}",
            "decode.value.fields",
            "one of format, schema, keep_rest",
        ),
        (
            "{value: {format: string}, upsert: {envelop: debezium}}",
            "decode.upsert.envelop",
            "one of target, deletes, envelope, deletion_vectors",
        ),
        (
            "{value: {format: string}, upsert: {deletes: never}}",
            "decode.upsert.deletes",
            "'soft' or 'hard'",
        ),
        (
            "{value: {format: string}, upsert: {envelope: avro}}",
            "decode.upsert.envelope",
            "'none', 'debezium' or 'debezium_unwrapped'",
        ),
        (
            "{value: {format: json, schema: {n: long}}, upsert: {envelope: debezium}}",
            "decode.upsert",
            "envelope debezium with after and op in the schema of the value, or in its field "
            "payload",
        ),
        (
            "{value: {format: string}, upsert: {envelope: debezium_unwrapped}}",
            "decode.upsert",
            "envelope debezium_unwrapped with __deleted in the schema of the value, or in its "
            "field payload",
        ),
        (
            "{value: {format: string}, upsert: {target: silver/events}}",
            "decode.upsert.target",
            "a target that no other table has",
        ),
    ],
)
def test_an_invalid_section_decode_is_reported(
    folders: Folders, decode: str, key: str, expected: str
) -> None:
    """One mistake is one problem."""
    folders.spec(decode=decode)
    assert folders.problem()[:2] == (key, expected)


def test_the_fix_names_the_page_of_the_key(folders: Folders) -> None:
    """Keys of `decode` have a page of their own."""
    folders.spec(decode="{value: {format: xml}}")
    with pytest.raises(SpecError) as refused:
        folders.load()
    fix = "Edit these files as described in docs/reference/typed.md."
    assert refused.value.rendered("fix") == fix
    folders.spec("other.yaml", name="UPPER")
    with pytest.raises(SpecError) as refused:
        folders.load()
    assert "docs/reference/pipelines.md and docs/reference/typed.md" in refused.value.rendered(
        "fix"
    )


def test_the_spec_of_the_readme_defines_the_tables_that_it_lists(folders: Folders) -> None:
    readme = (PROJECT / "README.md").read_text(encoding="utf-8")
    text = readme.partition("```yaml\n")[2].partition("```")[0]
    folders.write(text, "trades.yaml")
    spec = folders.load()["trades"]
    decode = spec.decoding()
    tables = {spec.target, decode.target, decode.quarantine_target, spec.upsert().target}
    assert tables == set(re.findall(r"^- `(\w+/\w+)`: ", readme, re.M))


def test_the_spec_of_a_page_about_a_new_topic_defines_the_tables_that_it_names(
    folders: Folders,
) -> None:
    page = (PROJECT / "docs" / "how-to" / "own-topic.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```yaml\n(# Drafted .*?)^```", page, re.MULTILINE | re.DOTALL)
    folders.write(text, "payments.yaml")
    spec = folders.load()["payments"]
    upsert = spec.decoding().upsert
    assert upsert is not None
    tables = {spec.target, spec.decoding().target, upsert.target}
    assert tables == set(re.findall(r"`((?:bronze|silver)/\w+)`", page))


@pytest.mark.parametrize(
    ("keys", "key", "found"),
    [
        ({"topcs": "x"}, "topcs", "unknown key (did you mean 'topic'?)"),
        ({"Schedule_": "x"}, "Schedule_", "unknown key (did you mean 'schedule'?)"),
        ({"zzz": "x"}, "zzz", "unknown key"),
        ({"limits": "{record_per_run: 5}"}, "limits.record_per_run",
         "unknown key (did you mean 'records_per_run'?)"),
        ({"isolation_level": "read_comitted"}, "isolation_level",
         "'read_comitted' (did you mean 'read_committed'?)"),
        ({"start": "earlist"}, "start", "'earlist' (did you mean 'earliest'?)"),
        ({"quality": "{suite: basik}"}, "quality.suite", "'basik' (did you mean 'basic'?)"),
        ({"decode": "{value: {format: jsn}}"}, "decode.value.format",
         "'jsn' (did you mean 'json'?)"),
    ],
)  # fmt: skip
def test_a_misspelled_key_or_value_suggests_the_similar_one(
    folders: Folders, keys: dict[str, str], key: str, found: str
) -> None:
    """Every command shows the suggestion, because it is part of the problem."""
    folders.spec(**keys)
    assert (key, found) in [(each[1], each[3]) for each in folders.problems()]


def test_a_misspelled_schedule_suggests_the_similar_one(folders: Folders) -> None:
    folders.spec(schedule="'@dayly'")
    assert folders.problem()[1].endswith("(did you mean '@daily'?)")


def test_an_unknown_pipeline_suggests_the_similar_name() -> None:
    """The name may be that of another table."""
    error = UnknownPipeline(pipeline="pries@typed", known=("orders", "prices"))
    assert "No pipeline is named 'pries@typed' (did you mean 'prices'?); the specs" in str(error)
    assert "did you mean" not in str(UnknownPipeline(pipeline="zz", known=("orders",)))
