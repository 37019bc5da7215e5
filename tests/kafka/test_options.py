"""Options of both clients for one connection: accepted, translated, dropped and refused keys."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PROJECT
from tidemark.kafka.errors import InvalidConnection
from tidemark.kafka.options import READER_DEFAULTS, client_config, spark_options
from tidemark.silver.typed.registry import ConfluentRegistry

SERVERS = {"bootstrap.servers": "one:9092,two:9092"}
LOGIN = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "reader",
    "sasl.password": "hush-hush",
}


def java(extra: dict[str, Any]) -> dict[str, str]:
    """Return a connection in the Java client's names, without `READER_DEFAULTS`."""
    options = spark_options(client_config("lake", extra))
    assert all(key.startswith("kafka.") for key in options)
    renamed = {key.removeprefix("kafka."): value for key, value in options.items()}
    return {k: v for k, v in renamed.items() if k not in READER_DEFAULTS}


def refusal(extra: dict[str, Any]) -> InvalidConnection:
    with pytest.raises(InvalidConnection) as caught:
        client_config("lake", extra)
    return caught.value


# -- translation ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, {}),
        ({"client.id": "lake", "client.rack": "a"}, {"client.id": "lake", "client.rack": "a"}),
        ({"security.protocol": "ssl"}, {"security.protocol": "SSL"}),
        (
            {"ssl.endpoint.identification.algorithm": "none"},
            {"ssl.endpoint.identification.algorithm": ""},
        ),
        (
            {"ssl.endpoint.identification.algorithm": "https"},
            {"ssl.endpoint.identification.algorithm": "https"},
        ),
        (
            {"ssl.ca.pem": "CA"},
            {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": "CA"},
        ),
        (
            {"ssl.certificate.pem": "CERT", "ssl.key.pem": "KEY", "ssl.key.password": "pw"},
            {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.certificate.chain": "CERT",
                "ssl.keystore.key": "KEY",
                "ssl.key.password": "pw",
            },
        ),
        (
            LOGIN,
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule "
                'required username="reader" password="hush-hush";',
            },
        ),
        (
            {**LOGIN, "sasl.mechanism": "SCRAM-SHA-256", "security.protocol": "sasl_plaintext"},
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule "
                'required username="reader" password="hush-hush";',
            },
        ),
    ],
)
def test_s25_settings_are_translated_to_names_of_the_java_client(
    given: dict[str, Any], wanted: dict[str, str]
) -> None:
    assert java({**SERVERS, **given}) == {**SERVERS, **wanted}


def test_both_names_of_the_sasl_mechanism_are_accepted() -> None:
    """Librdkafka has two names for it; PLAIN has its own login module."""
    extra = {**SERVERS, **LOGIN, "sasl.mechanisms": "PLAIN"}
    del extra["sasl.mechanism"]
    options = java(extra)
    assert options["sasl.mechanism"] == "PLAIN"
    assert options["sasl.jaas.config"].startswith(
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
    )


@pytest.mark.parametrize(
    ("password", "written"),
    [
        ("plain", '"plain"'),
        ('a"b', r'"a\"b"'),
        ("a\\b", r'"a\\b"'),
        ('\\"', r'"\\\""'),
        ("a;b 'c'", "\"a;b 'c'\""),
        ("line\nbreak", r'"line\nbreak"'),
        ("äö", '"äö"'),
    ],
)
def test_passwords_are_quoted_for_the_login_module(password: str, written: str) -> None:
    options = java({**SERVERS, **LOGIN, "sasl.password": password})
    assert options["sasl.jaas.config"].endswith(f'username="reader" password={written};')


def test_pem_files_are_read_in_the_driver(tmp_path: Path) -> None:
    """Executors get the text and need no files."""
    files = {}
    for name in ("ca", "certificate", "key"):
        files[name] = tmp_path / f"{name}.pem"
        files[name].write_text(f"the {name}")
    options = java(
        {
            **SERVERS,
            "security.protocol": "SSL",
            "ssl.ca.location": str(files["ca"]),
            "ssl.certificate.location": str(files["certificate"]),
            "ssl.key.location": str(files["key"]),
        }
    )
    assert options["ssl.truststore.certificates"] == "the ca"
    assert options["ssl.keystore.certificate.chain"] == "the certificate"
    assert options["ssl.keystore.key"] == "the key"


def test_s15_poll_limits_of_the_java_consumer_are_explicit() -> None:
    """The isolation level is missing, because it belongs to the plan."""
    options = spark_options(client_config("lake", SERVERS))
    explicit = {
        "allow.auto.create.topics": "false",
        "fetch.max.wait.ms": "10",
        "max.poll.records": "5000",
        "max.partition.fetch.bytes": "4194304",
        "receive.buffer.bytes": "-1",
    }
    assert explicit.keys() == READER_DEFAULTS.keys()
    assert explicit.items() <= {k.removeprefix("kafka."): v for k, v in options.items()}.items()
    assert "kafka.isolation.level" not in options


def test_numbers_and_booleans_become_text_for_java() -> None:
    assert java({**SERVERS, "client.id": 7})["client.id"] == "7"


# -- dropped -------------------------------------------------------------------------------------


def test_s1_settings_of_groups_are_dropped() -> None:
    """Other users share the connection; Tidemark's consumer has no group and commits nothing."""
    shared = {"group.id": "theirs", "auto.offset.reset": "latest", "enable.auto.commit": True}
    assert client_config("lake", {**SERVERS, **shared}) == SERVERS
    assert java({**SERVERS, **shared}) == SERVERS


def test_the_given_connection_is_not_modified() -> None:
    extra = {**SERVERS, "group.id": "theirs"}
    client_config("lake", extra)
    assert extra == {**SERVERS, "group.id": "theirs"}


# -- refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize("servers", [{}, {"bootstrap.servers": ""}, {"bootstrap.servers": "  "}])
def test_a_connection_without_brokers_is_invalid(servers: dict[str, str]) -> None:
    error = refusal(servers)
    assert error.finding == "Connection 'lake' is invalid."
    assert "host:port,host:port" in error.rendered("expected")


def test_unknown_keys_are_refused_and_the_error_lists_the_known_keys() -> None:
    """A key without a translation would apply to one client only."""
    error = refusal({**SERVERS, "ssl.cipher.suites": "x", "acks": "1"})
    assert error.seen == "unknown keys acks, ssl.cipher.suites"
    assert "sasl.username" in error.needed
    assert "group.id" in error.needed


LEAK = "do-not-tell"


@pytest.mark.parametrize(
    ("extra", "problem"),
    [
        ({"no.such.key": LEAK}, "unknown key no.such.key"),
        ({"security.protocol": LEAK}, "another security.protocol"),
        ({**LOGIN, "sasl.mechanism": LEAK}, "another sasl.mechanism"),
        ({**LOGIN, "sasl.mechanism": "GSSAPI", "sasl.password": LEAK}, "another sasl.mechanism"),
        ({**LOGIN, "sasl.password": LEAK, "sasl.username": ""}, "no sasl.username"),
        ({**LOGIN, "sasl.username": LEAK, "sasl.password": ""}, "no sasl.password"),
        (
            {"security.protocol": "SASL_SSL", "sasl.password": LEAK},
            "security.protocol is SASL and sasl.mechanism is missing",
        ),
        (
            {**LOGIN, "security.protocol": "SSL", "sasl.password": LEAK},
            "sasl.mechanism and security.protocol SSL",
        ),
        (
            {"sasl.mechanism": "PLAIN", "sasl.username": LEAK, "sasl.password": LEAK},
            "sasl.mechanism and security.protocol PLAINTEXT",
        ),
        ({"sasl.password": {"secret": LEAK}}, "sasl.password is an object"),
        ({"client.id": [LEAK]}, "client.id is a list"),
        ({"ssl.ca.location": None}, "ssl.ca.location is null"),
        ({"ssl.ca.location": f"/nowhere/{LEAK}.pem"}, "no such file"),
        ({"ssl.certificate.pem": LEAK}, "ssl.certificate, no ssl.key"),
        ({"ssl.key.pem": LEAK}, "ssl.key, no ssl.certificate"),
    ],
)
def test_invalid_connections_are_refused_and_the_error_contains_no_value(
    extra: dict[str, Any], problem: str
) -> None:
    """Some values are secrets, and a value may have the wrong key."""
    error = refusal({**SERVERS, **extra})
    assert error.seen == problem
    assert LEAK not in str(error)
    assert LEAK not in repr(error)
    assert LEAK not in str(error.as_record())


# -- the page ------------------------------------------------------------------------------------

PAGE = PROJECT / "docs" / "how-to" / "connections.md"


def test_connections_page_lists_every_accepted_key() -> None:
    """The list includes the keys that are dropped."""
    page = PAGE.read_text(encoding="utf-8")
    table = page.partition("| key | for |")[2].partition("\n\n")[0]
    listed = re.findall(r"^\| `([\w.]+)` \|", table, flags=re.MULTILINE)
    accepted = (
        refusal({**SERVERS, "no.such.key": "x"}).needed.removeprefix("keys among ").split(", ")
    )
    assert sorted(listed) == sorted(accepted)


def test_every_example_of_the_connections_page_is_valid() -> None:
    page = PAGE.read_text(encoding="utf-8")
    documents = re.findall(r"```json\n(.*?)```|='(\{.*?\})'\n```", page, flags=re.DOTALL)
    extras = [json.loads("".join(document))["extra"] for document in documents]
    assert len(extras) == 5
    for extra in extras:
        if "url" in extra:
            ConfluentRegistry("registry", extra)
            continue
        assert java(extra)["bootstrap.servers"] == extra["bootstrap.servers"]
