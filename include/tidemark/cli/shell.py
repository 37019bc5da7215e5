"""`tidemark shell`: a Python shell with a Spark session over the tables of the home."""

from __future__ import annotations

import code
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import typer

from tidemark.app.app import App
from tidemark.app.steps import named_failures
from tidemark.cli.arguments import Master
from tidemark.cli.engine import select_engine
from tidemark.cli.output import out, step
from tidemark.cli.progress import waiting
from tidemark.spark.connect import connect_sessions
from tidemark.spark.engine import Server, without_connect
from tidemark.spark.sessions import open_application
from tidemark.spark.settings import local_environment, local_settings
from tidemark.spark.stores import class_path_variable


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(short_help="Open a Spark shell with the tables.")(shell)


def shell(master: Master = None) -> None:
    """Open a Python shell with a Spark session, in IPython if it is installed.

    \b
    tidemark shell
    echo 'spark.sql("SELECT * FROM offset_ranges").show()' | tidemark shell

    `spark` is the session, with Delta and the settings of Tidemark's jobs. The tables are temporary
    views: `bronze.prices` in backquotes, or its short name if no other table has it. `tidemark sql
    --tables` lists both. Views follow the tables. The shell runs statements on standard input
    without a prompt.

    Spark can write. Do not write to tables of pipelines.
    """  # noqa: D301  click does not rewrap a paragraph that begins with \b
    tidemark = App.from_environment()
    with ExitStack() as stack:
        from tidemark.sql.spark_views import create_views

        with waiting("starting Spark"):
            session = stack.enter_context(_session(tidemark, master))
            names = create_views(session, tidemark.sql_tables())
        namespace = {"spark": session}
        if sys.stdin.isatty():
            _interact(namespace, f"spark is the session. Views: {', '.join(names) or 'none'}")
        else:
            step(f"views: {', '.join(names) or 'none'}")
            exec(compile(sys.stdin.read(), "<stdin>", "exec"), namespace)


@contextmanager
def _session(tidemark: App, master: str | None) -> Iterator[Any]:
    """Provide a session on the engine of a master, and close it."""
    engine = select_engine(tidemark, master)
    if isinstance(engine, Server):
        with connect_sessions(engine, {}) as sessions:
            yield sessions.shared()
        return
    # Variables for other programs would make PySpark connect to a server.
    for name in os.environ.keys() - without_connect(os.environ).keys():
        del os.environ[name]
    os.environ.update(class_path_variable(tidemark.layout, os.environ))
    settings = {
        "spark.master": engine.master,
        **tidemark.engines.application_settings(engine.settings),
        **local_settings(engine.master),
    }
    with local_environment(engine.master, os.environ, settings) as variables:
        os.environ.update(variables)
        with named_failures(tidemark.layout, "starting Spark"):
            session = open_application("tidemark-shell", settings)
        try:
            yield session
        finally:
            session.stop()


def _interact(namespace: dict[str, Any], banner: str) -> None:
    if importlib.util.find_spec("IPython"):
        ipython = importlib.import_module("IPython")
        out.print(banner)
        ipython.start_ipython(argv=[], user_ns=namespace)
    else:
        code.interact(banner, local=namespace, exitmsg="")
