"""Tests of docker-compose.yaml and the Dockerfile that need no Docker."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from jsonschema.validators import validator_for

from tests.conftest import PROJECT
from tests.support.registry import API, VERSION, running_registry
from tests.support.waiting import wait_until
from tidemark.app.app import App
from tidemark.core.errors import SetupError
from tidemark.local.broker import Broker, BrokerConfig, BrokerStatus, Listener
from tidemark.silver.typed.registry import ConfluentRegistry
from tidemark.spark.engine import Server
from tidemark.spark.sockets import free_ports, is_listening
from tidemark.spec.layout import Layout

SECRETS = ("PASSWORD", "SECRET", "FERNET", "TOKEN")

_VARIABLE = re.compile(r"\$\{(\w+)(?::?([?-])([^}]*))?\}")


def _example_variables() -> set[str]:
    lines = (PROJECT / ".env.example").read_text().splitlines()
    return {line.split("=")[0] for line in lines if re.match(r"[A-Z_]+=", line)}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((PROJECT / "docker-compose.yaml").read_text())
    return loaded


@pytest.fixture(scope="module")
def services(compose: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = compose["services"]
    return found


def _strings(node: Any) -> list[str]:
    if isinstance(node, dict):
        return [s for value in node.values() for s in _strings(value)]
    if isinstance(node, list):
        return [s for value in node for s in _strings(value)]
    return [node] if isinstance(node, str) else []


# -- file ----------------------------------------------------------------------------------------


def test_the_file_is_valid_by_the_schema_of_compose(
    compose: dict[str, Any],
) -> None:
    vendored = files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    schema = json.loads(vendored.read_text())
    validator = validator_for(schema)(schema)

    assert [e.message for e in validator.iter_errors(compose)] == []
    broken = {"services": {"kafka": {"image": 1, "no-such-key": True}}}
    assert list(validator.iter_errors(broken))


def test_the_file_has_all_services(services: dict[str, Any]) -> None:
    airflow = {f"airflow-{n}" for n in ("api-server", "scheduler", "dag-processor", "triggerer")}

    assert services.keys() == airflow | {
        "airflow-init",
        "kafka",
        "kafdrop",
        "postgres",
        "schema-registry",
        "spark",
        "spark-master",
        "spark-worker",
        "task-network",
    }
    on_request = {name for name, service in services.items() if "profiles" in service}
    assert on_request == {"spark-master", "spark-worker"}
    # A service without a profile waits for no service with a profile.
    always = [service for name, service in services.items() if name not in on_request]
    assert not on_request & {each for service in always for each in service.get("depends_on", {})}


def test_every_image_has_a_full_version(services: dict[str, Any]) -> None:
    base = re.search(r"^FROM (\S+)$", (PROJECT / "Dockerfile").read_text(), flags=re.MULTILINE)
    assert base is not None
    images = {name: service["image"] for name, service in services.items()}

    for name, image in {**images, "Dockerfile": base[1]}.items():
        assert re.fullmatch(r"[\w./-]+:\d+\.\d+(\.\d+)?[\w.-]*", image), f"{name}: {image}"


def test_every_long_running_service_has_a_health_check(
    services: dict[str, Any],
) -> None:
    ending = {name for name, service in services.items() if service["restart"] == "no"}
    assert ending == {"airflow-init"}

    for name, service in services.items():
        assert ("healthcheck" in service) != (name in ending), name
    for name in services.keys() - ending:
        for needed, how in services[name].get("depends_on", {}).items():
            expected = "service_completed_successfully" if needed in ending else "service_healthy"
            assert how == {"condition": expected}, f"{name} -> {needed}"


def test_every_published_port_is_bound_to_this_machine(services: dict[str, Any]) -> None:
    published = [port for service in services.values() for port in service.get("ports", [])]

    assert len(published) == 5
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port) for port in published), published
    assert len({port.split(":")[1] for port in published}) == len(published)


def test_secrets_are_required_variables(services: dict[str, Any]) -> None:
    """A missing variable stops the start with a message."""
    for name, service in services.items():
        for variable, value in service.get("environment", {}).items():
            if any(word in variable for word in SECRETS):
                assert re.fullmatch(r"\$\{\w+:\?[^}]+\}", value), f"{name}: {variable}"
            credentials = re.search(r"://[^:/@]+:([^@]+)@", value)
            if credentials:
                assert re.fullmatch(r"\$\{\w+:\?[^}]+\}", credentials[1]), f"{name}: {variable}"


def test_the_example_lists_every_variable_without_a_value(compose: dict[str, Any]) -> None:
    text = "\n".join(_strings(compose))
    used = {match[1] for match in _VARIABLE.finditer(text)}

    # Compose would replace any other text with `$`, except the escape `$$`.
    assert "$" not in _VARIABLE.sub("", text).replace("$$", "")
    assert used == _example_variables()
    assert not re.search(r"^[A-Z_]+=.+$", (PROJECT / ".env.example").read_text(), re.MULTILINE)


def test_versions_equal_those_of_the_locks(services: dict[str, Any]) -> None:
    ivy_file = (PROJECT / "include" / "jvm" / "ivy.xml").read_text()
    broker = re.search(r'name="kafka_2.13" rev="([\d.]+)"', ivy_file)
    version = re.search(r'^version = "([\d.]+)"', (PROJECT / "pyproject.toml").read_text(), re.M)
    assert broker is not None
    assert version is not None
    image = (PROJECT / "Dockerfile").read_text()

    assert services["kafka"]["image"] == f"apache/kafka:{broker[1]}"
    assert services["schema-registry"]["image"] == f"apicurio/apicurio-registry:{VERSION}"
    for name in services:
        if name.startswith(("airflow-", "spark", "task-")):
            assert services[name]["image"] == f"tidemark:{version[1]}"
            assert services[name]["build"] == "."
    assert "--require-hashes -r requirements.txt -r requirements-docker.txt" in image
    assert "FROM python:3.11." in image
    assert "openjdk-17-jre" in image


def test_the_docker_lock_agrees_with_the_lock() -> None:
    """Both contain the drivers of the database URL."""

    def pins(name: str) -> dict[str, str]:
        text = (PROJECT / name).read_text()
        return dict(re.findall(r"^([\w.-]+)==(\S+)", text, flags=re.MULTILINE))

    main, docker = pins("requirements.txt"), pins("requirements-docker.txt")

    assert {n: v for n, v in docker.items() if main.get(n, v) != v} == {}
    assert {"psycopg2-binary", "asyncpg"} <= docker.keys()


# -- image ---------------------------------------------------------------------------------------


def test_every_copied_file_exists_and_is_not_ignored() -> None:
    rules = [
        line
        for line in (PROJECT / ".dockerignore").read_text().splitlines()
        if line and not line.startswith("#")
    ]

    def ignored(path: str) -> bool:
        result = False
        top = path.split("/")[0]
        for rule in rules:
            if fnmatch.fnmatch(top, rule.lstrip("!")):
                result = not rule.startswith("!")
        return result

    copied = re.findall(r"^COPY (?:--\S+ )*(.+) \S+$", (PROJECT / "Dockerfile").read_text(), re.M)
    sources = [source for line in copied for source in line.split()]

    assert {"requirements.txt", "include", "jobs", "dags"} <= set(sources)
    for source in sources:
        assert (PROJECT / source).exists(), source
        assert not ignored(source), source
    assert ignored(".env")
    assert ignored(".tidemark")


def test_the_image_does_not_run_as_root() -> None:
    """Its user owns the mount points."""
    image = (PROJECT / "Dockerfile").read_text()

    assert re.findall(r"^USER (\S+)$", image, flags=re.MULTILINE)[-1] == "tidemark"
    for folder in ("/var/lib/tidemark", "/var/lib/airflow"):
        assert re.search(rf"chown tidemark: .*{folder}", image)


# -- addresses -----------------------------------------------------------------------------------


def _listeners(text: str) -> dict[str, tuple[str, int]]:
    parsed = re.findall(r"(\w+)://([^:,]*):(\d+)", text)
    return {name: (host, int(port)) for name, host, port in parsed}


def test_containers_use_the_internal_listener(services: dict[str, Any]) -> None:
    advertised = _listeners(services["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"])
    internal = "{}:{}".format(*advertised["INTERNAL"])
    environment = services["airflow-scheduler"]["environment"]

    assert advertised["INTERNAL"][0] == services["kafka"]["hostname"] == "kafka"
    assert services["kafdrop"]["environment"]["KAFKA_BROKERCONNECT"] == internal
    connection = App(environ=environment).connections.kafka_config("kafka_default")
    assert connection["bootstrap.servers"] == internal


def test_the_published_port_is_that_of_the_external_listener(services: dict[str, Any]) -> None:
    environment = services["kafka"]["environment"]
    host, port = _listeners(environment["KAFKA_ADVERTISED_LISTENERS"])["EXTERNAL"]
    inside = _listeners(environment["KAFKA_LISTENERS"])["EXTERNAL"][1]

    assert services["kafka"]["ports"] == [f"{host}:{port}:{inside}"]


def test_tasks_find_the_schema_registry(services: dict[str, Any]) -> None:
    environment = services["airflow-scheduler"]["environment"]
    (published,) = services["schema-registry"]["ports"]
    inside = published.rpartition(":")[2]

    extra = App(environ=environment).connections.extra("schema_registry_default", "url")
    assert extra == {"url": f"http://schema-registry:{inside}{API}"}
    assert ConfluentRegistry("schema_registry_default", extra)


def test_airflow_and_spark_share_the_lakehouse(services: dict[str, Any]) -> None:
    for name in ("airflow-scheduler", "airflow-triggerer", "spark", "spark-worker"):
        home = services[name]["environment"]["TIDEMARK_HOME"]
        assert f"tidemark-home:{home}" in services[name]["volumes"]


@pytest.mark.airflow
def test_airflow_can_submit_to_the_spark_master(
    services: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    environment = services["airflow-scheduler"]["environment"]
    variable = "AIRFLOW_CONN_SPARK_CLUSTER"
    monkeypatch.setenv(variable, environment[variable])
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    resolved = SparkSubmitHook(conn_id="spark_cluster")._connection

    assert resolved["master"] == services["spark-worker"]["command"][-1]
    assert resolved["deploy_mode"] == "client"


@pytest.mark.spark
@pytest.mark.faults
def test_tasks_reach_the_spark_server_with_its_token(
    services: dict[str, Any], layout: Layout, tmp_path: Path
) -> None:
    """The command of the file starts a server that passes every check and refuses other tokens.

    The test uses command, environment and connection of the file, with a free port.
    """
    server, scheduler = services["spark"], services["airflow-scheduler"]
    assert server["network_mode"] == scheduler["network_mode"] == "service:task-network"
    assert "ports" not in services["task-network"]
    connection = json.loads(_filled(scheduler["environment"]["AIRFLOW_CONN_SPARK_DEFAULT"]))
    assert (connection["conn_type"], connection["host"]) == ("spark_connect", "localhost")
    assert server["command"][:3] == ["tidemark", "spark", "serve"]
    assert server["command"][-2:] == ["--port", str(connection["port"])]
    assert str(connection["port"]) in server["healthcheck"]["test"][-1]
    (port,) = free_ports("127.0.0.1", 1)
    log = tmp_path / "log"
    environ = {name: _filled(value) for name, value in server["environment"].items()}
    home = {"TIDEMARK_HOME": str(tmp_path), "TIDEMARK_PROJECT": str(layout.project)}
    with log.open("w") as output:
        process = subprocess.Popen(
            [str(Path(sys.executable).with_name("tidemark")), *server["command"][1:-1], str(port)],
            env={**os.environ, **environ, **home},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_until(lambda: is_listening("127.0.0.1", port) or process.poll() is not None)
        found = Server(host=connection["host"], port=port, token=connection["password"])
        app = App.from_environment(home)
        app.engines.check_requirements(found)
        with pytest.raises(SetupError, match="refuses this client"):
            app.engines.check_requirements(Server(host="localhost", port=port, token="another"))
        command_line = (Path("/proc") / str(process.pid) / "cmdline").read_text()
        assert "SparkConnectServer" in command_line
        assert connection["password"] not in command_line + log.read_text()
    finally:
        # Docker sends this signal to the JVM, which has the process id of the command.
        process.terminate()
        process.wait(30)
    assert not app.engines.server().status().running


def _filled(value: str) -> str:
    return _VARIABLE.sub(lambda match: f"filled-{match[1]}", value)


@pytest.mark.broker
def test_s21_both_listeners_of_the_compose_file_work_on_a_real_broker(
    services: dict[str, Any], layout: Layout, tmp_path: Path
) -> None:
    """A client reaches the broker by either listener, and stays on that listener.

    The test uses the settings of the file, with host names mapped to this machine and free ports.
    """
    environment = services["kafka"]["environment"]
    names = list(_listeners(environment["KAFKA_ADVERTISED_LISTENERS"]))
    inside = {name: port for name, (_, port) in _listeners(environment["KAFKA_LISTENERS"]).items()}
    mapped = dict(zip(inside.values(), free_ports("127.0.0.1", len(inside)), strict=True))

    def on_this_machine(value: str) -> str:
        return re.sub(
            r"(://|@)[^:,]*:(\d+)", lambda m: f"{m[1]}127.0.0.1:{mapped[int(m[2])]}", value
        )

    # The image derives names so: KAFKA_LOG_DIRS is log.dirs.
    properties = {
        variable.removeprefix("KAFKA_").lower().replace("_", "."): on_this_machine(value)
        for variable, value in environment.items()
        if variable.startswith("KAFKA_") and variable not in ("KAFKA_HEAP_OPTS", "KAFKA_LOG_DIRS")
    }
    broker = Broker(
        BrokerConfig(
            home=tmp_path,
            jars=layout.kafka_jars,
            listeners=tuple(Listener(name=name, port=mapped[inside[name]]) for name in names),
            properties=properties,
        )
    )
    try:
        broker.start()
        address = {name: f"127.0.0.1:{mapped[inside[name]]}" for name in names}
        for name in names:
            brokers = AdminClient({"bootstrap.servers": address[name]}).list_topics(timeout=20)
            assert [f"{b.host}:{b.port}" for b in brokers.brokers.values()] == [address[name]]
        _write(address["EXTERNAL"], b"from the host")
        assert _read(address["INTERNAL"]) == b"from the host"
    finally:
        broker.stop()


def _write(bootstrap: str, value: bytes) -> None:
    client = {"bootstrap.servers": bootstrap}
    admin = AdminClient(client)
    admin.create_topics([NewTopic("s21", 1)])["s21"].result(timeout=20)
    producer = Producer({**client, "acks": "all"})
    producer.produce("s21", value)
    assert producer.flush(20) == 0


def _read(bootstrap: str) -> bytes | None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    try:
        consumer.assign([TopicPartition("s21", 0, 0)])
        message = consumer.poll(20)
        assert message is not None
        assert message.error() is None
        value: bytes | None = message.value()
        return value
    finally:
        consumer.close()


@pytest.mark.broker
@pytest.mark.registry
@pytest.mark.faults
def test_schemas_keep_their_ids_after_a_restart_of_the_registry(
    services: dict[str, Any], broker: BrokerStatus, tmp_path: Path
) -> None:
    settings = {
        name: value.replace("kafka:19092", broker.bootstrap)
        for name, value in services["schema-registry"]["environment"].items()
        if name.startswith("APICURIO_")
    }
    with running_registry(tmp_path / "first", settings) as registry:
        ids = [registry.register("a", "string"), registry.register("b", "long")]
    with running_registry(tmp_path / "second", settings) as registry:
        assert registry.register("b", "long") == ids[1]
        client = ConfluentRegistry("again", {"url": registry.url})
        assert [getattr(client.schema(each), "text", None) for each in ids] == [
            '"string"',
            '"long"',
        ]
