"""Random histories of derived tables.

Each history starts actors, resumes them for some steps, kills them, and changes tables as other
programs do. All invariants hold after each step. The seed of a history reproduces it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from tests.model.actors import Answer, Call, Done
from tests.model.follow_actors import FollowProgram, perform, resume
from tests.model.follow_invariants import check_end, check_progress, check_step, check_world
from tests.model.follow_programs import (
    ALL,
    Decoder,
    Guards,
    decide,
    decode,
    external,
    from_scratch,
    land,
    merge,
    rewind,
    settle,
    then,
    undo,
)
from tests.model.follow_scenarios import BRONZE_CHANGED
from tests.model.follow_world import FollowWorld, Place, Policy, view_of
from tests.model.invariants import InvariantViolated

_ERRORS = BRONZE_CHANGED | {"InvalidSelection", "TableBehindLedger", "SchemaConflict"}
_OFFSETS = range(1, 7)
MAX_PAUSED = 3


@dataclass
class Paused:
    """An actor between two steps."""

    name: str
    program: FollowProgram
    answers: tuple[Answer, ...] = ()


@dataclass
class FollowHistory:
    """One random history.

    Attributes:
        seed: The seed of all choices.
        guards: The guards of all decoders and merges.
        world: The world.
        trace: The steps so far.
    """

    seed: int
    guards: Guards = ALL
    world: FollowWorld = field(default_factory=FollowWorld)
    trace: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._chance = Random(self.seed)
        self._paused: list[Paused] = []
        self._decoder = Decoder(guards=self.guards)

    def run(self, actions: int) -> int:
        """Perform random actions, and settle the world at the end; return the number of steps.

        Raises:
            AssertionError: An invariant does not hold; the message has the seed and the steps.
        """
        try:
            for _ in range(actions):
                self._act()
                check_progress(self.world, self._decoder)
            self.settle()
        except InvariantViolated as broken:
            lines = "\n".join(self.trace)
            raise AssertionError(f"seed {self.seed}: {broken}\n{lines}") from broken
        return len(self.trace)

    def _act(self) -> None:
        kind = self._chance.choices(
            ("start", "resume", "kill", "disturb", "settle"), weights=(30, 50, 6, 10, 4)
        )[0]
        match kind:
            case "start" if len(self._paused) < MAX_PAUSED:
                name, program = self._program()
                self._paused.append(Paused(name, program))
                self._resume(self._paused[-1], self._chance.choice((0, 2, 4, 5, 6, 50)))
            case "resume" if self._paused:
                paused = self._chance.choice(self._paused)
                self._resume(paused, self._chance.choice((1, 1, 2, 4, 50)))
            case "kill" if self._paused:
                self._paused.remove(self._chance.choice(self._paused))
            case "disturb":
                self._disturb()
            case "settle":
                self.settle()

    def _resume(self, paused: Paused, steps: int) -> None:
        for _ in range(steps):
            call = resume(paused.program, self.world, paused.answers)
            if isinstance(call, Done):
                if paused in self._paused:
                    self._paused.remove(paused)
                check_end(self.world, call, _ERRORS)
                return
            self._step(paused, call)

    def _step(self, paused: Paused, call: Call) -> None:
        before = self.world.fork()
        answer = self.perform(call)
        paused.answers = (*paused.answers, answer)
        outcome = f" -> {answer.error!r}" if answer.error else ""
        self.trace.append(f"{paused.name}: {call.name}{outcome}")
        check_step(before, self.world)
        check_world(self.world)

    def settle(self) -> None:
        """Kill all actors, and let an operator work until nothing is left to do."""
        self.trace.append("settled")
        self._paused.clear()
        settle(self.world, self._decoder)
        check_world(self.world)

    def perform(self, call: Call) -> Answer:
        """Perform a step in the world."""
        return perform(self.world, call)

    # -- choices ---------------------------------------------------------------------------------

    def _program(self) -> tuple[str, FollowProgram]:
        chance, plan = self._chance, self._plan()
        decoder = self._some_decoder()
        offsets = chance.sample(_OFFSETS, chance.randint(1, 2))
        if chance.random() < 0.25:
            decoder = replace(decoder, unreadable=frozenset(chance.sample(_OFFSETS, 2)))
        programs: dict[str, Callable[[], FollowProgram]] = {
            "decode": lambda: decode(decoder),
            "replay": lambda: decode(replace(decoder, again=frozenset(offsets))),
            "scratch": lambda: from_scratch(decoder),
            "merge": lambda: merge(self.guards),
            "land": lambda: land(*offsets),
            "replace": lambda: land(*offsets, replaces=True),
            "undo": lambda: undo(plan),
            "decide": lambda: decide(plan, *chance.choices((True, False), k=chance.randint(1, 2))),
            "rewind": rewind,
        }
        weights = (10, 3, 1, 3, 6, 3, 3, 4, 1)
        name = chance.choices(list(programs), weights=weights)[0]
        detail = f"{name}({plan}, {offsets}, {decoder.rules}, {decoder.policy}, {decoder.plans})"
        detail += f" without {sorted(decoder.unreadable)}" if decoder.unreadable else ""
        self.trace.append(f"start {detail}")
        return name, programs[name]()

    def _some_decoder(self) -> Decoder:
        """Return a decoder; an operator sometimes changes the spec."""
        chance = self._chance
        if chance.random() < 0.15:
            self._decoder = replace(
                self._decoder,
                rules=chance.choice((1, 2)),
                policy=chance.choice((Policy.CHECKED, Policy.CHECKED, Policy.ALWAYS)),
                plans=chance.choice((1, 9)),
            )
        return self._decoder

    def _plan(self) -> int:
        plans = sorted({place.plan for place in view_of(self.world.events).landed})
        return self._chance.choice(plans) if plans else 1

    def _disturb(self) -> None:
        """Let another program or an operator with other tools change a table."""
        chance, world = self._chance, self.world
        name = chance.choice(("typed", "typed", "quarantine"))
        version = chance.randint(0, getattr(world, name).version)
        place = Place(self._plan(), chance.choice(_OFFSETS))
        step, program = chance.choice(
            (
                (f"maintain {name}", external(name, "maintain")),
                (f"restore {name} {version}", external(name, "restore", version)),
                (f"copy {name} {version}", external(name, "copy", version)),
                (f"clean {name}", external(name, "clean_log")),
                (f"delete typed {place}", external("typed", "delete", place)),
                (f"delete bronze {place}", external("bronze", "delete", place)),
                self._bronze_or_ledger(),
            )
        )
        self.trace.append(f"external: {step}")
        call = resume(then(program), world, ())
        assert isinstance(call, Call)
        self.perform(call)
        check_world(world)

    def _bronze_or_ledger(self) -> tuple[str, FollowProgram]:
        if self._chance.random() < 0.5:
            version = self._chance.randint(0, self.world.bronze.version)
            return f"restore bronze {version}", external("bronze", "restore", version)
        number = self._chance.randint(0, len(self.world.events))
        return f"restore control {number}", external("control", "restore", number)
