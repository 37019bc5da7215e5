"""What `airflow standalone` is told, each setting with its reason."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tidemark.spec.layout import Layout

HOST = "127.0.0.1"
"""Nothing of `make up` is reachable from another machine, where Airflow lets us choose."""

_LOCAL_SPARK = {"conn_type": "spark", "host": "local[2]", "extra": {"deploy-mode": "client"}}

_FIXED: Mapping[str, str] = {
    "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__API__HOST": HOST,
    "AIRFLOW__API__WORKERS": "1",
    # Nothing phones home.
    "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    "GX_ANALYTICS_ENABLED": "False",
    # A changed DAG file or spec shows within seconds; parsing them takes a third of a second each.
    "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "10",
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "10",
    "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
    # Its log is read by people and by `last_lines`: no colours, no delay.
    "NO_COLOR": "1",
    "PYTHONUNBUFFERED": "1",
    # The parts of Airflow talk to each other here, whatever proxy the environment has.
    "NO_PROXY": f"{HOST},localhost",
    "no_proxy": f"{HOST},localhost",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AirflowPorts:
    """Ports that Airflow listens on.

    Attributes:
        api: Pages and REST API.
        worker_log: The scheduler's log server.
        trigger_log: The triggerer's log server.
    """

    api: int
    worker_log: int
    trigger_log: int


def url(port: int) -> str:
    """Address of the pages and the REST API."""
    return f"http://{HOST}:{port}"


def password_file(home: Path) -> Path:
    """Where Airflow's simple auth manager keeps the password of `admin`."""
    return home / "simple_auth_manager_passwords.json.generated"


def environment(
    layout: Layout, environ: Mapping[str, str], ports: AirflowPorts, parallelism: int
) -> dict[str, str]:
    """The environment of `airflow standalone`.

    Args:
        layout: Airflow's home, the DAG folder, and where Tidemark keeps its state.
        environ: What to build on; its AIRFLOW_CONN_ variables are kept.
        ports: Where to listen.
        parallelism: Most tasks at once over all DAGs; each may hold a Spark driver.
    """
    home = layout.airflow
    here = str(Path(sys.executable).parent)
    chosen = {
        **_FIXED,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(layout.project / "dags"),
        "AIRFLOW__CORE__PARALLELISM": str(parallelism),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url(ports.api)}/execution/",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(password_file(home)),
        "AIRFLOW__API__PORT": str(ports.api),
        "AIRFLOW__API__BASE_URL": url(ports.api),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(home / "logs"),
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(ports.worker_log),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(ports.trigger_log),
        "TIDEMARK_PROJECT": str(layout.project),
        "TIDEMARK_HOME": str(layout.home),
        # Standalone starts its parts by the name `airflow`, and they start `spark-submit`.
        "PATH": os.pathsep.join([here, environ.get("PATH", os.defpath)]),
    }
    if layout.lakehouse_root:
        chosen["TIDEMARK_LAKEHOUSE"] = layout.lakehouse_root
    return {"AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(_LOCAL_SPARK), **environ, **chosen}
