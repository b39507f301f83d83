"""The plain loops of fla, each file for itself: the package takes seconds to import."""

import importlib.util
from pathlib import Path

import pytest


def naive(path):
    """A file of ``fla.ops`` that needs nothing but PyTorch, such as ``delta_rule/naive.py``."""
    package = importlib.util.find_spec("fla")
    if package is None:
        pytest.skip("fla is not installed")
    place = Path(package.submodule_search_locations[0]) / "ops" / path
    spec = importlib.util.spec_from_file_location(f"fla_{place.parent.name}", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
