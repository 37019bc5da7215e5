"""Tables to which delta-rs cannot commit, or that it cannot read, are refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from tests.support.file_lake import WEEK, FileLake, landed_lake
from tests.support.quality_reports import REPORT
from tests.support.typed_lake import TypedLake
from tidemark.core.errors import ExitCode
from tidemark.delta import control_table, status_table
from tidemark.delta.delta_errors import tidemark_error
from tidemark.delta.errors import ControlConflict, EngineFailed, TableAltered
from tidemark.delta.maintained_table import DeltaMaintainedTable
from tidemark.delta.status_history import append_statuses
from tidemark.delta.status_table import read_status, write_status
from tidemark.ops.maintenance.service import Maintenance
from tidemark.quality.check_results_table import DeltaCheckResults
from tidemark.silver.typed.schema_table import DeltaSchemaStore
from tidemark.spec.decode import RegisteredSchema

OPS = ("ops", "why")
NOW = datetime(2026, 3, 1, tzinfo=UTC)

Protocol = Mapping[str, Any]


def writer(*features: str) -> Protocol:
    return {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": [*features]}


def reader(*features: str) -> Protocol:
    both = {"readerFeatures": [*features], "writerFeatures": [*features]}
    return {"minReaderVersion": 3, "minWriterVersion": 7, **both}


UNWRITABLE = {
    "rowTracking": writer("rowTracking", "domainMetadata"),
    "inCommitTimestamp": writer("inCommitTimestamp"),
    "clustering": writer("clustering", "domainMetadata"),
    "vacuumProtocolCheck": reader("vacuumProtocolCheck"),
    "identityColumns": {"minReaderVersion": 1, "minWriterVersion": 6},
    "version 8": {"minReaderVersion": 1, "minWriterVersion": 8},
}
UNREADABLE = {
    "someNewFeature": reader("someNewFeature"),
    "version 9": {"minReaderVersion": 9, "minWriterVersion": 9},
    "catalogManaged": reader("catalogManaged"),
}

unwritable = pytest.mark.parametrize("name", UNWRITABLE)
unreadable = pytest.mark.parametrize("name", UNREADABLE)


def commit(uri: Path | str, *actions: Mapping[str, Any]) -> None:
    """Commit actions as another program does."""
    version = DeltaTable(uri).version() + 1
    file = Path(uri) / "_delta_log" / f"{version:020}.json"
    file.write_text("\n".join(json.dumps(action) for action in actions))


def upgrade(uri: Path | str, protocol: Protocol) -> None:
    commit(uri, {"protocol": protocol})


def files_below(folder: Path) -> Sequence[tuple[Path, int]]:
    return sorted((each, each.stat().st_mtime_ns) for each in folder.rglob("*") if each.is_file())


def check_refused(folder: Path, use_case: Callable[[], object], name: str) -> TableAltered:
    """Check that a use case is refused by a terminal error, and writes nothing."""
    before = files_below(folder)
    with pytest.raises(TableAltered, match=name) as refused:
        use_case()
    assert refused.value.exit_code is ExitCode.REFUSED
    assert files_below(folder) == before
    return refused.value


# -- the control table ---------------------------------------------------------------------------


def open_lake(root: Path) -> FileLake:
    """A lake with a landed plan, an open plan, and unread records."""
    lake = landed_lake(root, plans=1)
    lake.plan(2)
    lake.kafka.produce("events", 0, 2)
    return lake


@unwritable
def test_a_control_table_that_no_event_can_follow_is_refused(tmp_path: Path, name: str) -> None:
    lake = open_lake(tmp_path)
    upgrade(lake.control_uri, UNWRITABLE[name])
    use_cases: Sequence[Callable[[], object]] = [
        lambda: lake.planner.plan("run"),
        lambda: lake.ingest.execute(2),
        lambda: lake.undo.undo(1, *OPS),
        lambda: lake.abandon.abandon(2, *OPS),
        lambda: lake.publication.reject(1, *OPS),
    ]
    for use_case in use_cases:
        error = check_refused(tmp_path, use_case, name)
        assert str(lake.control_uri) in str(error)

    def problem() -> None:
        found = lake.status().problem
        assert found is not None
        raise found

    check_refused(tmp_path, problem, name)


def test_a_repair_fences_nothing_if_the_control_table_cannot_be_written(tmp_path: Path) -> None:
    lake = landed_lake(tmp_path, plans=2)
    DeltaTable(lake.uri).restore(1)
    upgrade(lake.control_uri, UNWRITABLE["rowTracking"])
    for use_case in (lake.repair.rewind, lake.repair.rebuild):
        check_refused(tmp_path, partial(use_case, *OPS), "rowTracking")


def test_events_follow_the_end_of_a_feature(tmp_path: Path) -> None:
    lake = open_lake(tmp_path)
    upgrade(lake.control_uri, UNWRITABLE["rowTracking"])
    check_refused(tmp_path, lambda: lake.ingest.execute(2), "DROP FEATURE rowTracking")
    upgrade(lake.control_uri, writer("appendOnly", "invariants"))
    lake.ingest.execute(2)
    lake.run(1)
    assert lake.verified()[0][0] == lake.verified()[0][1]


def test_a_feature_of_the_control_table_that_delta_cannot_drop_has_another_fix(
    tmp_path: Path,
) -> None:
    lake = open_lake(tmp_path)
    upgrade(lake.control_uri, UNWRITABLE["clustering"])
    error = check_refused(tmp_path, lambda: lake.planner.plan("run"), "clustering")
    assert "Move the table's folder away" in error.rendered("fix")
    assert "start: earliest" not in error.rendered("fix")
    lake.control_uri.rename(tmp_path / "moved")
    lake.repair.rebuild(*OPS)
    lake.run(1)
    assert lake.verified() == [(8, 8)]


def test_a_constraint_of_the_control_table_is_refused(tmp_path: Path) -> None:
    lake = open_lake(tmp_path)
    DeltaTable(lake.control_uri).alter.add_constraint({"positive": "event_number > 0"})
    check_refused(tmp_path, lambda: lake.planner.plan("run"), "the constraint 'positive'")
    assert isinstance(lake.status().problem, TableAltered)
    DeltaTable(lake.control_uri).alter.drop_constraint("positive")
    lake.run(1)


def test_a_control_table_with_another_column_without_nulls_is_refused(tmp_path: Path) -> None:
    lake = open_lake(tmp_path)
    table = DeltaTable(lake.control_uri)
    metadata, schema = table.metadata(), json.loads(table.schema().to_json())
    (field,) = [each for each in schema["fields"] if each["name"] == "topic"]
    field["nullable"] = False
    changed = {
        "id": metadata.id,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(schema),
        "partitionColumns": metadata.partition_columns,
        "configuration": metadata.configuration,
    }
    commit(lake.control_uri, {"metaData": changed})
    check_refused(tmp_path, lambda: lake.planner.plan("run"), "its column topic has a rule")


def test_a_commit_that_delta_refuses_without_a_concurrent_one_is_no_conflict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = landed_lake(tmp_path, plans=1)
    lake.kafka.produce("events", 0, 2)

    def refuse(*_: object, **__: object) -> None:
        raise CommitFailedError("a cause without a name")

    with monkeypatch.context() as patched:
        patched.setattr(control_table, "append_rows", refuse)
        with pytest.raises(EngineFailed, match="a cause without a name"):
            lake.planner.plan("run")

    def refuse_after_another(table: DeltaTable, *_: object, **__: object) -> None:
        commit(lake.control_uri, {"commitInfo": {"timestamp": 1, "operation": "WRITE"}})
        refuse()

    with monkeypatch.context() as patched:
        patched.setattr(control_table, "append_rows", refuse_after_another)
        with pytest.raises(ControlConflict):
            lake.planner.plan("run")
    lake.run(1)


# -- data tables ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["identityColumns", "version 8"])
def test_a_data_table_for_newer_writers_is_refused(tmp_path: Path, name: str) -> None:
    lake = open_lake(tmp_path)
    upgrade(lake.uri, UNWRITABLE[name])
    for use_case in (lambda: lake.planner.plan("run"), lambda: lake.ingest.execute(2)):
        check_refused(tmp_path, use_case, name)
    assert isinstance(lake.status().problem, TableAltered)


@unreadable
@pytest.mark.parametrize("table", ["uri", "control_uri"])
def test_a_table_that_delta_rs_cannot_read_is_refused(
    tmp_path: Path, table: str, name: str
) -> None:
    lake = open_lake(tmp_path)
    upgrade(getattr(lake, table), UNREADABLE[name])
    use_cases: Sequence[Callable[[], object]] = [
        lambda: lake.planner.plan("run"),
        lambda: lake.ingest.execute(2),
        lambda: lake.undo.undo(1, *OPS),
        lambda: lake.repair.rewind(*OPS),
        lambda: lake.maintenance().maintain(WEEK),
    ]
    for use_case in use_cases:
        error = check_refused(tmp_path, use_case, name)
        assert str(getattr(lake, table)) in str(error)
    if table == "uri":
        assert isinstance(lake.status().problem, TableAltered)


@pytest.mark.parametrize(
    ("text", "difference"),
    [
        (
            "External error: Transaction failed: Unsupported table features required: "
            '[TypeWidening, Unknown("other"), ClusteredTable]',
            "it has the feature clustering, other, typeWidening",
        ),
        ("Kernel error: Unsupported: Feature 'new' is not supported", "it has the feature new"),
        (
            "Kernel error: Unsupported: Unsupported minimum reader version 9",
            "it needs a reader of version 9",
        ),
        (
            "Table features must be specified, please specify: AppendOnly",
            "its protocol names no table features",
        ),
    ],
)
def test_an_error_of_the_protocol_names_the_difference(text: str, difference: str) -> None:
    for failure in (DeltaError(text), CommitFailedError(text)):
        error = tidemark_error(failure, "/lake/events", "reading the table")
        assert isinstance(error, TableAltered)
        assert f"Tidemark cannot use table /lake/events: {difference}." in str(error)


def test_a_type_that_another_program_widens_is_refused(tmp_path: Path) -> None:
    lake = TypedLake(tmp_path)
    lake.land_and_run(3)
    upgrade(lake.bronze.uri, reader("typeWidening"))
    check_refused(tmp_path, lambda: lake.bronze.repair.rewind(*OPS), "typeWidening")


# -- typed tables --------------------------------------------------------------------------------


@unwritable
def test_no_typed_row_is_removed_from_a_table_that_no_commit_can_follow(
    tmp_path: Path, name: str
) -> None:
    lake = TypedLake(tmp_path)
    lake.land_and_run(3)
    upgrade(lake.typed_uri, UNWRITABLE[name])
    for dry_run in (True, False):
        check_refused(tmp_path, partial(lake.decodes.from_scratch, *OPS, dry_run=dry_run), name)


def test_a_typed_table_with_a_feature_that_delta_cannot_drop_is_written_again(
    tmp_path: Path,
) -> None:
    lake = TypedLake(tmp_path)
    lake.land_and_run(3)
    upgrade(lake.typed_uri, UNWRITABLE["clustering"])
    lake.bronze.run(2)
    error = check_refused(tmp_path, lake.run, "clustering")
    assert "Move the table's folder away" in error.rendered("fix")
    lake.typed_uri.rename(tmp_path / "moved")
    lake.run()
    lake.check()


def test_no_typed_row_is_removed_from_a_table_with_a_constraint(tmp_path: Path) -> None:
    """The constraint would remain, and the next decode would be refused."""
    lake = TypedLake(tmp_path)
    lake.land_and_run(3)
    DeltaTable(lake.typed_uri).alter.add_constraint({"positive": '"offset" >= 0'})
    check_refused(tmp_path, lambda: lake.decodes.from_scratch(*OPS), "the constraint 'positive'")
    DeltaTable(lake.typed_uri).alter.drop_constraint("positive")
    lake.decodes.from_scratch(*OPS)
    lake.run()
    lake.check()


@pytest.mark.parametrize("table", ["typed_uri", "quarantine_uri"])
def test_a_decoded_table_with_widened_types_is_refused(tmp_path: Path, table: str) -> None:
    lake = TypedLake(tmp_path, broken={1})
    lake.land_and_run(3)
    lake.bronze.run(2)
    upgrade(getattr(lake, table), reader("typeWidening"))
    for use_case in (lake.run, lake.verifier.verify):
        check_refused(tmp_path, use_case, "typeWidening")


# -- tables that pipelines share -----------------------------------------------------------------


def status(state: str) -> Mapping[str, Any]:
    return {"pipeline": "p", "checked_at": NOW, "state": state}


def store_schema(uri: str, number: int) -> None:
    store = DeltaSchemaStore(uri, "registry", lambda: NOW)
    store.store([RegisteredSchema(id=number, kind="JSON", text='{"type":"object"}')])


SHARED: Mapping[str, Callable[[str, int], object]] = {
    "schemas": store_schema,
    "results": lambda uri, number: DeltaCheckResults(uri).append(
        replace(REPORT, pipeline="p", plan_sequence=number)
    ),
    "status": lambda uri, number: write_status(uri, [status(str(number))]),
    "history": lambda uri, number: append_statuses(uri, [status(str(number))]),
}


@unwritable
@pytest.mark.parametrize("table", SHARED)
def test_a_shared_table_that_no_commit_can_follow_is_refused(
    tmp_path: Path, table: str, name: str
) -> None:
    uri, write = str(tmp_path / table), SHARED[table]
    write(uri, 1)
    upgrade(uri, UNWRITABLE[name])
    error = check_refused(tmp_path, lambda: write(uri, 2), name)
    assert uri in str(error)
    upgrade(uri, writer("appendOnly", "invariants"))
    write(uri, 2)


@unreadable
@pytest.mark.parametrize("table", SHARED)
def test_a_shared_table_that_delta_rs_cannot_read_is_refused(
    tmp_path: Path, table: str, name: str
) -> None:
    uri, write = str(tmp_path / table), SHARED[table]
    write(uri, 1)
    upgrade(uri, UNREADABLE[name])
    check_refused(tmp_path, lambda: write(uri, 2), name)


@pytest.mark.parametrize("table", SHARED)
def test_a_constraint_of_a_shared_table_is_refused(tmp_path: Path, table: str) -> None:
    uri, write = str(tmp_path / table), SHARED[table]
    write(uri, 1)
    column = DeltaTable(uri).schema().fields[0].name
    DeltaTable(uri).alter.add_constraint({"some": f"{column} IS NOT NULL"})
    check_refused(tmp_path, lambda: write(uri, 2), "the constraint 'some'")


def test_statuses_of_an_append_only_table_are_refused(tmp_path: Path) -> None:
    uri = str(tmp_path / "status")
    write_status(uri, [status("ok")])
    DeltaTable(uri).alter.set_table_properties({"delta.appendOnly": "true"})
    error = check_refused(
        tmp_path, lambda: write_status(uri, [status("late")]), r"delta\.appendOnly"
    )
    assert "publication reject" not in error.rendered("fix")


def test_a_status_that_delta_refuses_without_a_concurrent_one_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = str(tmp_path / "status")
    write_status(uri, [status("ok")])

    def refuse(*_: object, **__: object) -> None:
        raise CommitFailedError("a cause without a name")

    monkeypatch.setattr(status_table, "write_deltalake", refuse)
    with pytest.raises(EngineFailed, match="a cause without a name"):
        write_status(uri, [status("late")])
    assert [row["state"] for row in read_status(uri)] == ["ok"]


@unwritable
def test_a_table_that_no_compaction_can_follow_is_refused_by_maintenance(
    tmp_path: Path, name: str
) -> None:
    """A deferred compaction would be deferred for ever."""
    uri = str(tmp_path / "results")
    for number in (1, 2):
        SHARED["results"](uri, number)
    upgrade(uri, UNWRITABLE[name])
    maintenance = Maintenance(
        name="results", table=DeltaMaintainedTable(uri), now=lambda: datetime.now(UTC)
    )
    check_refused(tmp_path, lambda: maintenance.maintain(WEEK), name)
