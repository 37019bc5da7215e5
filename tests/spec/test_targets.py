"""Conflicts between targets are reported, in any spelling of a location."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spec.test_loading import Folders, folders
from tidemark.spec.layout import Layout
from tidemark.spec.targets import WITHOUT_CREDENTIALS

__all__ = ["folders"]

OWN = "a target that no other table has"
OUTSIDE = "a target outside other tables"
AROUND = "a target outside the folders control and quality, and not a parent of them"
BELOW = "a path without . and .., either below the lakehouse or absolute"
EMPTY = "a path without empty folders (//)"
CHARACTERS = "a path without % ? # * [ ] { } \\ @ : and without spaces at its ends"
DECODED = "{value: {format: string}, upsert: {}}"


def refusal(folders: Folders, target: str, **keys: str) -> tuple[str, str, str]:
    """Add a pipeline `other` with this target; return file, key and expectation of the problem."""
    folders.spec("other.yaml", name="other", target=repr(target), **keys)
    ((file, key, expected, _),) = folders.problems()
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


@pytest.mark.parametrize("spelling", ["bronze/shared", "bronze/shared/", "Bronze/SHARED"])
def test_two_specs_may_not_share_a_target(folders: Folders, spelling: str) -> None:
    """Some file systems ignore case."""
    folders.spec(target="bronze/shared")
    assert refusal(folders, spelling) == ("other.yaml", "target", OWN)


def test_the_refusal_names_both_files_in_any_order_of_age(folders: Folders) -> None:
    """The later file is refused: the check reads no table, so it cannot find the owner."""
    folders.spec(target="bronze/shared")
    folders.spec("aaa.yaml", name="aaa", target="bronze/shared")
    assert folders.problems() == [("events.yaml", "target", OWN, "'bronze/shared', as in aaa.yaml")]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("s3://lake/x", "s3a://lake/x"),
        ("s3n://Lake/x/", "S3A://lake/x"),
        ("abfs://c@acc.dfs.core.windows.net/x", "abfss://c@acc.dfs.core.windows.net/x"),
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
    folders.spec("other.yaml", name="other", target=inside)
    assert folders.problems() == [
        ("other.yaml", "target", OUTSIDE, f"{inside!r}, inside 'bronze/events' of events.yaml")
    ]


def test_a_target_around_another_table_is_refused(folders: Folders) -> None:
    """The problem names the file of the inner table, in any order of the files."""
    folders.spec("aaa.yaml", name="aaa", target="bronze")
    folders.spec()
    ((file, key, expected, found),) = folders.problems()
    assert (file, key, expected) == ("events.yaml", "target", OUTSIDE)
    assert found == "'bronze/events', inside 'bronze' of aaa.yaml"


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
    assert folders.problems()[0][1:3] == ("target", OUTSIDE)
    folders.spec(decode=DECODED, target=table)
    assert folders.problems() == [
        ("events.yaml", key, OWN, f"{table!r}, as in events.yaml"),
    ]


@pytest.mark.parametrize(
    "target",
    ["control/offset_ranges", "control/offset_ranges/x", "control/status", "control/schemas",
     "control", "Control/mine", "control/mine", "quality/results", "quality/publication",
     "quality/x"],
)  # fmt: skip
def test_the_folders_of_tidemarks_own_tables_are_no_target(folders: Folders, target: str) -> None:
    """This holds for bronze tables and for derived tables."""
    assert refusal(folders, target) == ("other.yaml", "target", AROUND)
    assert refusal(folders, f"{folders.layout.lakehouse}/{target}") == (
        *("other.yaml", "target", AROUND),
    )
    folders.spec(
        "other.yaml", name="other", decode=f"{{value: {{format: string}}, target: {target}}}"
    )
    assert {problem[1:3] for problem in folders.problems()} == {
        ("decode.target", AROUND),
        ("decode.target, with _quarantine", AROUND),
    } - ({("decode.target, with _quarantine", AROUND)} if target == "control" else set())


def test_a_target_around_tidemarks_own_tables_is_refused(folders: Folders) -> None:
    """Covers the lakehouse itself and a folder above it."""
    lakehouse = folders.layout.lakehouse
    for target in (lakehouse, f"{lakehouse}/", str(Path(lakehouse).parent), "file:///"):
        assert refusal(folders, target) == ("other.yaml", "target", AROUND)


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
