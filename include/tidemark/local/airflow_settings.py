"""Settings of `airflow standalone`, each with its reason."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tidemark.spec.layout import Layout

HOST = "127.0.0.1"
"""Address of all of Airflow's servers whose address can be set; only this machine reaches it."""

_LOCAL_SPARK = {"conn_type": "spark", "host": "local[2]", "extra": {"deploy-mode": "client"}}

_DEFAULTS: Mapping[str, str] = {
    "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(_LOCAL_SPARK),
}
"""Settings that a variable of the caller replaces."""

_FIXED: Mapping[str, str] = {
    "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    # Each task may run a Spark driver.
    "AIRFLOW__CORE__PARALLELISM": "2",
    "AIRFLOW__API__HOST": HOST,
    "AIRFLOW__API__WORKERS": "1",
    # Airflow and Great Expectations send no usage data.
    "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    "GX_ANALYTICS_ENABLED": "False",
    # A changed DAG file or spec takes effect within seconds. Parsing takes 0.3 s for each file.
    "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "10",
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "10",
    "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
    # People and `last_lines` read the log, so it has no colours and no delay.
    "NO_COLOR": "1",
    "PYTHONUNBUFFERED": "1",
    # The parts of Airflow connect to each other directly, even if the environment has a proxy.
    "NO_PROXY": f"{HOST},localhost",
    "no_proxy": f"{HOST},localhost",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AirflowPorts:
    """Ports that Airflow listens on.

    Attributes:
        api: Web UI and REST API.
        worker_log: The scheduler's log server.
        trigger_log: The triggerer's log server.
    """

    api: int
    worker_log: int
    trigger_log: int


def url(port: int) -> str:
    """Return the address of the web UI and the REST API."""
    return f"http://{HOST}:{port}"


def password_file(home: Path) -> Path:
    """Return the file in which Airflow's simple auth manager stores the password of `admin`."""
    return home / "simple_auth_manager_passwords.json.generated"


def environment(layout: Layout, environ: Mapping[str, str], ports: AirflowPorts) -> dict[str, str]:
    """Return the environment of `airflow standalone`.

    Args:
        layout: Folders of Airflow, of the DAGs and of Tidemark's state.
        environ: Base environment; its variables replace `_DEFAULTS`.
        ports: Ports to listen on.
    """
    home = layout.airflow
    programs = str(Path(sys.executable).parent)
    settings = {
        **_FIXED,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(layout.dags),
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
        # Standalone starts its parts by the name `airflow`, and tasks start `spark-submit`.
        "PATH": os.pathsep.join([programs, environ.get("PATH", os.defpath)]),
    }
    if layout.lakehouse_root:
        settings["TIDEMARK_LAKEHOUSE"] = layout.lakehouse_root
    return {**_DEFAULTS, **environ, **settings}
