"""Description of the machine and the software of a measurement."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import psutil

_PACKAGES = ("pyspark", "delta-spark", "deltalake", "confluent-kafka")


def machine_record() -> dict[str, object]:
    """Return the size of the machine, and the versions of the software."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "processor": _processor(),
        "system": f"{platform.system()} {platform.release()}",
        "load_before": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
        "java": _java(),
        **{name: version(name) for name in _PACKAGES},
    }


def _processor() -> str:
    listing = Path("/proc/cpuinfo")
    if listing.exists():
        for line in listing.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _java() -> str:
    text = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr
    return text.splitlines()[0]
