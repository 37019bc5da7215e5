"""Shows specs that cannot be used as an import error of Airflow. It has no DAG.

The DAGs of the other specs are in files of their own, which load nevertheless.
"""

from __future__ import annotations

from tidemark.wiring import App

App.from_environment().spec_folder.check()
