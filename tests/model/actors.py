"""Actors that stop before every call of a port, without threads.

An actor runs a real service. What a service does depends on nothing but the answers of its ports,
so an actor *is* the answers it has got: to see what it does next, its program runs again from the
start with those answers, until it makes a call that has none. That makes an actor a value. It can
be copied, kept asleep for as long as the schedule likes, and killed by forgetting it; and two
actors with the same answers are in the same state, which lets a search say "I have been here".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tests.model.world import World
from tests.support.plans import MemoryPipeline
from tidemark.core.errors import TransientError
from tidemark.core.plan import Plan
from tidemark.core.table_state import FENCED_VERSION
from tidemark.kafka.errors import KafkaUnavailable
from tidemark.lake.errors import ControlConflict, EngineFailed, TransactionConflict
from tidemark.spec.model import PipelineSpec

Program: TypeAlias = Callable[[MemoryPipeline], object]
"""What an actor does, given a pipeline whose ports lead to the world."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a port: a step of the schedule."""

    port: str
    method: str
    args: tuple[Any, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        """What a trace calls the step."""
        return f"{self.port}.{self.method}"

    @property
    def only_reads(self) -> bool:
        """Whether the step leaves the world as it was; unknown methods are taken to write."""
        return self.method in _READS


_READS = frozenset(
    {
        *("ledger", "summary", "plan_record"),
        *("topic_watermarks", "offsets_at", "truncated_partition", "read"),
        *(
            "state",
            "find_landing",
            "offsets_without_rows",
            "current_landing",
            "row_ranges",
            "plan_commits",
        ),
        *("removal_versions", "rows_of", "last_rows", "row_count", "size", "version"),
        *("prepare", "begin", "fetch", "begin_fence", "begin_fence_chains"),
    }
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a step returned or raised."""

    value: Any = None
    error: Exception | None = None

    @property
    def key(self) -> str:
        """Equal for answers that a program cannot tell apart."""
        return repr(self.value) if self.error is None else repr(self.error)


@dataclass(frozen=True, slots=True)
class Done:
    """A program's end: its result, or the error it raised."""

    result: object = None
    error: Exception | None = None

    def __str__(self) -> str:
        if self.error is not None:
            return f"raised {type(self.error).__name__}"
        return "returned"


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure of a step that the actor survives.

    Attributes:
        name: How a trace tells it.
        error: What the actor gets to see.
        took_effect: Whether the step was done all the same: its answer was lost.
    """

    name: str
    error: TransientError
    took_effect: bool


def faults_of(call: Call) -> tuple[Fault, ...]:
    """The failures that the real adapter of a port can answer a step with."""
    engine = EngineFailed(operation=f"doing {call.name}", reason="injected")
    match call.method:
        case "topic_watermarks" | "offsets_at" | "truncated_partition" | "read":
            gone = KafkaUnavailable(operation=call.name, reason="injected")
            return (Fault("failed", gone, took_effect=False),)
        case "begin" | "fetch":
            return (Fault("failed", engine, took_effect=False),)
        case "finish":
            return (
                Fault("failed", engine, took_effect=False),
                Fault("done, answer lost", engine, took_effect=True),
            )
        case "append":
            # A conditional put whose answer is lost is tried again and finds itself in the way.
            ledger = call.args[0]
            conflict = ControlConflict(
                pipeline=ledger.pipeline, event_number=ledger.event_number + 1
            )
            return (Fault("done, answer lost", conflict, took_effect=True),)
        case "finish_fence":
            plan: Plan = call.args[0]
            moved = TransactionConflict(pipeline=plan.pipeline, sequence=plan.sequence)
            return (Fault("done, answer lost", moved, took_effect=True),)
        case "finish_fence_chains":
            moved = TransactionConflict(pipeline=call.args[0], sequence=FENCED_VERSION)
            return (Fault("done, answer lost", moved, took_effect=True),)
        case _:
            return ()


class _Pause(BaseException):
    """The program has come to a call without an answer; nothing in the services catches this."""

    def __init__(self, call: Call) -> None:
        super().__init__(call.name)
        self.call = call


@dataclass
class _Script:
    """Answers a program's calls one after the other, and stops it when there are no more."""

    answers: tuple[Answer, ...]
    used: int = 0

    def ask(self, call: Call) -> Any:
        if self.used == len(self.answers):
            raise _Pause(call)
        answer = self.answers[self.used]
        self.used += 1
        if answer.error is not None:
            raise answer.error.with_traceback(None)
        return answer.value


class _Port:
    """Any port, as a program sees it."""

    def __init__(self, name: str, script: _Script) -> None:
        self._name = name
        self._script = script

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def ask(*args: Any, **kwargs: Any) -> Any:
            return self._ask(method, *args, **kwargs)

        return ask

    def _ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return self._script.ask(Call(self._name, method, args, tuple(sorted(kwargs.items()))))


class _KafkaPort(_Port):
    @property
    def topics(self) -> _Any:
        """A pipeline on in-memory adapters makes its topic if it is not there."""
        return _Any()


class _Any:
    def __contains__(self, _: object) -> bool:
        return True


class _TablePort(_Port):
    """The data table; what Spark and delta-rs do in several steps is several steps here."""

    def write(self, plan: Plan, _: int) -> Any:
        return self._ask("fetch", plan)

    def append(self, plan: Plan, files: Any) -> None:
        began = self._ask("begin", plan)
        if began is not None:
            self._ask("finish", plan, began, files)

    def fence(self, plan: Plan) -> None:
        began = self._ask("begin_fence", plan)
        if began is not None:
            self._ask("finish_fence", plan, began)

    def fence_chains(self, pipeline: str, app_ids: Collection[str]) -> int:
        begun = self._ask("begin_fence_chains", pipeline, tuple(app_ids))
        if begun is None:
            return int(self._ask("version"))
        return int(self._ask("finish_fence_chains", pipeline, begun))


def _pipeline(spec: PipelineSpec, script: _Script) -> MemoryPipeline:
    ports: dict[str, Any] = {
        "kafka": _KafkaPort("kafka", script),
        "control": _Port("control", script),
        "table": _TablePort("table", script),
    }
    return MemoryPipeline(spec=spec, **ports)


def resume(program: Program, spec: PipelineSpec, answers: tuple[Answer, ...]) -> Call | Done:
    """What a program does after these answers: its next call, or its end."""
    script = _Script(answers)
    try:
        result = program(_pipeline(spec, script))
    except _Pause as pause:
        return pause.call
    except Exception as error:  # noqa: BLE001  the actor's boundary: its end is looked at
        return Done(error=error)
    return Done(result=result)


def perform(world: World, call: Call) -> Answer:
    """Do one step to the world, which changes."""
    port = {"kafka": world.kafka, "control": world.control, "table": world.table}[call.port]
    try:
        value = getattr(port, call.method)(*call.args, **dict(call.kwargs))
        # A reader reads when it is read; whoever gets an answer has read all of it.
        return Answer(tuple(value) if isinstance(value, Iterator) else value)
    except Exception as error:  # noqa: BLE001  the program gets it
        return Answer(error=error)


@dataclass
class Actor:
    """One actor over a world that changes in place; for histories rather than searches.

    Attributes:
        name: For traces.
        program: What it does.
        spec: The pipeline it works on.
        answers: What it has got so far.
    """

    name: str
    program: Program
    spec: PipelineSpec
    answers: tuple[Answer, ...] = ()
    at: Call | Done = field(init=False)

    def __post_init__(self) -> None:
        self.at = resume(self.program, self.spec, self.answers)

    def step(self, world: World, fault: Fault | None = None) -> None:
        """Do the next call, with a failure of it if one is given."""
        if isinstance(self.at, Done):
            raise ValueError(f"{self.name} is done")
        answer = Answer()
        if fault is None or fault.took_effect:
            answer = perform(world, self.at)
        if fault is not None:
            answer = Answer(error=fault.error)
        self.answers = (*self.answers, answer)
        self.at = resume(self.program, self.spec, self.answers)
