"""Shows invalid specs as an import error of Airflow. It has no DAG.

The DAGs of the other specs are in separate files, which still load.
"""

from __future__ import annotations

from tidemark.app import App

App.from_environment().spec_folder.check()
