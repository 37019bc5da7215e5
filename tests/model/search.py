"""Exhaustive search over the interleavings of a few actors, with failures at every step.

The search is breadth first, so a counterexample is a shortest one. A state consists of the world
and the answers of each actor; an actor that ended or was killed has no state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from tests.model import invariants
from tests.model.actors import Answer, Call, Done, Fault, faults_of, perform, resume
from tests.model.invariants import InvariantViolated


class SearchedWorld(Protocol):
    """A world of any protocol."""

    @property
    def key(self) -> Hashable:
        """Return a value that is equal for equal worlds."""
        ...

    def fork(self) -> Any:
        """Return an independent copy."""
        ...


Operator: TypeAlias = Callable[[Any], None]
"""Works as a scheduler and its operator do until nothing is left to do."""


@dataclass(frozen=True, kw_only=True)
class System:
    """How actors act in a world, and what must hold there.

    Attributes:
        resume: Returns the next call of a program in a world after some answers, or its end.
        perform: Performs a call, which may change the world.
        faults_of: Returns the failures of a call.
        check_step: Checks the changes of a step.
        check_world: Checks a world.
        check_end: Checks the end of an actor, given the names of expected errors.
        check_settled: Checks a world in which nothing is left to do.
    """

    resume: Callable[[Any, Any, tuple[Answer, ...]], Call | Done]
    perform: Callable[[Any, Call], Answer]
    faults_of: Callable[[Call], tuple[Fault, ...]]
    check_step: Callable[[Any, Any], None]
    check_world: Callable[[Any], None]
    check_end: Callable[[Any, Done, frozenset[str]], None]
    check_settled: Callable[[Any], None]


BRONZE = System(
    resume=lambda program, world, answers: resume(program, world.spec, answers),
    perform=perform,
    faults_of=faults_of,
    check_step=invariants.check_step,
    check_world=invariants.check_world,
    check_end=invariants.check_end,
    check_settled=invariants.check_settled,
)
"""Landing: the services of the package, over adapters in memory."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """An initial world and the actors that act in it.

    Attributes:
        name: Its name in the report.
        world: The initial world.
        actors: Programs by name.
        operator: Works after all actors have ended.
        errors: Names of the errors that actors may end with; any other is a false alarm (I7).
        faults: Maximum number of failures and kills of a schedule.
        environment: Actors that are not Tidemark; they change the world and do not fail.
        system: The protocol of the actors.
    """

    name: str
    world: SearchedWorld
    actors: Mapping[str, Callable[[Any], object]]
    operator: Operator
    errors: frozenset[str]
    faults: int
    environment: frozenset[str] = frozenset()
    system: System = BRONZE


@dataclass(frozen=True, kw_only=True)
class Report:
    """Counts of a search.

    Attributes:
        name: The scenario.
        states: Different states; the invariants hold in each.
        worlds: Different worlds among them.
        schedules: Different maximal schedules through them.
        ends: Different worlds after the end of all actors, each settled by the operator.
        outcomes: Ends of actors, over all schedules.
    """

    name: str
    states: int
    worlds: int
    schedules: int
    ends: int
    outcomes: frozenset[str]

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.states:,} states, {self.worlds:,} worlds, "
            f"{self.schedules:,} schedules, {self.ends:,} ends"
        )


class Violation(AssertionError):
    """A violated invariant, and a shortest schedule that leads to it."""

    def __init__(self, scenario: str, broken: str, trace: tuple[str, ...]) -> None:
        lines = "\n".join(f"  {number:>2}. {step}" for number, step in enumerate(trace, start=1))
        super().__init__(f"{scenario}: {broken}\n{lines}")
        self.broken = broken
        self.trace = trace


_ENDED = -1
"""History of an actor that ended or was killed."""

_State: TypeAlias = tuple[int, tuple[int, ...], int]
"""Numbers of the world and of each actor's history, and the number of remaining faults."""


@dataclass(frozen=True, slots=True)
class _History:
    """History of one actor.

    Attributes:
        answers: The answers that it has received.
        at: Its next call, or its end.
        faults: Possible failures of its next call.
    """

    answers: tuple[Answer, ...]
    at: Call | Done
    faults: tuple[Fault, ...]


@dataclass(frozen=True, slots=True)
class _Edge:
    """One step from a state.

    Attributes:
        step: Its text in a trace.
        after: The state after it.
        done: The end of the actor, if it ended with this step.
        by_tidemark: Whether the step is one of Tidemark's.
    """

    step: str
    after: _State
    done: Done | None = None
    by_tidemark: bool = True


@dataclass
class _Space:
    """Worlds and histories by number; equal ones have one number."""

    scenario: Scenario
    worlds: list[Any] = field(default_factory=list)
    histories: list[_History] = field(default_factory=list)
    _world_numbers: dict[Hashable, int] = field(default_factory=dict)
    _history_numbers: dict[tuple[int, int, str], int] = field(default_factory=dict)
    _performed: dict[tuple[int, int], tuple[int, Answer]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = list(self.scenario.actors)
        self._programs = list(self.scenario.actors.values())

    def first(self) -> _State:
        world = self._world(self.scenario.world.fork())
        histories = tuple(self._history(actor, _ENDED, None) for actor in range(len(self.names)))
        return world, histories, self.scenario.faults

    def edges(self, state: _State) -> Iterator[_Edge]:
        for actor, history in enumerate(state[1]):
            if history != _ENDED:
                yield from self._steps_of(state, actor)

    def _steps_of(self, state: _State, actor: int) -> Iterator[_Edge]:
        world, histories, faults = state
        name = self.names[actor]
        history = self.histories[histories[actor]]
        call = history.at
        assert isinstance(call, Call)
        after, answer = self._perform(world, histories[actor], call)
        outcome = f" -> {type(answer.error).__name__}" if answer.error else ""
        yield self._step(state, actor, after, answer, f"{name}: {call.name}{outcome}")
        if not faults or name in self.scenario.environment:
            return
        killed = (world, _with(histories, actor, _ENDED), faults - 1)
        yield _Edge(f"{name}: killed before {call.name}", killed)
        for fault in history.faults:
            failed = (world, histories, faults - 1)
            new_world = after if fault.took_effect and answer.error is None else world
            step = f"{name}: {call.name} ({fault.name})"
            yield self._step(failed, actor, new_world, Answer(error=fault.error), step)

    def _step(self, state: _State, actor: int, world: int, answer: Answer, step: str) -> _Edge:
        _, histories, faults = state
        name = self.names[actor]
        number = self._history(actor, histories[actor], answer)
        at = self.histories[number].at
        by_tidemark = name not in self.scenario.environment
        if isinstance(at, Done):
            after = (world, _with(histories, actor, _ENDED), faults)
            return _Edge(f"{step}; {name} {at}", after, at, by_tidemark)
        return _Edge(step, (world, _with(histories, actor, number), faults), None, by_tidemark)

    def _perform(self, world: int, history: int, call: Call) -> tuple[int, Answer]:
        cached = self._performed.get((world, history))
        if cached is not None:
            return cached
        old_world = self.worlds[world]
        new_world = old_world if call.only_reads else old_world.fork()
        answer = self.scenario.system.perform(new_world, call)
        done = world if call.only_reads else self._world(new_world), answer
        self._performed[world, history] = done
        return done

    def _world(self, world: SearchedWorld) -> int:
        key = world.key
        if key not in self._world_numbers:
            self._world_numbers[key] = len(self.worlds)
            self.worlds.append(world)
        return self._world_numbers[key]

    def _history(self, actor: int, before: int, answer: Answer | None) -> int:
        key = (actor, before, answer.key if answer else "")
        if key not in self._history_numbers:
            answers = (*self.histories[before].answers, answer) if answer else ()
            system = self.scenario.system
            at = system.resume(self._programs[actor], self.scenario.world, answers)
            faults = system.faults_of(at) if isinstance(at, Call) else ()
            self._history_numbers[key] = len(self.histories)
            self.histories.append(_History(answers=answers, at=at, faults=faults))
        return self._history_numbers[key]


@dataclass
class Search:
    """One search of one scenario."""

    scenario: Scenario
    _came_from: dict[_State, tuple[_State, str] | None] = field(default_factory=dict)
    _leads_to: dict[_State, list[_State]] = field(default_factory=dict)
    _checked: set[tuple[int, int]] = field(default_factory=set)
    _ends: set[int] = field(default_factory=set)
    _outcomes: set[str] = field(default_factory=set)

    def run(self) -> Report:
        """Visit every state.

        Raises:
            Violation: An invariant does not hold in one of them.
        """
        self._space = _Space(self.scenario)
        first = self._space.first()
        self._came_from[first] = None
        self._check_world(first)
        pending = deque([first])
        while pending:
            state = pending.popleft()
            edges = list(self._space.edges(state))
            self._leads_to[state] = [edge.after for edge in edges]
            if not edges:
                self._settle(state)
            for edge in edges:
                if self._follow(state, edge):
                    pending.append(edge.after)
        return Report(
            name=self.scenario.name,
            states=len(self._came_from),
            worlds=len(self._space.worlds),
            schedules=self._schedules(first),
            ends=len(self._ends),
            outcomes=frozenset(self._outcomes),
        )

    def _follow(self, state: _State, edge: _Edge) -> bool:
        """Check a step; return whether it leads to a new state."""
        new = edge.after not in self._came_from
        if new:
            self._came_from[edge.after] = (state, edge.step)
        try:
            self._check_edge(state, edge)
        except InvariantViolated as broken:
            raise self._violation(state, str(broken), edge.step) from None
        return new

    def _check_edge(self, state: _State, edge: _Edge) -> None:
        worlds, system = self._space.worlds, self.scenario.system
        change = (state[0], edge.after[0])
        if change not in self._checked and change[0] != change[1]:
            self._checked.add(change)
            if edge.by_tidemark:
                system.check_step(worlds[change[0]], worlds[change[1]])
            system.check_world(worlds[change[1]])
        if edge.done is not None:
            self._outcomes.add(edge.step.rpartition("; ")[2])
            system.check_end(worlds[edge.after[0]], edge.done, self.scenario.errors)

    def _check_world(self, state: _State) -> None:
        try:
            self.scenario.system.check_world(self._space.worlds[state[0]])
        except InvariantViolated as broken:
            raise self._violation(state, str(broken), "in the initial world") from None

    def _settle(self, state: _State) -> None:
        """Let the operator finish the work that the actors left."""
        if state[0] in self._ends:
            return
        self._ends.add(state[0])
        world = self._space.worlds[state[0]].fork()
        try:
            self.scenario.operator(world)
            self.scenario.system.check_world(world)
            self.scenario.system.check_settled(world)
        except Exception as broken:
            raise self._violation(state, str(broken), "the operator runs to the end") from broken

    def _violation(self, state: _State, broken: str, last: str) -> Violation:
        trace = [last]
        came_from = self._came_from[state]
        while came_from is not None:
            state, step = came_from
            trace.append(step)
            came_from = self._came_from[state]
        return Violation(self.scenario.name, broken, tuple(reversed(trace)))

    def _schedules(self, first: _State) -> int:
        """Return the number of maximal paths; the graph has no cycles."""
        ways: dict[_State, int] = {}
        stack = [first]
        while stack:
            state = stack[-1]
            unknown = [after for after in self._leads_to[state] if after not in ways]
            if unknown:
                stack += unknown
                continue
            stack.pop()
            ways[state] = sum(ways[after] for after in self._leads_to[state]) or 1
        return ways[first]


def _with(histories: tuple[int, ...], actor: int, number: int) -> tuple[int, ...]:
    return (*histories[:actor], number, *histories[actor + 1 :])
