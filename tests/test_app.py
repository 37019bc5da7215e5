"""Wiring: what the environment says is what the adapters get, and secrets stay out of errors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PROJECT
from tests.support.plans import append_events, make_plan
from tidemark.app import App
from tidemark.core.errors import InvalidSelection
from tidemark.core.events import Planned
from tidemark.core.plan import PlanRef
from tidemark.kafka.errors import InvalidConnection, UnknownConnection
from tidemark.run import applications
from tidemark.spark.settings import SHORT_RUN_RECORDS
from tidemark.spark.submit import application_name
from tidemark.spec.errors import SpecError, UnknownPipeline
from tidemark.spec.model import PipelineSpec
from tidemark.steps import offsets_of

LEAK = "do-not-tell"


def app(**environ: str) -> App:
    """An app of this environment and no other."""
    return App(environ=environ)


def with_connection(value: Any) -> App:
    """An app with one Kafka connection, as JSON unless it is text already."""
    text = value if isinstance(value, str) else json.dumps(value)
    return app(AIRFLOW_CONN_KAFKA_DEFAULT=text)


# -- folders -------------------------------------------------------------------------------------


def test_folders_default_to_the_checkout() -> None:
    """State is in one folder of the project that may be thrown away."""
    layout = app().layout
    assert layout.project == PROJECT
    assert layout.home == PROJECT / ".tidemark"
    assert layout.control_table == f"{PROJECT}/.tidemark/lakehouse/control/offset_ranges"


def test_folders_follow_the_environment(tmp_path: Path) -> None:
    """A home and a lakehouse elsewhere; the jars stay with the checkout, shared by every home."""
    layout = app(TIDEMARK_HOME=str(tmp_path), TIDEMARK_LAKEHOUSE="s3://lake").layout
    assert layout.home == tmp_path
    assert layout.spark_jars == PROJECT / ".tidemark" / "jvm" / "spark"
    assert layout.control_table == "s3://lake/control/offset_ranges"
    assert layout.data_table("bronze/prices") == "s3://lake/bronze/prices"
    assert layout.data_table("s3://other/prices") == "s3://other/prices"
    assert layout.data_table("/data/prices") == "/data/prices"


def test_specs_come_from_the_folder_that_the_environment_names(tmp_path: Path) -> None:
    """Also if it does not exist: then that is said."""
    (tmp_path / "mine.yaml").write_text("name: mine\ntopic: t\nschedule: '@daily'\n")
    assert list(app(TIDEMARK_PIPELINES=str(tmp_path)).specs) == ["mine"]
    with pytest.raises(SpecError, match="no such folder"):
        _ = app(TIDEMARK_PIPELINES=str(tmp_path / "none")).specs


def test_a_broken_spec_is_refused_by_its_own_name_alone(tmp_path: Path) -> None:
    """Other pipelines are found; a name that no file has may be inside the broken one."""
    (tmp_path / "good.yaml").write_text("name: good\ntopic: t\nschedule: '@daily'\n")
    (tmp_path / "bad.yaml").write_text("name: misnamed\ntopic: t\nschedule: '@daily'\n")
    mine = app(TIDEMARK_PIPELINES=str(tmp_path))
    assert mine.spec("good").topic == "t"
    assert mine.data_tables() == ["good"]
    for name in ("bad", "misnamed"):
        with pytest.raises(SpecError, match=r"bad\.yaml: name: expected 'bad'"):
            mine.spec(name)


def test_an_unknown_pipeline_is_named_with_the_known_ones() -> None:
    """The message lists what there is."""
    copy = app().spec("prices@july")
    assert (copy.name, copy.topic, copy.target) == ("prices@july", "prices", "bronze/prices@july")
    for name in ("prices@", "prices@a b", "nope@july"):
        with pytest.raises((UnknownPipeline, InvalidSelection)):
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
def test_a_connection_is_read_in_both_of_airflows_json_forms(value: Any) -> None:
    """Airflow writes `extra` as an object or as text."""
    config = with_connection(value).connections.kafka_config("kafka_default")
    assert config == {"bootstrap.servers": "one:9092"}


def test_a_missing_connection_says_which_variable_would_be_it() -> None:
    """The name in upper case after Airflow's prefix."""
    with pytest.raises(UnknownConnection, match="AIRFLOW_CONN_KAFKA_OTHER"):
        app().connections.kafka_config("kafka_other")


@pytest.mark.parametrize(
    "value",
    [
        "",
        f"kafka://reader:{LEAK}@broker:9092",
        f'{{"extra": {{"sasl.password": "{LEAK}"',
        {"conn_type": "kafka", "password": LEAK},
        {"extra": LEAK},
        {"extra": None, "password": LEAK},
        {"extra": [LEAK]},
        {"extra": f'["{LEAK}"]'},
        {"extra": f'"{LEAK}"'},
        {"extra": 5},
        [LEAK],
    ],
)
def test_a_malformed_connection_is_refused_without_telling_its_content(value: Any) -> None:
    """Not even by the error that it was noticed through."""
    with pytest.raises(InvalidConnection) as caught:
        with_connection(value).connections.kafka_config("kafka_default")
    assert LEAK not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_connection_is_looked_up_when_it_is_needed_only() -> None:
    """An app can be built, and its specs read, with no connection at all."""
    assert app().spec("prices").connection == "kafka_default"


@pytest.mark.parametrize(
    ("ref", "table"),
    [
        *(("events@july", table) for table in ("decoder", "quarantine", "typed", "upserts")),
        *(("events@upsert", table) for table in ("decoder", "quarantine", "typed")),
    ],
)
def test_copies_and_upsert_tables_have_no_typed_table(tmp_path: Path, ref: str, table: str) -> None:
    """The typed table of the live pipeline does not take its place."""
    (tmp_path / "events.yaml").write_text(
        "name: events\ntopic: t\nschedule: '@daily'\n"
        "decode: {value: {format: string}, upsert: {}}\n"
    )
    pipeline = app(TIDEMARK_PIPELINES=str(tmp_path)).pipeline(ref)
    with pytest.raises(InvalidSelection, match=ref):
        getattr(pipeline, table)


# -- spark settings ------------------------------------------------------------------------------


def test_the_size_of_all_its_plans_decides_how_a_jobs_jvm_is_set(tmp_path: Path) -> None:
    """The control table knows it; a plan that it does not know is for the job to refuse."""
    this = app(TIDEMARK_LAKEHOUSE=str(tmp_path))
    control, spec = this.control, this.spec("prices")
    small = make_plan((0, 0, SHORT_RUN_RECORDS), pipeline="prices", sequence=1)
    large = make_plan((1, 0, SHORT_RUN_RECORDS + 1), pipeline="prices", sequence=2)
    append_events(control, "prices", Planned(plan=small), Planned(plan=large))

    def settings(spec: PipelineSpec, *plans: int) -> dict[str, str]:
        refs = [PlanRef(pipeline="prices", sequence=plan) for plan in plans]
        return this.engines.submit_settings(spec, offsets_of(this, refs) if refs else None)

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
    """The order of the keys is no difference; an application has one set of settings."""
    sections = {"a": "", "b": "spark: {spark.x: '1', spark.y: '2'}", "c": "",
                "d": "spark: {spark.y: '2', spark.x: '1'}"}  # fmt: skip
    for name, section in sections.items():
        text = f"name: {name}\ntopic: t\nschedule: '@daily'\n{section}\n"
        (tmp_path / f"{name}.yaml").write_text(text)
    plans = [PlanRef(pipeline=name, sequence=1) for name in "abcd"]
    found = applications(app(TIDEMARK_PIPELINES=str(tmp_path)), plans)
    assert [[plan.pipeline for plan in each] for each in found] == [["a", "c"], ["b", "d"]]


def test_an_application_is_named_after_what_it_does() -> None:
    """Twenty names are no name."""
    plans = [PlanRef(pipeline=name, sequence=1) for name in ("prices", "orders", "tides")]
    assert application_name("ingest", plans[:1]) == "tidemark-ingest-prices"
    assert application_name("quality", plans) == "tidemark-quality-prices-and-2-more"
