"""Loads the scripts of include/jvm, which belong to no package."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

from tests.support import PROJECT


def load_script(name: str) -> ModuleType:
    """Return the script `include/jvm/NAME.py` as a module."""
    spec = spec_from_file_location(name, PROJECT / "include" / "jvm" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module
