"""Plain loops of fla-core, each from its own file: its packages import Triton, for seconds."""

import importlib.util
import runpy


def naive(path, name):
    """A function of ``fla/ops/<path>``."""
    folder = importlib.util.find_spec("fla").submodule_search_locations[0]
    return runpy.run_path(f"{folder}/ops/{path}")[name]
