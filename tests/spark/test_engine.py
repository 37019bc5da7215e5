"""Tests of the selection of an engine by its master."""

from __future__ import annotations

import signal

import pytest

from tidemark.core.errors import SetupError
from tidemark.spark.engine import Server, Stop, Submit, engine_of, without_connect
from tidemark.spark.errors import EngineStopped


@pytest.mark.parametrize(
    ("master", "engine"),
    [
        ("local[*]", Submit("local[*]")),
        ("spark://h:7077", Submit("spark://h:7077")),
        ("yarn", Submit("yarn")),
        ("sc://localhost", Server(host="localhost")),
        ("sc://h:15003", Server(host="h", port=15003)),
        ("sc://127.0.0.1", Server(host="localhost")),
        ("sc://h:1/;use_ssl=true;user_id=etl", Server(host="h", port=1, use_ssl=True, user="etl")),
        ("sc://h/;token=a%3Bb;use_ssl=False", Server(host="h", token="a;b")),
    ],
)
def test_a_master_selects_an_engine(master: str, engine: object) -> None:
    """The scheme selects the engine. Airflow's hook writes addresses in the last two forms."""
    assert engine_of(master) == engine


@pytest.mark.parametrize(
    "master",
    ["sc:", "sc://", "sc://:1", "sc://h:many", "sc://h:0", "sc://h/;ssl=1", "sc:h:1", "sc://[::1]"],
)
def test_an_invalid_server_address_is_refused(master: str) -> None:
    """Parsing raises a named error, before any connection."""
    with pytest.raises(SetupError, match="The address of the Spark Connect server is invalid"):
        engine_of(master)


def test_no_text_contains_a_token() -> None:
    """Neither the text of an engine nor the error for a wrong address contains a token."""
    assert (
        "secret" not in f"{Server.parse('sc://h', 'secret')!r} {Server.parse('sc://h', 'secret')}"
    )
    with pytest.raises(SetupError) as refused:
        engine_of("sc://user:secret@h:0/;Token=secret;use_ssl=true")
    assert "secret" not in str(refused.value)
    assert "use_ssl=true" in str(refused.value)


def test_the_token_of_the_environment_is_for_addresses_without_a_token() -> None:
    """PySpark gives the two tokens the same precedence."""
    assert engine_of("sc://h", "ours") == Server(host="h", token="ours")
    assert engine_of("sc://h/;token=theirs", "ours") == Server(host="h", token="theirs")


def test_a_job_by_spark_submit_does_not_inherit_spark_connect() -> None:
    """With these variables PySpark would use the functions of Spark Connect."""
    environ = {"SPARK_CONNECT_MODE_ENABLED": "1", "SPARK_REMOTE": "sc://h", "HOME": "/"}
    assert without_connect(environ) == {"HOME": "/"}


def test_a_stop_ends_a_running_job_and_prevents_later_jobs() -> None:
    """The call may come before, during and after a job."""
    ended: list[str] = []
    stop = Stop()
    stop.check()
    with stop.ends(lambda: ended.append("first")):
        stop()
    stop()
    assert ended == ["first"]
    for begin in (stop.check, stop.ends(lambda: ended.append("second")).__enter__):
        with pytest.raises(EngineStopped) as refused:
            begin()
    assert ended == ["first", "second"]
    assert refused.value.status == -signal.SIGTERM
