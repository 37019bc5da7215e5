"""Tests of the application object: settings, connections, Spark settings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PROJECT
from tests.support.plans import append_events, make_plan
from tidemark.app.app import App
from tidemark.app.run import applications
from tidemark.app.steps import offsets_of
from tidemark.core.errors import InvalidReference, SetupError
from tidemark.core.events import Planned
from tidemark.core.plan import PlanRef
from tidemark.delta.data_table import DeltaDataTable
from tidemark.kafka.errors import EmbeddedBrokerStopped, InvalidConnection
from tidemark.spark.settings import SHORT_RUN_RECORDS
from tidemark.spark.submit import application_name
from tidemark.spec.errors import SpecError, UnknownPipeline
from tidemark.spec.model import PipelineSpec

SECRET = "do-not-tell"


def app(**environ: str) -> App:
    return App(environ=environ)


def with_connection(value: Any) -> App:
    """Return an app with one Kafka connection, as JSON unless it is a text."""
    text = value if isinstance(value, str) else json.dumps(value)
    return app(AIRFLOW_CONN_KAFKA_DEFAULT=text)


# -- folders -------------------------------------------------------------------------------------


def test_folders_default_to_the_checkout() -> None:
    layout = app().layout
    assert layout.project == PROJECT
    assert layout.home == PROJECT / ".tidemark"
    assert layout.control_table == f"{PROJECT}/.tidemark/lakehouse/control/offset_ranges"


def test_folders_follow_the_environment(tmp_path: Path) -> None:
    """All homes share the jars of the checkout."""
    layout = app(TIDEMARK_HOME=str(tmp_path), TIDEMARK_LAKEHOUSE="s3://lake").layout
    assert layout.home == tmp_path
    assert layout.spark_jars == PROJECT / ".tidemark" / "jvm" / "spark"
    assert layout.control_table == "s3://lake/control/offset_ranges"
    assert layout.data_table("bronze/prices") == "s3://lake/bronze/prices"
    assert layout.data_table("s3://other/prices") == "s3://other/prices"
    assert layout.data_table("/data/prices") == "/data/prices"


@pytest.mark.parametrize("uri", ["s3://AKID:SECRET@lake", "s3://lake?token=SECRET"])
def test_a_lakehouse_with_credentials_is_refused_without_showing_them(uri: str) -> None:
    """Errors, logs, events and pages contain the locations of tables."""
    with pytest.raises(SetupError) as refused:
        _ = app(TIDEMARK_LAKEHOUSE=uri).specs
    assert "TIDEMARK_LAKEHOUSE" in str(refused.value)
    assert "SECRET" not in f"{refused.value} {refused.value.as_record()}"


def test_a_lakehouse_path_may_have_spaces_and_a_uri_may_not(tmp_path: Path) -> None:
    """PyArrow cannot parse such a URI. Without the check, an ingest fails after its plan."""
    assert app(TIDEMARK_LAKEHOUSE=str(tmp_path / "my lake")).layout.lakehouse.endswith("my lake")
    with pytest.raises(SetupError, match="without spaces"):
        _ = app(TIDEMARK_LAKEHOUSE="s3://bucket/my lake").specs


def test_specs_are_read_from_the_folder_in_the_environment(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("name: mine\ntopic: t\nschedule: '@daily'\n")
    assert list(app(TIDEMARK_PIPELINES=str(tmp_path)).specs) == ["mine"]
    with pytest.raises(SpecError, match="no such folder"):
        _ = app(TIDEMARK_PIPELINES=str(tmp_path / "none")).specs


def test_the_property_of_an_upsert_table_refuses_another_recorded_spec(tmp_path: Path) -> None:
    """`other` has typed events and names the upsert table of `events`."""
    own = (
        "name: events\ntopic: t\nschedule: '@daily'\ndecode: {value: {format: string}, upsert: {}}"
    )
    (tmp_path / "events.yaml").write_text(own)
    (tmp_path / "other.yaml").write_text(
        "name: other\ntopic: t\nschedule: '@daily'\n"
        "decode: {value: {format: string}, target: silver/events_latest}"
    )
    mine = app(TIDEMARK_PIPELINES=str(tmp_path), TIDEMARK_HOME=str(tmp_path / "home"))
    for name in ("events@typed", "other@typed"):
        append_events(mine.control, name, Planned(plan=make_plan((0, 0, 1), pipeline=name)))
    DeltaDataTable(mine.layout.data_table("silver/events_latest")).prepare("events@upsert")
    assert (list(mine.specs), list(mine.spec_folder.broken)) == (["events"], ["other"])


def test_a_broken_spec_does_not_prevent_the_use_of_others(tmp_path: Path) -> None:
    """An unknown name may be the name in the broken file."""
    (tmp_path / "good.yaml").write_text("name: good\ntopic: t\nschedule: '@daily'\n")
    (tmp_path / "bad.yaml").write_text("name: misnamed\ntopic: t\nschedule: '@daily'\n")
    mine = app(TIDEMARK_PIPELINES=str(tmp_path))
    assert mine.spec("good").topic == "t"
    assert mine.data_tables() == ["good"]
    for name in ("bad", "misnamed"):
        with pytest.raises(SpecError, match=r"bad\.yaml: name: found 'misnamed', expected 'bad'"):
            mine.spec(name)


def test_a_table_of_a_pipeline_is_maintained_alone(tmp_path: Path) -> None:
    """The name of the pipeline stands for all its tables."""
    text = "name: a\ntopic: t\nschedule: '@daily'\ndecode: {value: {format: string}, upsert: {}}"
    (tmp_path / "a.yaml").write_text(text)
    mine = app(TIDEMARK_PIPELINES=str(tmp_path))
    assert mine.data_tables("a") == ["a", "a@typed", "a@quarantine", "a@upsert"]
    assert mine.data_tables("a@upsert", "a@typed") == ["a@upsert", "a@typed"]


def test_the_error_of_an_unknown_pipeline_lists_the_known_ones() -> None:
    for name in ("prices@", "prices@july", "nope@typed"):
        with pytest.raises((UnknownPipeline, InvalidReference)):
            app().spec(name)
    with pytest.raises(UnknownPipeline, match="orders, prices, prices_strategy, streams_intro"):
        app().spec("price")


# -- connections ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        {"conn_type": "kafka", "extra": {"bootstrap.servers": "one:9092", "group.id": "x"}},
        {"conn_type": "kafka", "extra": '{"bootstrap.servers": "one:9092"}'},
    ],
)
def test_the_extra_of_a_connection_may_be_an_object_or_text(value: Any) -> None:
    config = with_connection(value).connections.kafka_config("kafka_default")
    assert config == {"bootstrap.servers": "one:9092"}


def test_bootstrap_servers_have_one_spelling() -> None:
    """Two connections to a cluster can spell its servers differently."""
    text = "PLAINTEXT://One:9093, two,three:9092"
    connection = {"conn_type": "kafka", "extra": {"bootstrap.servers": text}}
    found = with_connection(connection).connections.addresses("kafka_default")
    assert found == {"one:9093", "two:9092", "three:9092"}


def test_the_error_of_a_missing_connection_names_its_variable() -> None:
    with pytest.raises(InvalidConnection, match="AIRFLOW_CONN_KAFKA_OTHER"):
        app().connections.kafka_config("kafka_other")


def test_the_error_of_a_stopped_embedded_broker_names_the_command_that_starts_it() -> None:
    """The broker needs no definition, so the error does not ask for one first."""
    with pytest.raises(EmbeddedBrokerStopped) as stopped:
        app().connections.kafka_config("kafka_default")
    assert "`tidemark broker start`" in stopped.value.rendered("fix").partition(".")[0]


@pytest.mark.parametrize(
    "value",
    [
        "",
        f"kafka://reader:{SECRET}@broker:9092",
        f'{{"extra": {{"sasl.password": "{SECRET}"',
        {"conn_type": "kafka", "password": SECRET},
        {"extra": SECRET},
        {"extra": None, "password": SECRET},
        {"extra": [SECRET]},
        {"extra": f'["{SECRET}"]'},
        {"extra": f'"{SECRET}"'},
        {"extra": 5},
        [SECRET],
    ],
)
def test_the_error_of_a_malformed_connection_contains_no_value(value: Any) -> None:
    """Its cause is suppressed too."""
    with pytest.raises(InvalidConnection) as caught:
        with_connection(value).connections.kafka_config("kafka_default")
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_reading_specs_needs_no_connection() -> None:
    assert app().spec("prices").connection == "kafka_default"


def test_another_table_of_a_pipeline_is_no_pipeline(tmp_path: Path) -> None:
    """Derived tables have no plans."""
    (tmp_path / "events.yaml").write_text(
        "name: events\ntopic: t\nschedule: '@daily'\n"
        "decode: {value: {format: string}, upsert: {}}\n"
    )
    home = app(TIDEMARK_PIPELINES=str(tmp_path))
    for table in ("events@typed", "events@upsert"):
        with pytest.raises(InvalidReference, match=table):
            home.pipeline(table)
        assert home.pipeline_of(table).name == "events"


# -- spark settings ------------------------------------------------------------------------------


def test_a_job_of_few_offsets_uses_the_faster_compiler_of_the_jvm(tmp_path: Path) -> None:
    """A plan that the control table lacks counts as large."""
    app_ = app(TIDEMARK_LAKEHOUSE=str(tmp_path))
    control, spec = app_.control, app_.spec("prices")
    small = make_plan((0, 0, SHORT_RUN_RECORDS), pipeline="prices", sequence=1)
    large = make_plan((1, 0, SHORT_RUN_RECORDS + 1), pipeline="prices", sequence=2)
    append_events(control, "prices", Planned(plan=small), Planned(plan=large))

    def settings(spec: PipelineSpec, *plans: int) -> dict[str, str]:
        refs = [PlanRef(pipeline="prices", sequence=plan) for plan in plans]
        return app_.engines.submit_settings(spec, offsets_of(app_, refs) if refs else None)

    def is_short(*plans: int) -> bool:
        options = settings(spec, *plans)["spark.driver.extraJavaOptions"]
        return "-XX:TieredStopAtLevel=1" in options.split()

    assert [is_short(plan) for plan in (1, 2, 3)] == [True, False, False]
    assert not is_short()
    assert [is_short(1, plan) for plan in (1, 2, 3)] == [False, False, False]
    own = replace(spec, spark={"spark.driver.extraJavaOptions": "-Xint"})
    options = settings(own, 1)["spark.driver.extraJavaOptions"].split()
    assert (options[-1], "-XX:TieredStopAtLevel=1" in options) == ("-Xint", False)


def test_pipelines_with_the_same_spark_settings_share_an_application(tmp_path: Path) -> None:
    sections = {"a": "", "b": "spark: {spark.x: '1', spark.y: '2'}", "c": "",
                "d": "spark: {spark.y: '2', spark.x: '1'}"}  # fmt: skip
    for name, section in sections.items():
        text = f"name: {name}\ntopic: t\nschedule: '@daily'\n{section}\n"
        (tmp_path / f"{name}.yaml").write_text(text)
    plans = [PlanRef(pipeline=name, sequence=1) for name in "abcd"]
    found = applications(app(TIDEMARK_PIPELINES=str(tmp_path)), plans)
    assert [[plan.pipeline for plan in each] for each in found] == [["a", "c"], ["b", "d"]]


def test_the_name_of_an_application_has_the_job_and_one_pipeline() -> None:
    plans = [PlanRef(pipeline=name, sequence=1) for name in ("prices", "orders", "tides")]
    assert application_name("ingest", plans[:1]) == "tidemark-ingest-prices"
    assert application_name("check", plans) == "tidemark-check-prices-and-2-more"
