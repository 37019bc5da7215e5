"""Conflicts between targets are reported, in any spelling of a location."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spec.test_loading import Folders, folders, problems_of
from tests.support.plans import no_owner
from tidemark.delta.errors import StorageUnavailable
from tidemark.spec.errors import SpecError
from tidemark.spec.layout import Layout
from tidemark.spec.loading import load_specs
from tidemark.spec.targets import OUTSIDE_OWN_FOLDERS, WITHOUT_CREDENTIALS

__all__ = ["folders"]

OWN = "a target that no other table has"
OUTSIDE = "a target outside other tables"
AROUND = "a target around no other table"
BELOW = "a path without . and .., either below the lakehouse or absolute"
EMPTY = "a path without empty folders (//)"
CHARACTERS = "a path without % ? # * [ ] { } \\ @ : and without spaces at its ends"
DECODED = "{value: {format: string}, upsert: {}}"


def refusal(folders: Folders, target: str, **keys: str) -> tuple[str, str, str]:
    """Add a pipeline `other` with this target beside `events`, which is in the control table.

    Return file, key and expectation of the only problem.
    """
    folders.spec("other.yaml", name="other", target=repr(target), **keys)
    recorded = ("events",)
    ((file, key, expected, _),) = folders._replace(recorded=recorded).problems()
    return file, key, expected


@pytest.mark.parametrize(
    "uri",
    [
        "s3://AKID:SECRET@lake/x",
        "S3A://AKID:SEC/RET@lake/x",
        "s3://SECRET@lake/x",
        "hdfs://user:SECRET@node:8020/x",
        "abfss://container:SECRET@acc.dfs.core.windows.net/x",
        "abfss://container@acc.dfs.core.windows.net/x?sig=SECRET",
        "s3://lake?token=SECRET",
        "s3://lake#SECRET/x",
        " s3://AKID:SECRET@lake/x",
    ],
)
def test_a_uri_with_credentials_is_refused_without_showing_it(folders: Folders, uri: str) -> None:
    folders.spec(target=repr(uri))
    ((_, key, expected, found),) = folders.problems()
    assert (key, expected) == ("target", WITHOUT_CREDENTIALS)
    assert "SECRET" not in found


@pytest.mark.parametrize(
    "uri",
    [
        *("s3://lake/x", "gs://lake/x", "hdfs://node:8020/x", "hdfs://[::1]:8020/x"),
        *("file:///data/x", "abfs://container@acc.dfs.core.windows.net/x", "/data/x"),
    ],
)
def test_a_uri_without_credentials_is_valid(folders: Folders, uri: str) -> None:
    folders.spec(target=repr(uri))
    assert list(folders.load()) == ["events"]


@pytest.mark.parametrize("uri", ["s3://lake/my prices", "file:///data/my prices"])
def test_a_uri_with_spaces_is_refused_and_a_path_is_not(folders: Folders, uri: str) -> None:
    """PyArrow cannot parse such a URI. Without the check, an ingest fails after its plan."""
    folders.spec(target="/data/my prices")
    assert list(folders.load()) == ["events"]
    folders.spec(target=repr(uri))
    ((_, key, expected, found),) = folders.problems()
    assert (key, expected, found) == ("target", "a URI without spaces", repr(uri))


@pytest.mark.parametrize("spelling", ["bronze/shared", "bronze/shared/", "Bronze/SHARED"])
def test_two_specs_may_not_share_a_target(folders: Folders, spelling: str) -> None:
    """Some file systems ignore case."""
    folders.spec(target="bronze/shared")
    assert refusal(folders, spelling) == ("other.yaml", "target", OWN)


CONFLICTS = {
    "bronze/events": OWN,
    "{lakehouse}/bronze/events": OWN,
    "file://{lakehouse}/bronze/events/": OWN,
    "bronze/link": OWN,
    "bronze": AROUND,
    "file://{lakehouse}/Bronze/": AROUND,
    "bronze/events/sub": OUTSIDE,
    "bronze/link/sub": OUTSIDE,
    "silver/events_latest": OWN,
    "silver": AROUND,
}
"""Targets in conflict with tables of `events`, and the expectation of the problem."""


@pytest.mark.parametrize("target", CONFLICTS)
@pytest.mark.parametrize("name", ["aaa", "zzz"])
def test_a_new_spec_does_not_stop_a_recorded_pipeline(
    folders: Folders, target: str, name: str
) -> None:
    """Its own spec is refused, in any order of the files."""
    lakehouse = Path(folders.layout.lakehouse)
    (lakehouse / "bronze" / "events").mkdir(parents=True)
    (lakehouse / "bronze" / "link").symlink_to(lakehouse / "bronze" / "events")
    folders.spec(decode=DECODED)
    folders.spec(f"{name}.yaml", name=name, target=target.format(lakehouse=lakehouse))
    found = folders._replace(recorded=("events",)).folder()
    assert (list(found.specs), list(found.broken)) == (["events"], [name])
    (problem,) = problems_of(found.broken[name])
    assert (problem.key, problem.expected) == ("target", CONFLICTS[target])
    assert problem.found.endswith("; only events is in the control table")
    # The order of the records does not matter either.
    assert list(folders._replace(recorded=(name,)).folder().specs) == [name]


def test_a_table_without_events_of_its_own_yields_to_a_recorded_table(folders: Folders) -> None:
    """A new section of a recorded pipeline cannot stop another pipeline."""
    folders.spec()
    folders.spec("aaa.yaml", name="aaa", decode="{value: {format: string}, target: bronze/events}")
    recorded = folders._replace(recorded=("aaa", "events"))
    assert recorded.problems() == [
        (
            *("aaa.yaml", "decode.target", OWN),
            "'bronze/events', as in events.yaml; only the table of events is in the control table",
        )
    ]
    names = [(file, key) for file, key, *_ in folders._replace(recorded=("aaa",)).problems()]
    assert names == [("events.yaml", "target")]


@pytest.mark.parametrize(
    ("recorded", "reason"),
    [
        ((), "neither pipeline is in the control table"),
        (("aaa", "events"), "both pipelines are in the control table"),
    ],
)
def test_without_a_single_recorded_pipeline_each_spec_of_a_conflict_is_refused(
    folders: Folders, recorded: tuple[str, ...], reason: str
) -> None:
    """A landing of the wrong pipeline would stop the other one."""
    folders.spec()
    folders.spec("aaa.yaml", name="aaa", target="bronze")
    assert folders._replace(recorded=recorded).problems() == [
        (
            "aaa.yaml",
            "target",
            AROUND,
            f"'bronze', around 'bronze/events' of events.yaml; {reason}",
        ),
        (
            "events.yaml",
            "target",
            OUTSIDE,
            f"'bronze/events', inside 'bronze' of aaa.yaml; {reason}",
        ),
    ]


OWNERS = {
    "bronze/events": "events",
    "silver/events": "events@typed",
    "silver/events_quarantine": "events@typed",
    "silver/events_latest": "events@upsert",
}
"""The property `tidemark.pipeline` of each table of `events`, by location."""


@pytest.mark.parametrize("place", OWNERS)
@pytest.mark.parametrize("key", ["target", "decode.target", "decode.upsert.target"])
@pytest.mark.parametrize("name", ["aaa", "zzz"])
def test_an_edited_target_does_not_take_the_table_of_another_recorded_pipeline(
    folders: Folders, place: str, key: str, name: str
) -> None:
    """The property of the existing table decides, also for derived tables, which have no events."""
    folders.spec(decode=DECODED)
    edited = {
        "target": {"target": place},
        "decode.target": {"decode": f"{{value: {{format: string}}, target: {place}}}"},
        "decode.upsert.target": {
            "decode": f"{{value: {{format: string}}, upsert: {{target: {place}}}}}"
        },
    }[key]
    folders.spec(f"{name}.yaml", name=name, **edited)
    found = folders._replace(recorded=("events", name), owners=OWNERS).folder()
    assert (list(found.specs), list(found.broken)) == (["events"], [name])
    problem = problems_of(found.broken[name])[0]
    assert (problem.key, problem.expected) == (key, OWN)
    assert problem.found == f"{place!r}, as in events.yaml; the existing table belongs to events"


def test_a_table_of_a_third_pipeline_decides_no_conflict(folders: Folders) -> None:
    folders.spec()
    folders.spec("aaa.yaml", name="aaa", target="bronze/events")
    known = folders._replace(recorded=("aaa", "events"), owners={"bronze/events": "gone"})
    assert [file for file, *_ in known.problems()] == ["aaa.yaml", "events.yaml"]


def test_two_existing_tables_one_inside_the_other_are_both_refused(folders: Folders) -> None:
    folders.spec()
    folders.spec("aaa.yaml", name="aaa", target="bronze")
    owners = {"bronze": "aaa", "bronze/events": "events"}
    known = folders._replace(recorded=("aaa", "events"), owners=owners)
    assert [(file, found.rpartition("; ")[2]) for file, *_, found in known.problems()] == [
        ("aaa.yaml", "both tables exist"),
        ("events.yaml", "both tables exist"),
    ]


def test_a_table_that_cannot_be_read_leaves_only_the_conflict_undecided(folders: Folders) -> None:
    """If the control table has events of one of two tables, `load_specs` reads neither."""
    error = StorageUnavailable(location="s3://lake", operation="reading", reason="no answer")

    def unavailable(_: str) -> str:
        raise error

    folders.spec()
    folders.spec("other.yaml", name="other", target="bronze/events")
    folders.spec("third.yaml", name="third")
    both = ("events", "other")
    found = load_specs(folders.specs, folders.layout, lambda: both, unavailable)
    assert (list(found.specs), found.broken) == (["third"], {"events": error, "other": error})
    found = load_specs(folders.specs, folders.layout, lambda: both[:1], unavailable)
    assert (list(found.specs), list(found.broken)) == (["events", "third"], ["other"])
    for name in ("four", "five"):
        folders.spec(f"{name}.yaml", name=name, target="bronze/new")
    found = load_specs(folders.specs, folders.layout, lambda: both[:1], unavailable)
    assert list(found.specs) == ["events", "third"]
    assert {name: found.broken[name] for name in ("four", "five")} == {"four": error, "five": error}


def test_a_table_around_one_that_cannot_be_read_is_refused(folders: Folders) -> None:
    """The other table may exist too."""
    error = StorageUnavailable(location="s3://lake", operation="reading", reason="no answer")
    folders.spec()
    folders.spec("aaa.yaml", name="aaa", target="bronze")

    def owner(location: str) -> str:
        if location == folders.layout.data_table("bronze"):
            raise error
        return "events"

    found = load_specs(folders.specs, folders.layout, lambda: ("aaa", "events"), owner)
    assert (list(found.specs), found.broken) == ([], {"aaa": error, "events": error})


def test_an_invalid_spec_without_events_stops_no_other_pipeline(folders: Folders) -> None:
    """The problem of the target is one of its problems."""
    folders.spec()
    folders.spec("aaa.yaml", name="aaa", target="bronze/events", quality="{suite: gone}")
    folders.spec("bbb.yaml", name="events", topic="other")
    found = folders.folder()
    assert (list(found.specs), sorted(found.broken)) == (["events"], ["aaa", "bbb"])
    assert {each.key for each in problems_of(found.broken["aaa"])} == {"quality.suite", "target"}


def test_a_recorded_pipeline_with_an_invalid_spec_keeps_its_tables(folders: Folders) -> None:
    folders.spec(quality="{suite: gone}")
    folders.spec("other.yaml", name="other", target="bronze/events")
    found = folders._replace(recorded=("events",)).folder()
    assert sorted(found.broken) == ["events", "other"]


def test_the_problem_of_a_target_counts_further_conflicts(folders: Folders) -> None:
    for name in ("one", "three", "two"):
        folders.spec(f"{name}.yaml", name=name)
    folders.spec("aaa.yaml", name="aaa", target="bronze")
    ((*_, found),) = folders._replace(recorded=("one", "two", "three")).problems()
    more = "(and 2 further conflicts)"
    only = "only one is in the control table"
    assert found == f"'bronze', around 'bronze/one' of one.yaml {more}; {only}"


def test_a_control_table_that_cannot_be_read_leaves_only_the_conflict_undecided(
    folders: Folders,
) -> None:
    """The loader reads it only after a conflict. Its error is that of the conflicting specs."""
    error = StorageUnavailable(location="s3://lake", operation="reading", reason="no answer")

    def unavailable() -> list[str]:
        raise error

    folders.spec()
    assert list(load_specs(folders.specs, folders.layout, unavailable, no_owner).specs) == [
        "events"
    ]
    folders.spec("other.yaml", name="other", target="bronze/events")
    folders.spec("third.yaml", name="third")
    found = load_specs(folders.specs, folders.layout, unavailable, no_owner)
    assert list(found.specs) == ["third"]
    assert found.broken == {"events": error, "other": error}
    with pytest.raises(StorageUnavailable):
        found.check()
    folders.spec("third.yaml", name="third", retries="many")
    with pytest.raises(SpecError):
        load_specs(folders.specs, folders.layout, unavailable, no_owner).check()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("s3://lake/x", "s3a://lake/x"),
        ("s3n://Lake/x/", "S3A://lake/x"),
        ("abfs://c@acc.dfs.core.windows.net/x", "abfss://c@acc.dfs.core.windows.net/x"),
        ("wasbs://c@acc.blob.core.windows.net/x", "abfss://c@acc.dfs.core.windows.net/x"),
        ("hdfs://node/x", "hdfs://node:8020/x"),
        ("/data/lake/x", "file:///data/lake/x"),
        ("/data/lake/x", "file://localhost/data/lake/x/"),
        ("/data/lake/x", "//data/lake/x"),
        ("bronze/caf\u00e9", "bronze/cafe\u0301"),
    ],
)
def test_all_spellings_of_a_location_are_one_target(folders: Folders, one: str, other: str) -> None:
    """Spark and delta-rs name object stores differently."""
    folders.spec(target=repr(one))
    assert refusal(folders, other)[2] in (OWN, EMPTY)


def test_the_same_path_in_two_buckets_is_no_conflict(folders: Folders) -> None:
    """Two stores are no conflict either."""
    folders.spec(target="s3://lake/x")
    folders.spec("other.yaml", name="other", target="s3://sea/x")
    folders.spec("third.yaml", name="third", target="gs://lake/x")
    assert list(folders.load()) == ["events", "other", "third"]


def test_an_absolute_path_of_a_relative_target_is_the_same_target(folders: Folders) -> None:
    """The lakehouse may be in an object store."""
    folders.spec()
    lakehouse = folders.layout.lakehouse
    assert refusal(folders, f"{lakehouse}/bronze/events") == ("other.yaml", "target", OWN)
    remote = Layout(
        project=folders.layout.project, home=folders.layout.home, lakehouse_root="s3://lake/house"
    )
    assert refusal(Folders(folders.specs, remote), "s3a://lake/house/bronze/events")[2] == OWN


def test_a_symbolic_link_to_another_target_is_the_same_target(folders: Folders) -> None:
    """The link replaces the table's folder, or a parent."""
    folders.spec()
    lakehouse = Path(folders.layout.lakehouse)
    (lakehouse / "bronze" / "events").mkdir(parents=True)
    (lakehouse / "bronze" / "link").symlink_to(lakehouse / "bronze" / "events")
    (lakehouse / "silver").symlink_to(lakehouse / "bronze")
    assert refusal(folders, "bronze/link") == ("other.yaml", "target", OWN)
    assert refusal(folders, "silver/events") == ("other.yaml", "target", OWN)
    assert refusal(folders, "silver/events/sub") == ("other.yaml", "target", OUTSIDE)


@pytest.mark.parametrize("inside", ["bronze/events/sub", "bronze/events/a/b", "BRONZE/Events/sub"])
def test_a_target_inside_another_table_is_refused(folders: Folders, inside: str) -> None:
    """Maintenance of the outer table would remove the files of the inner one."""
    folders.spec()
    assert refusal(folders, inside) == ("other.yaml", "target", OUTSIDE)


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ("silver/events", "decode.target"),
        ("silver/events_quarantine", "decode.target, with _quarantine"),
        ("silver/events_latest", "decode.upsert.target"),
    ],
)
def test_derived_tables_are_targets_as_well(folders: Folders, table: str, key: str) -> None:
    """Covers typed table, quarantine and upsert table: equal, inside, and around."""
    folders.spec("zzz.yaml", name="zzz", topic="t", schedule="'@daily'")
    folders.spec(decode=DECODED)
    assert refusal(folders, table) == ("other.yaml", "target", OWN)
    assert refusal(folders, f"{table}/sub") == ("other.yaml", "target", OUTSIDE)
    folders.spec("other.yaml", name="other", target="elsewhere/other")
    folders.spec(decode=DECODED, target=f"{table}/bronze")
    assert folders.problems()[0][1:3] == (key, AROUND)
    folders.spec(decode=DECODED, target=table)
    assert folders.problems() == [
        ("events.yaml", key, OWN, f"{table!r}, as in events.yaml"),
    ]


@pytest.mark.parametrize(
    "target",
    ["control/offset_ranges", "control/offset_ranges/x", "control/status", "control/schemas",
     "control", "Control/mine", "control/mine", "quality/results",
     "quality/x"],
)  # fmt: skip
def test_the_folders_of_tidemarks_own_tables_are_no_target(folders: Folders, target: str) -> None:
    """This holds for bronze tables and for derived tables."""
    assert refusal(folders, target) == ("other.yaml", "target", OUTSIDE_OWN_FOLDERS)
    assert refusal(folders, f"{folders.layout.lakehouse}/{target}") == (
        *("other.yaml", "target", OUTSIDE_OWN_FOLDERS),
    )
    folders.spec(
        "other.yaml", name="other", decode=f"{{value: {{format: string}}, target: {target}}}"
    )
    assert {problem[1:3] for problem in folders.problems()} == {
        ("decode.target", OUTSIDE_OWN_FOLDERS),
        ("decode.target, with _quarantine", OUTSIDE_OWN_FOLDERS),
    } - (
        {("decode.target, with _quarantine", OUTSIDE_OWN_FOLDERS)} if target == "control" else set()
    )


@pytest.mark.parametrize(
    "folder",
    ["broker/data", "spark", "spark-warehouse", "airflow/dags", "logs", "data_docs", "include"],
)
def test_a_target_in_tidemarks_own_folders_is_refused(folders: Folders, folder: str) -> None:
    """Maintenance of a table there would remove files of Tidemark."""
    target = f"{folders.layout.home}/{folder}"
    assert refusal(folders, target) == ("other.yaml", "target", OUTSIDE_OWN_FOLDERS)


def test_a_target_around_tidemarks_own_tables_is_refused(folders: Folders) -> None:
    """Covers the lakehouse itself and a folder above it."""
    lakehouse = folders.layout.lakehouse
    for target in (lakehouse, f"{lakehouse}/", str(Path(lakehouse).parent), "file:///"):
        assert refusal(folders, target) == ("other.yaml", "target", OUTSIDE_OWN_FOLDERS)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("../up", BELOW),
        ("bronze/../../up", BELOW),
        ("./x", BELOW),
        ("bronze/x/.", BELOW),
        ("/", BELOW),
        ("s3://lake/../x", BELOW),
        ("x//y", EMPTY),
        ("s3://lake//x", EMPTY),
        ("bronze/a%20b", CHARACTERS),
        ("file:///data/a%2fb", CHARACTERS),
        ("bronze/prices@july", CHARACTERS),
        ("file:/data/x", CHARACTERS),
        ("bronze/x ", CHARACTERS),
        ("bronze/x\\y", CHARACTERS),
        ("s3://lake/x%20y", CHARACTERS),
        ("s3://lake/x?versionId=1", WITHOUT_CREDENTIALS),
    ],
)
def test_a_target_that_readers_interpret_differently_is_refused(
    folders: Folders, target: str, expected: str
) -> None:
    """The target of the quarantine is not reported again."""
    assert refusal(folders, target) == ("other.yaml", "target", expected)
    folders.spec(
        "other.yaml", name="other", decode=f"{{value: {{format: string}}, target: {target!r}}}"
    )
    assert [problem[1:3] for problem in folders.problems()] == [("decode.target", expected)]
