"""Actors that stop before every call of a port, without threads.

An actor runs a real service. A service depends only on the answers of its ports, so an actor is the
tuple of the answers that it has received. For the next step, its program runs again from the start
with these answers until it makes a call without an answer. An actor is therefore a value: it can be
copied, paused for any time, and killed by dropping it. Two actors with the same answers are in the
same state, so a search recognises states that it has visited.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from tests.model.world import World
from tests.support.plans import MemoryPipeline
from tidemark.core.errors import TransientError
from tidemark.core.plan import Plan
from tidemark.core.table_state import FENCED_VERSION, TableState
from tidemark.delta.errors import ControlConflict, EngineFailed, TransactionConflict
from tidemark.kafka.errors import KafkaUnavailable
from tidemark.spec.model import PipelineSpec

Program: TypeAlias = Callable[[MemoryPipeline], object]
"""Work of an actor; the ports of its pipeline access the world."""

_Ports = TypeVar("_Ports")


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a port: a step of the schedule."""

    port: str
    method: str
    args: tuple[Any, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        return f"{self.port}.{self.method}"

    @property
    def only_reads(self) -> bool:
        """Return whether the step leaves the world unchanged; False for unknown methods."""
        return self.method in _READS


_READS = frozenset(
    {
        *("ledger", "summary", "plan_record", "plan_records", "recorded_at"),
        *("topic_watermarks", "offsets_at", "truncated_partition", "read"),
        *(
            "state",
            "find_landing",
            "offsets_without_rows",
            "current_landing",
            "row_ranges",
            "plan_commits",
        ),
        *(
            "removal_versions",
            "fences",
            "log_start",
            "rows_of",
            "last_rows",
            "row_count",
            "size",
        ),
        *("prepare", "begin", "fetch", "begin_fence", "begin_fence_chains"),
        *("open", "rows_now"),
    }
)


@dataclass(frozen=True, slots=True)
class Answer:
    """Result or error of a step."""

    value: Any = None
    error: Exception | None = None

    @property
    def key(self) -> str:
        """Return a text that is equal for answers that a program cannot distinguish."""
        return repr(self.value) if self.error is None else repr(self.error)


@dataclass(frozen=True, slots=True)
class Done:
    """End of a program: its result or its error."""

    result: object = None
    error: Exception | None = None

    def __str__(self) -> str:
        if self.error is not None:
            return f"raised {type(self.error).__name__}"
        return "returned"


@dataclass(frozen=True, slots=True)
class Fault:
    """Failure of a step that the actor survives.

    Attributes:
        name: Its name in traces.
        error: The error that the actor receives.
        took_effect: Whether the step was performed, so that only its answer was lost.
    """

    name: str
    error: TransientError
    took_effect: bool


def faults_of(call: Call) -> tuple[Fault, ...]:
    """Return the failures of a step that the real adapter of its port can raise."""
    engine = EngineFailed(operation=f"doing {call.name}", reason="injected")
    match call.method:
        case "topic_watermarks" | "offsets_at" | "truncated_partition" | "read":
            unavailable = KafkaUnavailable(operation=call.name, reason="injected")
            return (Fault("failed", unavailable, took_effect=False),)
        case "begin" | "fetch":
            return (Fault("failed", engine, took_effect=False),)
        case "finish":
            return (
                Fault("failed", engine, took_effect=False),
                Fault("done, answer lost", engine, took_effect=True),
            )
        case "append":
            # A conditional put whose answer is lost is repeated and conflicts with itself.
            ledger = call.args[0]
            conflict = ControlConflict(
                pipeline=ledger.pipeline, event_number=ledger.event_number + 1
            )
            return (Fault("done, answer lost", conflict, took_effect=True),)
        case "finish_fence":
            plan: Plan = call.args[0]
            taken = TransactionConflict(pipeline=plan.pipeline, sequence=plan.sequence)
            return (Fault("done, answer lost", taken, took_effect=True),)
        case "finish_fence_chains":
            taken = TransactionConflict(pipeline=call.args[0], sequence=FENCED_VERSION)
            return (Fault("done, answer lost", taken, took_effect=True),)
        case _:
            return ()


class _Pause(BaseException):
    """The program has made a call without an answer. No service catches this."""

    def __init__(self, call: Call) -> None:
        super().__init__(call.name)
        self.call = call


@dataclass
class Script:
    """Answers the calls of a program in order, and stops it at the first call without an answer."""

    answers: tuple[Answer, ...]
    used: int = 0

    def answer_to(self, call: Call) -> Any:
        if self.used == len(self.answers):
            raise _Pause(call)
        answer = self.answers[self.used]
        self.used += 1
        if answer.error is not None:
            raise answer.error.with_traceback(None)
        return answer.value


class Port:
    """Any port, as a program sees it."""

    def __init__(self, name: str, script: Script) -> None:
        self._name = name
        self._script = script

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def answer_to(*args: Any, **kwargs: Any) -> Any:
            return self._ask(method, *args, **kwargs)

        return answer_to

    def _ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return self._script.answer_to(Call(self._name, method, args, tuple(sorted(kwargs.items()))))


class _KafkaPort(Port):
    @property
    def topics(self) -> _Any:
        """Return a mapping that contains every topic, so that the pipeline creates none."""
        return _Any()


class _Any:
    def __contains__(self, _: object) -> bool:
        return True


class _TablePort(Port):
    """The data table. Operations of Spark and delta-rs are split into steps."""

    def write(self, plan: Plan, _: int) -> Any:
        return self._ask("fetch", plan)

    def append(self, plan: Plan, files: Any, _: TableState) -> bool:
        start_version = self._ask("begin", plan)
        if start_version is None:
            return False
        self._ask("finish", plan, start_version, files)
        return True

    def fence(self, plan: Plan, _: TableState) -> None:
        start_version = self._ask("begin_fence", plan)
        if start_version is not None:
            self._ask("finish_fence", plan, start_version)

    def fence_chains(self, pipeline: str, app_ids: Collection[str], requested_by: str) -> int:
        started_fence = self._ask("begin_fence_chains", pipeline, tuple(app_ids), requested_by)
        if started_fence is None:
            raise TransactionConflict(pipeline=pipeline, sequence=FENCED_VERSION)
        return int(self._ask("finish_fence_chains", pipeline, started_fence))


def _pipeline(spec: PipelineSpec, script: Script) -> MemoryPipeline:
    ports: dict[str, Any] = {
        "kafka": _KafkaPort("kafka", script),
        "control": Port("control", script),
        "table": _TablePort("table", script),
    }
    return MemoryPipeline(spec=spec, **ports)


def resume(program: Program, spec: PipelineSpec, answers: tuple[Answer, ...]) -> Call | Done:
    """Return the next call of a program after these answers, or its end."""
    return resume_over(program, lambda script: _pipeline(spec, script), answers)


def resume_over(
    program: Callable[[_Ports], object],
    ports: Callable[[Script], _Ports],
    answers: tuple[Answer, ...],
) -> Call | Done:
    """Return the next call of a program over any ports after these answers, or its end."""
    script = Script(answers)
    try:
        result = program(ports(script))
    except _Pause as pause:
        return pause.call
    except Exception as error:  # noqa: BLE001  check_end checks the error
        return Done(error=error)
    return Done(result=result)


def perform(world: World, call: Call) -> Answer:
    """Perform a step, which may change the world."""
    port = {"kafka": world.kafka, "control": world.control, "table": world.table}[call.port]
    try:
        value = getattr(port, call.method)(*call.args, **dict(call.kwargs))
        # An iterator reads lazily, and an answer contains everything that was read.
        return Answer(tuple(value) if isinstance(value, Iterator) else value)
    except Exception as error:  # noqa: BLE001  the program gets it
        return Answer(error=error)


@dataclass
class Actor:
    """Actor over a world that changes in place; for histories, not for searches.

    Attributes:
        name: Its name in traces.
        program: Its work.
        spec: Its pipeline.
        answers: The answers that it has received.
        began: The newest event number before its first call.
    """

    name: str
    program: Program
    spec: PipelineSpec
    answers: tuple[Answer, ...] = ()
    began: int = field(init=False, default=0)
    at: Call | Done = field(init=False)

    def __post_init__(self) -> None:
        self.at = resume(self.program, self.spec, self.answers)

    def step(self, world: World, fault: Fault | None = None) -> None:
        """Perform the next call, or let it fail."""
        if isinstance(self.at, Done):
            raise ValueError(f"{self.name} is done")
        if not self.answers:
            self.began = world.control.newest.get(self.spec.name, 0)
        answer = Answer()
        if fault is None or fault.took_effect:
            answer = perform(world, self.at)
        if fault is not None:
            answer = Answer(error=fault.error)
        self.answers = (*self.answers, answer)
        self.at = resume(self.program, self.spec, self.answers)
