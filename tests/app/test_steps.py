"""Tests of the order of a run's steps and of failed steps, on real tables without Spark."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.support.typed_lake import FileDecoder, TypedLake, home_typed_lake
from tidemark.app import steps
from tidemark.app.app import App
from tidemark.app.pipeline import Pipeline
from tidemark.app.pipelines import Pipelines
from tidemark.app.run import execute
from tidemark.app.silver import TypedPart
from tidemark.app.steps import STEPS, Ref
from tidemark.bronze.ingest.errors import CommitNotFound
from tidemark.cli.output import step_text
from tidemark.core.datafile import DataFile
from tidemark.core.decode_work import DecodeRequest
from tidemark.core.errors import ExitCode, TidemarkError
from tidemark.core.logs import event_and_fields
from tidemark.core.plan import PlanRef
from tidemark.kafka.errors import KafkaUnavailable
from tidemark.quality.errors import QualityFailed
from tidemark.silver.typed.unnamed import UnnamedFields
from tidemark.spark.engine import JobRun

UNAVAILABLE = KafkaUnavailable(operation="list_offsets", reason="timed out")
LOST = CommitNotFound(pipeline="events", sequence=1, seen="no commit")
FAILED = QualityFailed(pipeline="events", sequence=1, failed=("rule",), data_docs="page")


@dataclass
class Steps:
    """Replaces the steps that need Spark; `errors` has the failing ones."""

    lake: TypedLake
    errors: Mapping[str, TidemarkError] = field(default_factory=dict)
    performed: list[str] = field(default_factory=list)

    def replace(self, patch: pytest.MonkeyPatch) -> None:
        """Replace the steps of a run, and the decoder, by these."""
        for name in ("ingest", "check"):
            patch.setitem(STEPS, name, replace(STEPS[name], take=getattr(self, name)))
        patch.setattr(TypedPart, "_spark_decoder", lambda *_: self)

    def ingest(self, _: Pipeline, plan: PlanRef) -> dict[str, Any]:
        self._perform(f"ingest {plan.sequence}")
        self.lake.bronze.ingest.execute(plan.sequence)
        return {"wrote": True, "records": 1}

    def decode(self, request: DecodeRequest) -> Sequence[DataFile]:
        for batch in request.offsets:
            self._perform(f"decode {batch.sequence}")
        return FileDecoder(self.lake).decode(request)

    def check(self, _: Pipeline, plan: PlanRef) -> dict[str, Any]:
        self._perform(f"check {plan.sequence}")
        return {"outcome": "passed", "checks": 1}

    def _perform(self, step: str) -> None:
        self.performed.append(step)
        if error := self.errors.get(step):
            raise error


@pytest.fixture
def lake(tmp_path: Path) -> TypedLake:
    """Return pipeline `events` with one landed plan."""
    lake = home_typed_lake(tmp_path)
    lake.land_values([b"a"])
    return lake


@pytest.fixture
def app(tmp_path: Path, lake: TypedLake) -> App:
    """Return an app on that home with sessions that nothing opens."""
    del lake
    environ = {"TIDEMARK_HOME": str(tmp_path), "TIDEMARK_PIPELINES": str(tmp_path / "pipelines")}
    sessions: Any = SimpleNamespace(plans_at_once=lambda: 2)
    return replace(App.from_environment(environ), sessions=sessions)


def performed(
    app: App, lake: TypedLake, patch: pytest.MonkeyPatch, **errors: TidemarkError
) -> tuple[list[str], list[Any], int]:
    """Run all steps; return the performed steps, their results, and the exit code."""
    errors_by_step = {name.replace("_", " "): error for name, error in errors.items()}
    fake = Steps(lake, errors_by_step)
    fake.replace(patch)
    newest = max(lake.bronze.control.ledger("events").plans)
    ((result, code),) = steps.complete(
        app, app.sessions, [PlanRef(pipeline="events", sequence=newest)]
    )
    return fake.performed, list(result["steps"]), code


def test_a_landed_plan_is_checked_and_decoded(
    app: App,
    lake: TypedLake,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The remaining work before and after; each step is one log line."""
    caplog.set_level("INFO", logger=steps.__name__)
    before = steps.remaining_work(app.pipeline("events"))
    assert (before.newest, before.to_check, before.to_decode) == (1, (1,), 1)
    assert before.to_merge is None
    assert steps.offsets_of_run(app, [PlanRef(pipeline="events", sequence=1)]) == 2
    done, results, code = performed(app, lake, monkeypatch)
    assert (done, code) == (["check 1", "decode 1"], ExitCode.OK)
    assert [(step["step"], step["plan"]) for step in results] == [
        ("check", 1),
        ("decode", None),
        ("publish", 1),
    ]
    assert (results[1]["plans"], results[1]["records"]) == ([1], 1)
    assert results[1]["table_version"] == DeltaTable(lake.typed_uri).version()
    logged = [event_and_fields(each) for each in caplog.records if each.name == steps.__name__]
    assert [(event, fields["pipeline"], fields["step"]) for event, fields in logged] == [
        ("step ended", "events", step["step"]) for step in results
    ]
    assert [fields.get("plan") for _, fields in logged] == [1, None, 1]
    after = steps.remaining_work(app.pipeline("events"))
    assert (after.to_check, after.to_decode, after.is_any) == ((1,), 0, True)


def test_a_complete_pipeline_performs_no_step(
    app: App, lake: TypedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.pipeline("events").publication.release(1, "test", "checked by hand")
    lake.run()
    assert not steps.remaining_work(app.pipeline("events")).is_any
    done, results, code = performed(app, lake, monkeypatch)
    assert (done, code) == ([], ExitCode.OK)
    assert [(step["step"], step["published"]) for step in results] == [("publish", True)]


def test_earlier_plans_are_checked_and_decoded_after_a_failed_ingest(
    app: App, lake: TypedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the plan; the plan has no rows to publish."""
    lake.bronze.plan(1)
    done, results, code = performed(app, lake, monkeypatch, ingest_2=UNAVAILABLE)
    assert (done, code) == (["ingest 2", "check 1", "decode 1"], ExitCode.TRANSIENT)
    assert [(step["step"], step["plan"], step.get("error")) for step in results] == [
        ("ingest", 2, "KafkaUnavailable"),
        ("check", 1, None),
        ("decode", None, None),
    ]


def test_rows_of_an_undone_plan_leave_the_typed_table_if_no_plan_has_landed(
    app: App, lake: TypedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be nothing to land again: Kafka may have deleted the offsets."""
    lake.run()
    lake.bronze.undo.undo(1, "test", "wrong records")
    before = steps.remaining_work(app.pipeline("events"))
    assert (before.newest, before.to_decode, before.is_any) == (1, 1, True)
    done, results, code = performed(app, lake, monkeypatch)
    assert (done, code) == ([], ExitCode.OK)
    assert [(step["step"], step["removed"]) for step in results] == [("decode", 1)]
    assert lake.decoded() == []
    assert not steps.remaining_work(app.pipeline("events")).is_any


def test_the_log_line_of_each_step_is_readable_on_a_terminal(
    app: App, lake: TypedLake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tidemark.app.steps")
    lake.bronze.plan(1)
    performed(app, lake, monkeypatch)
    ended = [each for each in caplog.records if each.getMessage().startswith("step ended ")]
    texts = [step_text(each) or "" for each in ended]
    assert any(each.startswith("events: ingest of plan 2: 1 record, ") for each in texts)
    assert all(texts)


def test_a_plan_that_is_undone_during_its_run_fails_the_run_with_its_reason(
    app: App, lake: TypedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A green run would hide that its rows are gone."""
    lake.bronze.plan(1)
    check = Steps.check

    def undo_then_check(self: Steps, pipeline: Pipeline, plan: PlanRef) -> dict[str, Any]:
        if plan.sequence == 2:
            self.lake.bronze.undo.undo(2, "ops", "a wrong deploy")
        return check(self, pipeline, plan)

    monkeypatch.setattr(Steps, "check", undo_then_check)
    _, results, code = performed(app, lake, monkeypatch)
    assert code == ExitCode.REFUSED
    assert [step["error"] for step in results if "error" in step] == ["PlanCancelled"]
    assert results[-1]["step"] == "publish"
    assert "Plan 2 of pipeline 'events' was undone: a wrong deploy." in results[-1]["problem"]


@pytest.mark.parametrize(
    ("errors", "code"),
    [
        ({"check_1": FAILED}, ExitCode.QUALITY_FAILED),
        ({"decode_1": LOST}, ExitCode.UNKNOWN_OUTCOME),
        ({"check_1": FAILED, "decode_1": LOST}, ExitCode.UNKNOWN_OUTCOME),
    ],
)
def test_a_failed_check_or_decode_sets_the_exit_code_and_stops_nothing(
    app: App,
    lake: TypedLake,
    monkeypatch: pytest.MonkeyPatch,
    errors: Mapping[str, TidemarkError],
    code: ExitCode,
) -> None:
    done, results, found = performed(app, lake, monkeypatch, **errors)
    assert (done, found) == (["check 1", "decode 1"], code)
    assert [(step["step"], step["plan"]) for step in results] == [
        ("check", 1),
        ("decode", None),
        ("publish", 1),
    ]


def decode_in_a_run(app: App) -> Mapping[str, Any]:
    ((result, _),) = steps.complete(app, app.sessions, [PlanRef(pipeline="events", sequence=1)])
    (found,) = (step for step in result["steps"] if step["step"] == "decode")
    return found


def decode_by_a_job(app: App) -> Mapping[str, Any]:
    def run(job: str, refs: Sequence[Ref]) -> JobRun:
        results, code = execute(app, job, refs, nullcontext(app.sessions))
        return JobRun(exit_code=code, results=results)

    pipelines = Pipelines(app=app, names=["events"], run=run, progress=print)
    (found,) = pipelines.decode().records
    return found


DECODES = pytest.mark.parametrize("decode", [decode_in_a_run, decode_by_a_job])


@DECODES
def test_a_decode_that_fails_keeps_the_plans_before_it(
    app: App,
    lake: TypedLake,
    monkeypatch: pytest.MonkeyPatch,
    decode: Callable[[App], Mapping[str, Any]],
) -> None:
    """The next decode continues."""
    spec = Path(app.environ["TIDEMARK_PIPELINES"]) / "events.yaml"
    spec.write_text(f"{spec.read_text()}limits: {{records_per_chunk: 2}}\n")
    lake.land_values([b"b", b"c", b"d", b"e"])
    unnamed = UnnamedFields(first_plan=1, decoded=1, records=1)
    monkeypatch.setattr(TypedPart, "unnamed_fields", lambda *_: unnamed)
    fake = Steps(lake, {"decode 2": UNAVAILABLE})
    fake.replace(monkeypatch)
    stopped = decode(app)
    assert (stopped["plans"], stopped["records"]) == ([1], 1)
    assert stopped["unnamed_fields"] == unnamed.as_record()
    assert (stopped["error"], stopped["retryable"]) == ("KafkaUnavailable", True)
    fake.errors = {}
    done = decode(app)
    assert (done["plans"], done["records"], done.get("error")) == ([2], 4, None)
    lake.check()


def test_an_error_outside_the_work_of_a_step_is_reported(
    app: App, lake: TypedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: object) -> None:
        raise UNAVAILABLE

    monkeypatch.setattr(Pipeline, "publication", property(away))
    _, results, code = performed(app, lake, monkeypatch)
    assert code == ExitCode.TRANSIENT
    assert [step["step"] for step in results if "error" in step] == ["check", "publish"]


def test_no_step_is_performed_after_a_stop(
    app: App, lake: TypedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is ending while threads still run."""
    lake.land_values([b"b"])

    check = Steps.check

    def check_then_stop(self: Steps, pipeline: Pipeline, plan: PlanRef) -> dict[str, Any]:
        check(self, pipeline, plan)
        raise SystemExit(143)

    monkeypatch.setattr(Steps, "check", check_then_stop)
    fake = Steps(lake)
    fake.replace(monkeypatch)
    with pytest.raises(SystemExit):
        steps.complete(app, app.sessions, [PlanRef(pipeline="events", sequence=2)])
    assert fake.performed == ["check 1"]
