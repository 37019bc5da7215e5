"""Decodes of a bronze table into its typed table and quarantine, which follow its ledger.

`next` and `replay` find work, and resolve the schemas of its records; `decode` decodes them in
rounds. No table records the work: after any interruption, `next` finds it again.

The protocol is in docs/adr/0028-derived-tables-follow-the-ledger.md.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import NamedTuple

from tidemark.bronze.ingest.ledgers import missing_rows, read_checked_ledger
from tidemark.core.bookmark import MAX_RUNS, Bookmark
from tidemark.core.datafile import DataFile
from tidemark.core.decode_round import cleared_bookmark
from tidemark.core.decode_work import EVERY_PLAN, Decoded, DecodeRequest, DecodeWork
from tidemark.core.errors import OnlyCopy, TidemarkError
from tidemark.core.following import (
    BatchOffsets,
    by_topic_id,
    first_ranges,
    places_of,
    read_all,
    required,
)
from tidemark.core.offsets import Span, SpanSet, difference, intersection, size_of_all, union
from tidemark.delta.conflicts import retry_on_conflict
from tidemark.delta.errors import CommitConflict, ControlConflict
from tidemark.delta.noted_commits import NotedVersion, RowChange
from tidemark.silver.typed.columns import typed_schema
from tidemark.silver.typed.errors import RegistryFailure, SchemaReplaced
from tidemark.silver.typed.followed_tables import (
    FollowedTables,
    FollowPorts,
    Look,
    bookmark_of,
)
from tidemark.silver.typed.quarantine_index import EntryChange
from tidemark.silver.typed.quarantine_record import QuarantinedRecord
from tidemark.silver.typed.schemas import ResolvedSchemas
from tidemark.silver.typed.state import DecodeProgress, FollowState
from tidemark.spec.decode import Part, QuarantineReason
from tidemark.spec.fields import FieldType
from tidemark.spec.model import PipelineSpec

log = logging.getLogger(__name__)

_MOST_ROUNDS = 100
"""Default maximum number of rounds of a decode."""
_EXAMINED = 100
"""Maximum number of pending plans that a round examines first."""
_RENEWED_AFTER = timedelta(days=7)
"""Age of a bookmark that is repeated. The log of a table keeps a commit for 30 days."""


class _Commit(NamedTuple):
    """A commit to the typed table, which the quarantine has to follow.

    Attributes:
        look: The look before the commit.
        bookmark: The bookmark that it stores.
        offsets: The offsets that it decoded.
        failed: Files with the entries of records that could not be decoded.
        changes: Its changes.
    """

    look: Look
    bookmark: Bookmark
    offsets: BatchOffsets
    failed: Sequence[DataFile]
    changes: Decoded


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearedTable:
    """The numbers of a decode from scratch.

    Attributes:
        rows: Number of removed rows; None if the files lack statistics.
        offsets: Number of offsets that the next decode decodes.
    """

    rows: int | None
    offsets: int


class _Found(NamedTuple):
    """Work, and the errors of plans that wait.

    Attributes:
        work: None if both tables are up to date.
        problems: The errors.
    """

    work: DecodeWork | None
    problems: Sequence[TidemarkError]

    def work_or_raise(self) -> DecodeWork | None:
        """Return the work; raise an error of a plan that waits if there is no other work."""
        if self.work is None and self.problems:
            raise self.problems[0]
        return self.work


class Prepared(NamedTuple):
    """The result of the work that needs no Spark.

    Attributes:
        done: The changes.
        needs_spark: Whether records are left for Spark.
    """

    done: Decoded
    needs_spark: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Decodes:
    """Decodes the bronze table of one pipeline.

    Attributes:
        spec: The pipeline of the typed table.
        ports: Its ports.
    """

    spec: PipelineSpec
    ports: FollowPorts

    @property
    def _tables(self) -> FollowedTables:
        return FollowedTables(
            pipeline=self.spec.origin,
            publish=self.spec.decoding().publish,
            spec=self.spec.decoding().fingerprint,
            most=self.spec.records_per_chunk,
            examined=_EXAMINED,
            ports=self.ports,
        )

    # -- all of the work -------------------------------------------------------------------------

    def prepare(self, replayed: BatchOffsets | None = None) -> Prepared:
        """Do the work that needs no Spark, such as the removal of rows.

        Args:
            replayed: As for `run`.

        Returns:
            What was done, and whether records are left for Spark.

        Raises:
            SchemaConflict, RegistryFailure and so on: As for `next`.
        """
        done = Decoded()
        for work in self._all_work(replayed):
            if work.plans:
                return Prepared(done, needs_spark=True)
            done += self.decode(work)
        return Prepared(done, needs_spark=False)

    def run(self, replayed: BatchOffsets | None = None) -> Iterator[Decoded]:
        """Decode until no records are left; yield the changes of each round.

        After an error, the changes before it are committed, and the next decode continues.

        Args:
            replayed: Offsets in quarantine to decode again. None for no replay.

        Raises:
            SchemaConflict and so on: As for `next` and `rounds`.
        """
        done: list[Span] = []
        for work in self._all_work(replayed, done):
            for each in self.rounds(work):
                done.extend(each.plans)
                yield each

    def _all_work(
        self, replayed: BatchOffsets | None, done: Sequence[Span] = ()
    ) -> Iterator[DecodeWork]:
        """Yield the work of a replay, and all further work.

        Args:
            replayed: As for `run`.
            done: Numbers of the plans that the caller has decoded meanwhile.
        """
        left, problems = replayed or {}, list[TidemarkError]()
        while left:
            found = self._replay(left)
            problems += found.problems
            if found.work is not None:
                yield found.work
            left = difference(left, first_ranges(left, MAX_RUNS))
        while (work := self.next(SpanSet.of(done))) is not None:
            yield work
        if problems:  # The records stay in quarantine, so no later work reports them.
            raise problems[0]

    # -- work ------------------------------------------------------------------------------------

    def next(self, done: SpanSet | None = None) -> DecodeWork | None:
        """Return the next work; None if both tables are up to date. Needs no JVM.

        Creates missing tables, stores new schemas, adds columns, and repeats a bookmark that is a
        week old. A plan whose schema does not fit the columns waits. Its error is raised once no
        other work is left.

        Args:
            done: Numbers of the plans that the caller has decoded already. They are left out, so
                that a loop ends.

        Raises:
            SchemaConflict: The schema of a waiting plan does not fit the typed table.
            RegistryFailure, SchemaReplaced: The schemas of the next plans are unknown.
            SpecOutdated: The table was decoded from scratch with another spec meanwhile.
            ForeignTable: One of the tables belongs to another pipeline.
            TableAltered: One of the tables has other columns than the spec, or is for appends
                only although rows have to be removed.
            HistoriesDiverge: The bronze table and the control table diverge.
            DuplicateRows: The bronze table has more rows than landed in it.
            CommitConflict: Concurrent processes were first, several times.
        """
        plans = EVERY_PLAN.difference(done or SpanSet())
        return retry_on_conflict(lambda: self._next(plans, {})).work_or_raise()

    def replay(self, offsets: BatchOffsets) -> DecodeWork | None:
        """Return the work that decodes offsets again, together with the next work.

        The work has at most `MAX_RUNS` ranges to decode again. It omits offsets that belong in
        neither table, and plans whose schema does not fit the columns. Raises the errors of `next`.
        """
        return self._replay(offsets).work_or_raise()

    def _replay(self, offsets: BatchOffsets) -> _Found:
        chosen = first_ranges(offsets, MAX_RUNS)
        return retry_on_conflict(lambda: self._next(EVERY_PLAN, chosen))

    def _next(self, plans: SpanSet, replayed: BatchOffsets) -> _Found:
        problems = list[TidemarkError]()
        while True:
            look = self._look_or_prepare(plans, replayed)
            if look is None:
                return _Found(None, ())
            again = look.step.replayed(replayed, look.chosen)
            if look.step.surplus or again:
                # fence: decode-of-removable-rows
                look.tables.typed.check_removals()
                look.tables.quarantine.version.check_removals()
            lacking = self._lacking_entries(look)
            wanted = union([look.chosen, again, lacking])
            try:
                schemas, waiting = self.ports.schemas.resolve_plans(wanted)
            except (RegistryFailure, SchemaReplaced) as unknown:
                schemas, waiting, wanted = ResolvedSchemas(), {}, {}
                problems.append(unknown)
            problems += waiting.values()
            # Records that failed before fail again without their schema, so their entries need not
            # wait. One commit adds all entries: `run` would else find the same work for ever.
            failed = lacking.keys() - look.chosen.keys() - again.keys()
            if any(batch.sequence in waiting for batch in lacking.keys() - failed):
                wanted, failed = union([look.chosen, again]), set()
            wanted = {
                each: own
                for each, own in wanted.items()
                if each.sequence not in waiting or each in failed
            }
            # fence: plans-with-schema-conflicts-wait
            plans = plans.difference(SpanSet.of_numbers(waiting))
            # fence: decode-continues-after-schema-conflicts
            if wanted or not any(batch.sequence in waiting for batch in look.chosen):
                break
        if not wanted and not self._needs_commit(look, lacking):
            self.ports.check()
            self._renew(look)
            return _Found(None, problems)
        for problem in problems:
            log.warning("plans wait pipeline=%s message=%s", self.spec.name, problem)
        self.ports.prepare(schemas.columns)
        own = SpanSet.of_numbers({batch.sequence for batch in wanted})
        needs_schemas = bool(self.spec.decoding().framed_parts)
        work = DecodeWork(
            plans=own if needs_schemas or not wanted else plans.union(own),
            replayed={each: spans for each, spans in again.items() if each in wanted},
            schemas={part.value: ids for part, ids in schemas.ids.items()},
            oversized={part.value: ids for part, ids in schemas.oversized.items()},
            resolved=wanted if needs_schemas else None,
            earlier_spec=look.step.earlier.spec if look.step.earlier else "",
        )
        return _Found(work, problems)

    def _look_or_prepare(self, plans: SpanSet, replayed: BatchOffsets) -> Look | None:
        """Return a look, after creating missing tables that are needed; None without tables."""
        look = self._tables.look(plans, replayed)
        # The typed table may have rows of undone plans, and only the quarantine be missing.
        if look is not None or not (self._tables.required() or self.ports.typed.open()):
            return look
        self.ports.prepare({})
        return self._tables.look(plans, replayed)

    def _lacking_entries(self, look: Look) -> BatchOffsets:
        """Return the offsets that a killed decode left in neither table."""
        if look.step.earlier is None:
            return {}
        return self._tables.entry_change(look.tables, look.changes).lacking

    @staticmethod
    def _needs_commit(look: Look, lacking: BatchOffsets) -> bool:
        """Whether a decode without records has to commit to one of the tables."""
        is_behind = look.changes != [] and not lacking
        return is_behind or look.step.bookmark({}, {}, has_failed=False) is not None

    def _renew(self, look: Look) -> None:
        """Repeat a bookmark that the log of a table may soon lose."""
        index, typed = look.tables.quarantine, look.tables.typed
        bookmark = look.step.bookmark({}, {}, has_failed=False, renews=self._is_old(typed))
        if bookmark is not None:
            typed.commit(bookmark.as_metadata(), RowChange())
        elif self._is_old(index.version):
            # The typed table was renewed before, so its log keeps the commit that is named here.
            index.follow(typed, EntryChange())

    def _is_old(self, version: NotedVersion) -> bool:
        at = version.noted_at(over_deletions=True)
        return at is not None and at < self.ports.now() - _RENEWED_AFTER

    # -- rounds ----------------------------------------------------------------------------------

    def decode(self, work: DecodeWork, most_rounds: int = _MOST_ROUNDS) -> Decoded:
        """Make the rounds of `rounds`, and return the sum of their changes."""
        return sum(self.rounds(work, most_rounds), Decoded())

    def rounds(self, work: DecodeWork, most_rounds: int = _MOST_ROUNDS) -> Iterator[Decoded]:
        """Make rounds until none of the work is left, or a limit is reached.

        Each round makes at most one commit to each table. If another process was first, the round
        begins again. Plans that land meanwhile may be left for the next work. A work without plans
        decodes no record.

        Args:
            work: Result of `next` or `replay`.
            most_rounds: Maximum number of rounds. The next work has the rest.

        Yields:
            The changes of each round, after its commits.

        Raises:
            TooManyQuarantined: More records fail than the spec allows.
            SpecOutdated, ForeignTable, HistoriesDiverge, DuplicateRows, CommitConflict: As for
                `next`.
        """
        plans, replayed = work.plans, work.replayed
        for _ in range(most_rounds):
            try:
                commit = retry_on_conflict(partial(self._commit, work, plans, replayed))
            except TidemarkError:
                yield from self._withdrawn()  # fence: rows-are-withdrawn-before-an-error
                raise
            is_followed = self._follow(work, commit)
            if commit is None:
                if is_followed:
                    yield Decoded(rounds=1)
                return
            yield commit.changes
            # If more plans wait than a bookmark can list, a decoded plan becomes pending again.
            # fence: decode-chooses-a-plan-once
            plans = plans.difference(commit.changes.plans)
            if not commit.bookmark.pending.intersection(plans):
                return
            replayed = {}

    def _withdrawn(self) -> Iterator[Decoded]:
        """Remove rows that are no longer published, although other records cannot be decoded.

        They must not stay until an operator helps.
        """
        look = retry_on_conflict(lambda: self._tables.look(SpanSet(), {}))
        if look is None or not look.step.removed({}):
            return
        nothing = DecodeWork()
        commit = retry_on_conflict(partial(self._commit, nothing, nothing.plans, {}))
        self._follow(nothing, commit)
        if commit is not None and commit.changes.removed:
            yield commit.changes

    def _commit(self, work: DecodeWork, plans: SpanSet, replayed: BatchOffsets) -> _Commit | None:
        """Make one commit to the typed table; None if none is needed."""
        look = self._tables.look(plans, replayed)
        if look is None:
            return None
        step, (index, typed, bronze, *_) = look.step, look.tables
        specs = (self._tables.spec, work.earlier_spec)
        # A decode from scratch before the first bookmark replaces no spec.
        # fence: decode-with-an-earlier-spec-commits-nothing
        if work.earlier_spec is not None and step.earlier and step.earlier.spec not in specs:
            raise ControlConflict(pipeline=self.spec.origin, event_number=step.earlier.event)
        again = step.replayed(replayed, look.chosen)
        decoded = union([look.chosen, again])
        # Another process has cleared the table, for example. The next work has more schemas.
        # fence: only-records-with-resolved-schemas-are-decoded
        if work.resolved is not None and difference(decoded, work.resolved):
            return None
        entries = index.version.offsets(union([step.surplus, again]))
        before = _size_of_both(entries, decoded)
        files = self._decode(bronze, decoded, work, quarantined=before)
        good = [file for file in files if not file.quarantined]
        failed = [file for file in files if file.quarantined]
        bookmark = step.bookmark(look.chosen, again, has_failed=bool(failed))
        if bookmark is None:
            return None
        self._check_published(bookmark, decoded)
        removed = step.removed(look.chosen)
        change = RowChange(removed=union([removed, again]), added=decoded, files=good)
        version = typed.commit(bookmark.as_metadata(), change)
        failures = sum(file.records for file in failed)
        changes = Decoded(
            plans=SpanSet.of_numbers({batch.sequence for batch in look.chosen}),
            offsets=size_of_all(decoded),
            records=sum(file.records for file in good) + failures,
            quarantined=failures,
            removed=size_of_all(
                union([typed.offsets(removed), intersection(entries, step.surplus)])
            ),
            rounds=1,
            table_version=version,
        )
        log.info(
            "decoded pipeline=%s plans=%s offsets=%d records=%d quarantined=%d removed=%d "
            "pending=%d",
            self.spec.origin,
            ",".join(f"{run.start}-{run.end - 1}" for run in changes.plans),
            changes.offsets,
            changes.records,
            changes.quarantined,
            changes.removed,
            bookmark.pending.size,
        )
        return _Commit(look, bookmark, decoded, failed, changes)

    def _decode(
        self, bronze: NotedVersion, offsets: BatchOffsets, work: DecodeWork, *, quarantined: int
    ) -> Sequence[DataFile]:
        if not offsets:
            return ()
        request = DecodeRequest(
            pipeline=self.spec.name,
            version=bronze.ref.version,
            offsets=offsets,
            schemas=work.schemas,
            oversized=work.oversized,
            quarantined=quarantined,
        )
        return self.ports.open_decoder().decode(request)

    def _check_published(self, bookmark: Bookmark, decoded: BatchOffsets) -> None:
        """Raise if some decoded offsets have left the published view meanwhile.

        The next decode would remove their rows. The check shortens the time in which they are
        visible.
        """
        if not decoded:
            return
        newest = self._tables.plans_since(bookmark, bookmark.publish, SpanSet())
        # fence: offsets-that-were-rejected-meanwhile-are-not-committed
        if newest is None or intersection(newest.surplus(bookmark, bookmark.publish), decoded):
            raise ControlConflict(pipeline=self.spec.origin, event_number=bookmark.event)

    # -- the quarantine --------------------------------------------------------------------------

    def _follow(self, work: DecodeWork, commit: _Commit | None) -> bool:
        """Let the quarantine follow the typed table; return whether it had to."""
        if commit is not None and self._follow_own(commit):
            return True
        return retry_on_conflict(lambda: self._follow_newest(work))

    def _follow_own(self, commit: _Commit) -> bool:
        """Let the quarantine follow a commit, if it was up to date before.

        The files of the decoder have the entries, so no offsets are compared.

        Returns:
            Whether the quarantine has followed.
        """
        (index, typed, *_), bookmark = commit.look.tables, commit.bookmark
        if not commit.look.is_followed:  # fence: quarantine-was-up-to-date-before-the-commit
            return False
        if not bookmark.changes_quarantine:
            return True
        after = self.ports.typed.open()
        if (
            after is None
            # fence: quarantine-follows-one-commit-alone
            or after.notes_since(typed.ref) != [bookmark.as_metadata()]
        ):
            return False
        try:
            change = index.own_change(commit.offsets, self._tables.claims(index, after, []))
            index.follow(after, change, files=commit.failed)
        except CommitConflict:
            return False
        return True

    def _follow_newest(self, work: DecodeWork) -> bool:
        tables = self._tables.open()
        if tables is None or tables.earlier is None:
            return False
        index, typed, bronze, *_ = tables
        changes = index.changes(typed)
        if changes == []:
            return False
        change = self._tables.entry_change(tables, changes)
        # fence: entries-of-unknown-schemas-wait
        if any(batch.sequence not in work.plans for batch in change.lacking):
            return False
        index.follow(typed, change, self._entries(bronze, change.lacking, work))
        return True

    def _entries(
        self, bronze: NotedVersion, offsets: BatchOffsets, work: DecodeWork
    ) -> Sequence[QuarantinedRecord]:
        """Decode the records of a killed decoder again, for the reasons of their failures."""
        # These records were within the limit of the quarantine before.
        files = self._decode(bronze, offsets, work, quarantined=size_of_all(offsets))
        failed = self.ports.index.entries_in([file for file in files if file.quarantined])
        known = {each.place for each in failed}
        decodable = [
            QuarantinedRecord(
                plan=batch.sequence,
                topic_id=batch.topic_id,
                partition=partition,
                offset=offset,
                reason=QuarantineReason.DECODABLE,
            )
            for batch, partition, offset in places_of(offsets)
            if (batch, partition, offset) not in known
        ]
        return [*failed, *decodable]

    # -- other uses ------------------------------------------------------------------------------

    def from_scratch(
        self, requested_by: str, reason: str, *, dry_run: bool = False
    ) -> ClearedTable:
        """Remove all typed rows in one commit; the next decode decodes all plans.

        The table gets the columns of the spec.

        Args:
            requested_by: The operator, stored in the metadata of the commit.
            reason: The operator's reason, stored there as well.
            dry_run: Only return the numbers.

        Raises:
            OnlyCopy: The bronze table lacks landed rows, or their number is unknown. Or one of its
                files cannot be read.
            TableAltered: The typed table is for appends only, or has a feature or a rule that would
                remain.
            RegistryFailure, SchemaReplaced: As for `SchemaResolver.resolve`.
            ForeignTable, HistoriesDiverge, DuplicateRows, CommitConflict: As for `next`.
        """
        reasons = {"requested_by": requested_by, "reason": reason}
        if not dry_run:
            # Otherwise the table would stay empty while a registry does not answer.
            self.ports.schemas.fetch(self._tables.required())
        cleared = retry_on_conflict(lambda: self._clear(None if dry_run else reasons))
        if not dry_run:
            log.info(
                "cleared pipeline=%s rows=%s requested_by=%s reason=%s",
                *(self.spec.origin, cleared.rows, requested_by, reason),
            )
        return cleared

    def _clear(self, reasons: Mapping[str, str] | None) -> ClearedTable:
        """Remove all typed rows for some reasons; only return the numbers without any."""
        ports, origin, decode = self.ports, self.spec.origin, self.spec.decoding()
        typed = ports.typed.open()
        ledger = read_checked_ledger(ports.control, origin, ports.bronze, rows=True)
        missing = missing_rows(ports.control, ledger, ports.bronze)
        if missing != 0:  # fence: only-copy-is-not-cleared
            raise OnlyCopy.of_bronze_rows(origin, missing)
        plans = read_all(ports.control, origin)
        earlier = bookmark_of(typed, over_changes=True) if typed else None
        bookmark = cleared_bookmark(plans, decode.publish, decode.fingerprint, earlier)
        offsets = required(plans.now.values(), decode.publish)
        if typed is None or bookmark is None:
            return ClearedTable(rows=0, offsets=size_of_all(offsets))
        typed.check_replaceable()
        self._check_bronze_files()
        rows = typed.row_count()
        if reasons is not None:
            typed.clear(bookmark.as_metadata(), typed_schema(decode), reasons)
        return ClearedTable(rows=rows, offsets=size_of_all(offsets))

    def _check_bronze_files(self) -> None:
        """Raise `OnlyCopy` if a file of the bronze table cannot be read.

        Its log has the rows of lost files as well.
        """
        bronze = self.ports.bronze_rows.open()
        lost = bronze.unreadable_footer() if bronze else None
        if bronze and lost:  # fence: only-readable-copies-are-decoded-from-scratch
            raise OnlyCopy.of_bronze_file(self.spec.origin, bronze.uri, *lost)

    def draft(self, offsets: BatchOffsets) -> tuple[DecodeRequest, Mapping[Part, FieldType]] | None:
        """Return what a replay would decode, with the types of the columns. Writes nothing.

        Needs schemas whose store keeps new ones in memory. Offsets that a replay skips are left
        out.

        Args:
            offsets: As for `replay`, but all of them.

        Returns:
            None if there is nothing to decode.
        """
        look = retry_on_conflict(lambda: self._tables.look(SpanSet(), offsets))
        again = look.step.replayed(offsets, {}) if look else {}
        schemas, waiting = self.ports.schemas.resolve_plans(again)
        wanted = {each: own for each, own in again.items() if each.sequence not in waiting}
        if look is None or not wanted:
            return None
        request = DecodeRequest(
            pipeline=self.spec.name,
            version=look.tables.bronze.ref.version,
            offsets=wanted,
            schemas={part.value: ids for part, ids in schemas.ids.items()},
            oversized={part.value: ids for part, ids in schemas.oversized.items()},
            quarantined=size_of_all(wanted),
        )
        return request, schemas.columns

    def check(self) -> None:
        """Raise the error that would refuse the next decode. Requests no schema, writes nothing.

        Raises:
            SpecOutdated, ForeignTable, TableAltered, HistoriesDiverge, DuplicateRows,
                CommitConflict: As for `next`.
        """
        self.ports.check()
        retry_on_conflict(self._tables.open)

    def required(self) -> BatchOffsets:
        """Return all offsets that belong in the typed table or the quarantine, by bronze plan."""
        return self._tables.required()

    def state(self) -> FollowState:
        """Return how far both tables have followed the ledger. Does not read the bronze table.

        Raises:
            ForeignTable: The typed table belongs to another pipeline.
        """
        return retry_on_conflict(self._tables.state)

    def progress(self) -> DecodeProgress:
        """Return which offsets both tables should have, for a comparison. Writes nothing.

        Raises:
            ForeignTable, HistoriesDiverge, CommitConflict: As for `next`.
        """
        return retry_on_conflict(self._tables.progress)


def _size_of_both(some: BatchOffsets, others: BatchOffsets) -> int:
    """Return the number of offsets that are in both, also in different plans."""
    return size_of_all(intersection(by_topic_id(some), by_topic_id(others)))
