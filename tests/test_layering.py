"""Imports point one way. Every import statement counts, also inside a function."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "linrnn"

# lowest first; parts on one line may not import each other
LAYERS = (
    {"errors"},
    {"_door", "_reading", "_turns"},
    {
        *(
            "_allocator",
            "_ambient",
            "_catalogue",
            "_declared",
            "_finite",
            "_import_path",
            "_memory",
            "_moments",
            "_numbers",
            "_schema",
        ),
        *("_signals", "_storage"),
    },
    {"typing", "state"},
    {"cells"},
    {"ops"},
    {"state_spec"},
    {"nn"},
    {"mixers"},
    {"testing", "dynamics"},
    {"_hidden", "_packing", "_pattern", "_tiers"},
    {"_rnn_cell"},
    {"block", "rnn"},
    {"backbone"},
    {"distillation"},
    {"_stream_input"},
    {"streaming"},
    {"sound", "tokenizers"},
    {"generation"},
    {"tasks"},
    {"learn"},
    {"train"},
    {"interop", "estimators", "lightning"},
    {"recipes"},
    {"compare"},
    {"reproductions"},
    {"cli"},
    {"__main__"},
)
RANK = {part: rank for rank, parts in enumerate(LAYERS) for part in parts}

# `typing` and `state` know each other; the root holds only the version and lazy names
WITHIN_RANK = {("state", "typing")}


def modules():
    """Dotted name below the package, path, for every file but the root's."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts != ("__init__",):
            yield parts, path


def imported_parts(parts, tree):
    """Top-level parts of the package that a module's import statements name, with line numbers."""
    package = ["linrnn", *(parts[:-1])]  # of a plain module and of an __init__ alike
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = base + (node.module.split(".") if node.module else [])
            # `from linrnn import mixers` names a part; `from linrnn.x import y` already has
            names = [base] if len(base) > 1 else [[*base, alias.name] for alias in node.names]
        else:
            continue
        yield from (
            (name[1], node.lineno)
            for name in names
            if name[0] == "linrnn" and len(name) > 1 and (name[1] in RANK or is_part(name[1]))
        )


def is_part(name):
    return (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file()


def violations(parts, source):
    own = parts[0]
    for part, line in imported_parts(parts, ast.parse(source)):
        allowed = part == own or RANK[part] < RANK[own] or (own, part) in WITHIN_RANK
        if not allowed:
            yield f"{'/'.join(parts)}.py:{line}: {own} must not import {part}"


def test_every_part_of_the_package_has_a_layer():
    found = {parts[0] for parts, _ in modules()}
    assert found == set(RANK)


def test_imports_point_to_lower_layers():
    found, checked = [], 0
    for parts, path in modules():
        source = path.read_text(encoding="utf-8")
        checked += len(list(imported_parts(parts, ast.parse(source))))
        found += violations(parts, source)
    assert found == []
    assert checked > 50, "hardly any import was found: the test itself is broken"


@pytest.mark.parametrize(
    ("parts", "source"),
    [
        (("ops", "scan"), "from linrnn.mixers import LRU"),
        (("ops", "scan"), "from linrnn import mixers"),
        (("ops", "scan"), "import linrnn.mixers.lru"),
        (("ops", "scan"), "import linrnn.mixers as m"),
        (("ops", "scan"), "from ..mixers import lru"),
        (("ops", "scan"), "from .. import mixers"),
        (("ops", "__init__"), "from ..mixers import lru"),
        (("backbone",), "from .tasks import load"),
        (("backbone",), "from . import tasks"),
        (("train", "_model"), "def f():\n    from linrnn.recipes import load"),
        (("typing",), "from linrnn.state import leaves"),
    ],
)
def test_a_wrong_import_is_found_however_it_is_written(parts, source):
    assert len(list(violations(parts, source))) == 1


@pytest.mark.parametrize(
    ("parts", "source"),
    [
        (("mixers", "lru"), "from linrnn.ops import linear_scan"),
        (("mixers", "lru"), "from ._base import Mixer"),
        (("mixers", "lru"), "from . import names"),
        (("mixers", "lru"), "from ..ops import linear_scan"),
        (("state",), "from linrnn.typing import State"),
        (("cli", "list"), "from linrnn import __version__"),
        (("cli", "list"), "import linrnn"),
    ],
)
def test_a_right_import_passes(parts, source):
    assert list(violations(parts, source)) == []
