"""Options of both Kafka clients for one connection: librdkafka plans and verifies, Java reads.

A connection of Airflow's Kafka type keeps all settings in its `extra`, with librdkafka's names.
This module checks the settings and translates them to the Java client's names for Spark. Errors
never contain values, because some values are secrets.

Sources: librdkafka's CONFIGURATION.md; Kafka's consumer configuration reference and KIP-651 (PEM).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tidemark.core.texts import listed
from tidemark.kafka.errors import InvalidConnection

_SAME_NAME = frozenset(
    {
        "bootstrap.servers",
        "client.id",
        "client.rack",
        "security.protocol",
        "ssl.endpoint.identification.algorithm",
    }
)
_SASL = frozenset({"sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password"})
_TLS = frozenset(
    {
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.certificate.pem",
        "ssl.key.location",
        "ssl.key.pem",
        "ssl.key.password",
    }
)
# Only other users of the connection need these keys: Tidemark's consumer has no group.
_GROUP_KEYS = frozenset({"group.id", "auto.offset.reset", "enable.auto.commit"})

_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_PEM_FILES = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location")

_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}

READER_DEFAULTS: Mapping[str, str] = {
    # The Java client's default is true: a broker with `auto.create.topics.enable` would recreate
    # a topic that was deleted during the read of a plan.
    "allow.auto.create.topics": "false",
    # The Java client's defaults suit a service that waits for records; a batch reads a known range
    # as fast as possible (docs/adr/0005-settings.md has the measurements).
    #
    # A fetch at the end of the log waits this long for a record. A broker answers one request of a
    # connection at a time, so Spark's next request, for the log end offset, waits behind it. With
    # the default of 500 ms this costs half a second for each partition read to its end.
    "fetch.max.wait.ms": "10",
    # Spark requests the watermarks again at each poll.
    "max.poll.records": "5000",
    # Large enough for a link with high latency, small enough for a buffer for each consumer.
    "max.partition.fetch.bytes": str(4 * 1024 * 1024),
    # -1 lets the operating system choose; the default is too small for a distant broker.
    "receive.buffer.bytes": "-1",
}
"""Settings of the Java consumer for reading a batch; a connection cannot override them."""


def client_config(connection: str, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Check a connection's `extra` and return it as librdkafka configuration.

    Args:
        connection: The connection's id, for errors.
        extra: The connection's `extra`.

    Returns:
        librdkafka configuration, without the settings of consumer groups.

    Raises:
        InvalidConnection: A key cannot be translated, or a combination of keys is invalid.
    """
    config = {key: value for key, value in extra.items() if key not in _GROUP_KEYS}
    if not str(config.get("bootstrap.servers", "")).strip():
        raise InvalidConnection.of_definition(
            connection=connection,
            rule="bootstrap.servers in the connection's extra, as host:port,host:port",
            seen="no bootstrap.servers",
        )
    known = _SAME_NAME | _SASL | _TLS
    unknown = sorted(set(config) - known)
    if unknown:
        raise InvalidConnection.of_definition(
            connection=connection,
            rule=f"keys among {', '.join(sorted(known | _GROUP_KEYS))}",
            seen=f"unknown {listed('key', unknown)}",
        )
    for rule, problem in _broken_rules(config):
        raise InvalidConnection.of_definition(connection=connection, rule=rule, seen=problem)
    return config


def _broken_rules(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield broken rules, each with the part of the configuration that breaks it, by its key.

    A rule forbids what a client refuses or ignores, or what the clients read differently.
    """
    for key, value in config.items():
        if not isinstance(value, str | int | float):
            yield f"text or a number as {key}", f"{key} is {_json_type(value)}"
    yield from _broken_sasl_rules(config)
    yield from _broken_tls_rules(config)


def _broken_sasl_rules(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    protocol = str(config.get("security.protocol", "PLAINTEXT")).upper()
    if protocol not in _PROTOCOLS:
        yield f"security.protocol, one of {', '.join(_PROTOCOLS)}", "another security.protocol"
    mechanism = _mechanism(config)
    if mechanism is None:
        if protocol.startswith("SASL"):
            yield (
                f"sasl.mechanism, one of {', '.join(_LOGIN_MODULES)}",
                "security.protocol is SASL and sasl.mechanism is missing",
            )
        return
    if mechanism not in _LOGIN_MODULES:
        yield f"sasl.mechanism, one of {', '.join(_LOGIN_MODULES)}", "another sasl.mechanism"
    if not protocol.startswith("SASL"):
        # Both clients would connect without authentication.
        yield (
            "security.protocol SASL_SSL or SASL_PLAINTEXT together with sasl.mechanism",
            f"sasl.mechanism and security.protocol {protocol}",
        )
    for key in ("sasl.username", "sasl.password"):
        if not config.get(key):
            yield f"{key} together with sasl.mechanism", f"no {key}"


def _broken_tls_rules(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name in _PEM_FILES:
        if name in config and not Path(str(config[name])).is_file():
            yield f"{name} as the path of a PEM file on this machine", "no such file"
    given = {
        what: any(f"{what}.{form}" in config for form in ("pem", "location"))
        for what in ("ssl.certificate", "ssl.key")
    }
    if given["ssl.certificate"] != given["ssl.key"]:
        has, lacks = sorted(given, key=lambda what: not given[what])
        yield (
            "ssl.certificate and ssl.key together, each as .pem or .location",
            f"{has}, no {lacks}",
        )


def _json_type(value: Any) -> str:
    names = {dict: "an object", list: "a list", type(None): "null"}
    return names.get(type(value), type(value).__name__)


def _mechanism(config: Mapping[str, Any]) -> str | None:
    value = config.get("sasl.mechanism") or config.get("sasl.mechanisms")
    return str(value) if value else None


def java_options(config: Mapping[str, Any]) -> dict[str, str]:
    """Translate a checked configuration into the Java client's names.

    Args:
        config: A configuration from `client_config`.

    Returns:
        Java client settings. They contain the text of PEM files, so executors need no files.
    """
    options = {key: str(config[key]) for key in _SAME_NAME if key in config}
    if options.get("ssl.endpoint.identification.algorithm") == "none":
        options["ssl.endpoint.identification.algorithm"] = ""
    if "security.protocol" in options:
        options["security.protocol"] = options["security.protocol"].upper()
    mechanism = _mechanism(config)
    if mechanism:
        options["sasl.mechanism"] = mechanism
        options["sasl.jaas.config"] = (
            f"{_LOGIN_MODULES[mechanism]} required "
            f"username={_quoted(config['sasl.username'])} "
            f"password={_quoted(config['sasl.password'])};"
        )
    return options | _tls_options(config)


def _tls_options(config: Mapping[str, Any]) -> dict[str, str]:
    options = {}
    authority = _pem(config, "ssl.ca")
    if authority:
        options["ssl.truststore.type"] = "PEM"
        options["ssl.truststore.certificates"] = authority
    certificate, key = _pem(config, "ssl.certificate"), _pem(config, "ssl.key")
    if certificate and key:
        options["ssl.keystore.type"] = "PEM"
        options["ssl.keystore.certificate.chain"] = certificate
        options["ssl.keystore.key"] = key
    if "ssl.key.password" in config:
        options["ssl.key.password"] = str(config["ssl.key.password"])
    return options


def _pem(config: Mapping[str, Any], name: str) -> str | None:
    if f"{name}.pem" in config:
        return str(config[f"{name}.pem"])
    if f"{name}.location" in config:
        return Path(str(config[f"{name}.location"])).read_text(encoding="utf-8")
    return None


def _quoted(value: Any) -> str:
    """Return a value quoted for a JAAS line, which Java's StreamTokenizer parses."""
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def spark_options(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the options of Spark's Kafka source for a connection, with the reader's defaults.

    They lack the isolation level, which belongs to the plan and not to the connection.
    """
    java = {**READER_DEFAULTS, **java_options(config)}
    return {f"kafka.{key}": value for key, value in java.items()}
