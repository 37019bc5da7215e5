"""Initial worlds of derived tables, and the actors that act in them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace

from tests.model.actors import Call, Fault
from tests.model.follow_actors import FollowProgram, perform, resume
from tests.model.follow_invariants import (
    check_end,
    check_progress,
    check_settled,
    check_step,
    check_world,
)
from tests.model.follow_programs import (
    ALL,
    Decoder,
    Guards,
    continue_landing,
    decide,
    decode,
    direct,
    external,
    from_scratch,
    land,
    merge,
    rewind,
    settle,
    then,
    undo,
)
from tests.model.follow_world import FollowWorld, Place, Policy
from tests.model.search import Scenario, System

RETRYABLE = frozenset({"Conflict"})
"""A lost race: the next decode begins again."""

BRONZE_CHANGED = RETRYABLE | {
    "TableRestored",
    "LedgerBehindTable",
    "RepairUnfinished",
    "NothingToDo",
    "PlanNotLanded",
    "RemovalFenced",
    "PlanFenced",
}
"""Also errors about a bronze table whose history is not that of the ledger."""


# -- initial worlds ------------------------------------------------------------------------------


def prepared(*programs: FollowProgram) -> FollowWorld:
    """Return a world after these programs."""
    world = FollowWorld()
    then(*programs)(direct(world))
    return world


def landed() -> FollowWorld:
    """Plan 1 has offsets 1 and 2, of which rules 1 cannot decode offset 2."""
    return prepared(land(1, 2))


def landed_in_three() -> FollowWorld:
    """Three plans have landed, each with one offset."""
    return prepared(land(1), land(2), land(3))


def decoded() -> FollowWorld:
    """Plan 1 was decoded and merged."""
    return prepared(land(1, 2), decode(Decoder()), merge())


def decoded_twice() -> FollowWorld:
    """Plans 1 and 2 were decoded in two commits, and merged."""
    return prepared(land(1, 2), decode(Decoder()), land(3), decode(Decoder()), merge())


def half_decoded() -> FollowWorld:
    """Plan 1 was decoded, plan 2 was not."""
    return prepared(land(1), decode(Decoder()), merge(), land(2))


def replacing(*before: FollowProgram) -> FollowWorld:
    """Plan 1 has landed, and open plan 2 replaces offset 2."""
    world = prepared(land(1, 2), *before)
    direct(world).control.plan(frozenset({2}), replaces=True)
    return world


def replacing_decoded() -> FollowWorld:
    """Plan 1 was decoded, plan 2 has landed, and open plan 3 replaces a row of plan 1."""
    world = prepared(land(1, 4), decode(Decoder()), merge(), land(5))
    direct(world).control.plan(frozenset({4}), replaces=True)
    return world


def replayed() -> FollowWorld:
    """Offset 2 was quarantined, and a replay with new rules has typed it."""
    return prepared(
        land(1, 2), decode(Decoder()), decode(Decoder(rules=2, again=frozenset({2}))), merge()
    )


def unchecked_after_a_rebuild() -> FollowWorld:
    """The ledger was lost and rebuilt after a decode, so plan 1 has no decision."""
    return prepared(land(1, 2), decode(Decoder()), external("control", "restore", 0), rewind())


# -- scenarios -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FollowSketch:
    """A scenario without its number of kills.

    Attributes:
        name: Its name in the report.
        world: Creates the initial world.
        actors: Returns programs by name, with these guards; `external` ones are not Tidemark.
        errors: Errors that actors may end with.
        floor: Minimum number of states of a search.
        kills: Number of kills in `make test`.
        more_kills: Number of kills in `make test-faults`.
        last: The decoder that finishes each world.
    """

    name: str
    world: Callable[[], FollowWorld]
    actors: Callable[[Guards], Mapping[str, FollowProgram]]
    errors: frozenset[str] = RETRYABLE
    floor: int = 10
    kills: int = 1
    more_kills: int = 2
    last: Decoder = field(default_factory=Decoder)

    def scenario(self, kills: int, guards: Guards = ALL) -> Scenario:
        actors = dict(self.actors(guards))
        last = replace(self.last, guards=guards)
        return Scenario(
            name=f"{self.name}, {kills} kills",
            world=self.world(),
            actors=actors,
            operator=lambda world: settle(world, last),
            errors=self.errors,
            faults=kills,
            environment=frozenset(name for name in actors if name.startswith("external")),
            system=_system(last),
        )


def _system(last: Decoder) -> System:
    """Return the checks; each world is settled, because all actors may be killed in it."""
    checked: set[Hashable] = set()

    def check(world: FollowWorld) -> None:
        key = world.key
        if key not in checked:
            checked.add(key)
            check_world(world)
            check_progress(world, last)

    return System(
        resume=resume,
        perform=perform,
        faults_of=_no_faults,
        check_step=check_step,
        check_world=check,
        check_end=check_end,
        check_settled=lambda world: check_settled(world, last),
    )


def _no_faults(_: Call) -> tuple[Fault, ...]:
    """A failed commit ends a decoder, as a kill before or after the commit does."""
    return ()


def _decode(guards: Guards, **values: object) -> FollowProgram:
    return decode(replace(Decoder(guards=guards), **values))  # type: ignore[arg-type]


DECODERS = [
    FollowSketch(
        name="two decoders",
        world=landed,
        actors=lambda g: {"one": _decode(g), "two": _decode(g)},
    ),
    FollowSketch(
        name="two decoders with other rules",
        world=landed_in_three,
        actors=lambda g: {"one": _decode(g), "two": _decode(g, rules=2)},
    ),
    FollowSketch(
        name="two decoders in chunks",
        world=landed_in_three,
        actors=lambda g: {"one": _decode(g, plans=1), "two": _decode(g, plans=2, rules=2)},
    ),
    FollowSketch(
        name="a landing and a decoder",
        world=decoded,
        actors=lambda g: {"run": land(3), "decoder": _decode(g)},
    ),
    FollowSketch(
        name="maintenance and a decoder",
        world=half_decoded,
        actors=lambda g: {
            "decoder": _decode(g),
            "external typed": external("typed", "maintain"),
            "external quarantine": external("quarantine", "maintain"),
        },
    ),
    FollowSketch(
        name="a replay and a decoder",
        world=half_decoded,
        actors=lambda g: {
            "ops": _decode(g, rules=2, again=frozenset({2})),
            "decoder": _decode(g),
        },
    ),
    FollowSketch(
        name="two replays with other rules",
        world=lambda: prepared(land(1, 2), land(3), decode(Decoder())),
        actors=lambda g: {
            "one": _decode(g, rules=2, again=frozenset({2, 3})),
            "two": _decode(g, again=frozenset({2, 3})),
        },
    ),
    FollowSketch(
        name="a decoder without a schema, and a decoder",
        world=landed_in_three,
        actors=lambda g: {
            "one": _decode(g, unreadable=frozenset({1})),
            "two": _decode(g, unreadable=frozenset({1})),
        },
        errors=RETRYABLE | {"SchemaConflict"},
    ),
    FollowSketch(
        name="from scratch and a decoder",
        world=decoded,
        actors=lambda g: {
            "ops": then(from_scratch(Decoder(rules=2, guards=g)), _decode(g, rules=2)),
            "decoder": _decode(g),
        },
    ),
]
"""Decoders side by side."""

DECISIONS = [
    FollowSketch(
        name="a zombie, a decision, and a decoder",
        world=half_decoded,
        actors=lambda g: {"zombie": _decode(g), "ops": then(decide(2, False), _decode(g))},
    ),
    FollowSketch(
        name="a plan rejected and released, and two decoders",
        world=decoded,
        actors=lambda g: {
            "ops": decide(1, False, True),
            "one": _decode(g),
            "two": _decode(g),
        },
    ),
    FollowSketch(
        name="an undo and a decoder",
        world=decoded,
        actors=lambda g: {"ops": undo(1), "decoder": _decode(g)},
    ),
    FollowSketch(
        name="a zombie, an undo, and a decoder",
        world=landed,
        actors=lambda g: {"zombie": _decode(g), "ops": then(undo(1), _decode(g))},
    ),
    FollowSketch(
        name="an undo, a landing, and a decoder",
        world=decoded,
        actors=lambda g: {"ops": then(undo(1), land(1, 2)), "decoder": _decode(g)},
        errors=RETRYABLE,
    ),
    FollowSketch(
        name="a replacement and a first decoder",
        world=replacing,
        actors=lambda g: {"ops": continue_landing(2), "decoder": _decode(g)},
    ),
    FollowSketch(
        name="a replacement and a decoder",
        world=lambda: replacing(decode(Decoder()), merge()),
        actors=lambda g: {"ops": continue_landing(2), "decoder": _decode(g)},
    ),
    FollowSketch(
        name="a replacement without a schema, and a decoder",
        world=replacing_decoded,
        actors=lambda g: {
            "ops": continue_landing(3),
            "waiting": _decode(g, unreadable=frozenset({4})),
            "decoder": _decode(g),
        },
        errors=RETRYABLE | {"SchemaConflict"},
    ),
    FollowSketch(
        name="a replacement without a schema, and an undo of it",
        world=lambda: prepared(land(1, 4), decode(Decoder()), merge(), land(4, replaces=True)),
        actors=lambda g: {
            "ops": undo(2),
            "waiting": _decode(g, unreadable=frozenset({4})),
            "decoder": _decode(g, unreadable=frozenset({4})),
        },
        errors=RETRYABLE | {"SchemaConflict"},
    ),
    FollowSketch(
        name="a replacement without a schema, and decisions",
        world=lambda: prepared(land(1, 4), decode(Decoder()), merge(), land(4, replaces=True)),
        actors=lambda g: {
            "ops": then(decide(1, False), decide(2, False, True)),
            "waiting": _decode(g, unreadable=frozenset({4})),
            "decoder": _decode(g, unreadable=frozenset({4})),
        },
        errors=RETRYABLE | {"SchemaConflict"},
    ),
    FollowSketch(
        name="a change of the policy",
        world=lambda: prepared(
            land(1), land(2), decide(2, False), decode(Decoder(policy=Policy.ALWAYS))
        ),
        actors=lambda g: {
            "decoder": _decode(g),
            "zombie": _decode(g, policy=Policy.ALWAYS),
        },
    ),
    FollowSketch(
        name="a change of the policy before a check",
        world=lambda: prepared(land(1, 2, is_checked=False), decode(Decoder(policy=Policy.ALWAYS))),
        actors=lambda g: {"decoder": _decode(g), "ops": decide(1, False)},
    ),
    FollowSketch(
        name="a decision after a lost ledger",
        world=unchecked_after_a_rebuild,
        actors=lambda g: {
            "decoder": then(_decode(g), _decode(g)),
            "ops": decide(1, False),
        },
    ),
]
"""Changes of the visible offsets."""

OTHERS = [
    FollowSketch(
        name="rows deleted from the typed table",
        world=half_decoded,
        actors=lambda g: {
            "one": _decode(g),
            "two": _decode(g),
            "external": external("typed", "delete", Place(1, 1)),
        },
    ),
    FollowSketch(
        name="rows deleted during a decode in chunks",
        world=landed_in_three,
        actors=lambda g: {
            "decoder": _decode(g, plans=1),
            "external": external("typed", "delete", Place(1, 1)),
        },
    ),
    FollowSketch(
        name="rows deleted from the bronze table",
        world=landed,
        actors=lambda g: {
            "decoder": _decode(g),
            "external": external("bronze", "delete", Place(1, 1)),
        },
    ),
    FollowSketch(
        name="a cleaned log",
        world=decoded_twice,
        actors=lambda g: {
            "run": land(4),
            "decoder": _decode(g),
            "external": then(external("typed", "maintain"), external("typed", "clean_log")),
        },
    ),
]
"""Other programs."""

RESTORES = [
    FollowSketch(
        name="RESTORE of the typed table, and a decoder in chunks",
        world=lambda: prepared(
            *(land(1), land(2, 4), decide(1, False), decode(Decoder())),
            *(decide(1, True), decode(Decoder())),
        ),
        actors=lambda g: {
            "decoder": _decode(g, plans=1),
            "external": external("typed", "restore", 1),
        },
        last=Decoder(plans=1),
    ),
    FollowSketch(
        name="RESTORE of the typed table",
        world=decoded_twice,
        actors=lambda g: {
            "run": then(land(4), _decode(g)),
            "external": external("typed", "restore", 1),
        },
    ),
    FollowSketch(
        name="RESTORE of the quarantine",
        world=half_decoded,
        actors=lambda g: {
            "decoder": then(_decode(g), _decode(g)),
            "external": external("quarantine", "restore", 0),
        },
    ),
    FollowSketch(
        name="RESTORE of the quarantine after a replay",
        world=replayed,
        actors=lambda g: {
            "run": then(land(3), _decode(g, rules=2)),
            "external": external("quarantine", "restore", 1),
        },
    ),
    FollowSketch(
        name="RESTORE of both tables",
        world=replayed,
        actors=lambda g: {
            "run": _decode(g),
            "external typed": external("typed", "restore", 1),
            "external quarantine": external("quarantine", "restore", 1),
        },
    ),
    FollowSketch(
        name="an older copy of the typed table",
        world=lambda: prepared(
            *(land(1, 2), decode(Decoder()), decode(Decoder(rules=2, again=frozenset({2})))),
            *(merge(), land(3)),
        ),
        actors=lambda g: {
            "run": _decode(g),
            "merge": merge(g),
            "external": external("typed", "copy", 1),
        },
    ),
    FollowSketch(
        name="an older copy of the typed table, and a zombie",
        world=lambda: prepared(land(1), decode(Decoder()), land(3), decode(Decoder()), land(4)),
        actors=lambda g: {
            "zombie": _decode(g, plans=1),
            "next": _decode(g, plans=1),
            "external": external("typed", "copy", 1),
        },
    ),
    FollowSketch(
        name="an older copy of the quarantine",
        world=replayed,
        actors=lambda g: {
            "run": then(_decode(g), _decode(g)),
            "external": external("quarantine", "copy", 1),
        },
    ),
    FollowSketch(
        name="RESTORE of the bronze table",
        world=decoded_twice,
        actors=lambda g: {
            "ops": rewind(),
            "decoder": _decode(g),
            "external": external("bronze", "restore", 1),
        },
        errors=BRONZE_CHANGED,
    ),
    FollowSketch(
        name="RESTORE of the bronze table, and a first decoder",
        world=lambda: prepared(land(1), land(2)),
        actors=lambda g: {
            "decoder": _decode(g),
            "external": then(external("bronze", "restore", 1), rewind()),
            "again": then(external("bronze", "restore", 2), rewind()),
        },
        errors=BRONZE_CHANGED,
    ),
    FollowSketch(
        name="a replacement, RESTORE of the bronze table, and a first decoder",
        world=replacing,
        actors=lambda g: {
            "ops": continue_landing(2),
            "decoder": _decode(g),
            "external": then(external("bronze", "restore", 1), rewind()),
        },
        errors=BRONZE_CHANGED | {"InvalidSelection"},
    ),
    FollowSketch(
        name="an older ledger",
        world=decoded_twice,
        actors=lambda g: {
            "ops": rewind(),
            "decoder": _decode(g),
            "external": external("control", "restore", 3),
        },
        errors=BRONZE_CHANGED,
    ),
    FollowSketch(
        name="an older ledger that grows again",
        world=lambda: prepared(land(1), land(3), decode(Decoder()), decide(1, False)),
        actors=lambda g: {
            "decoder": then(_decode(g), _decode(g)),
            "external": then(external("control", "restore", 6), decide(2, False)),
        },
        errors=BRONZE_CHANGED,
    ),
    FollowSketch(
        name="a lost ledger",
        world=decoded_twice,
        actors=lambda g: {
            "ops": then(rewind(), decide(1, True)),
            "decoder": _decode(g),
            "external": external("control", "restore", 0),
        },
        errors=BRONZE_CHANGED,
    ),
]
"""Tables and ledgers that were replaced by older states."""

MERGES = [
    FollowSketch(
        name="a decoder and two merges",
        world=lambda: prepared(
            land(1), decode(Decoder()), merge(), land(4), decode(Decoder()), land(5)
        ),
        actors=lambda g: {"decoder": _decode(g), "one": merge(g), "two": merge(g)},
    ),
    FollowSketch(
        name="an undo, a decoder, and a merge",
        world=decoded_twice,
        actors=lambda g: {"run": then(undo(1), _decode(g)), "merge": merge(g)},
    ),
    FollowSketch(
        name="rows deleted, and a merge",
        world=decoded_twice,
        actors=lambda g: {
            "merge": then(merge(g), merge(g)),
            "decoder": then(land(4), _decode(g)),
            "external": external("typed", "delete", Place(1, 1)),
        },
    ),
]
"""The upsert table behind it."""

LONG = [
    FollowSketch(
        name="a replay, a zombie, a decoder, and decisions",
        world=half_decoded,
        actors=lambda g: {
            "replay": _decode(g, rules=2, again=frozenset({2}), commits=2),
            "zombie": _decode(g, commits=1),
            "decoder": _decode(g, commits=1),
            "ops": decide(2, False, True),
        },
    ),
    FollowSketch(
        name="two decoders, an undo, and RESTORE of the typed table",
        world=decoded_twice,
        actors=lambda g: {
            "one": _decode(g, commits=2),
            "two": _decode(g, commits=1),
            "ops": undo(2),
            "external": external("typed", "restore", 1),
        },
    ),
    FollowSketch(
        name="two decoders, RESTORE of the quarantine, and a deletion",
        world=half_decoded,
        actors=lambda g: {
            "one": _decode(g, commits=2),
            "two": _decode(g, commits=2, rules=2),
            "external quarantine": external("quarantine", "restore", 0),
            "external typed": external("typed", "delete", Place(1, 1)),
        },
    ),
    FollowSketch(
        name="a replacement, two decoders, and RESTORE of the bronze table",
        world=lambda: replacing(decode(Decoder())),
        actors=lambda g: {
            "run": continue_landing(2),
            "one": _decode(g, commits=1),
            "two": _decode(g, commits=2),
            "external": then(external("bronze", "restore", 1), rewind()),
        },
        errors=BRONZE_CHANGED | {"InvalidSelection"},
    ),
    FollowSketch(
        name="an undo, a lost ledger, and two decoders",
        world=decoded_twice,
        actors=lambda g: {
            "ops": then(undo(1), rewind()),
            "one": _decode(g, commits=1),
            "two": _decode(g, commits=2),
            "external": external("control", "restore", 4),
        },
        errors=BRONZE_CHANGED,
    ),
    FollowSketch(
        name="two chunked decoders, a merge, and an older copy of the typed table",
        world=landed_in_three,
        actors=lambda g: {
            "one": _decode(g, plans=1, commits=2),
            "two": _decode(g, plans=1, commits=2),
            "merge": merge(g),
            "external": external("typed", "copy", 1),
        },
    ),
]
"""Scenarios of four actors."""

SKETCHES = DECODERS + DECISIONS + OTHERS + RESTORES + MERGES
