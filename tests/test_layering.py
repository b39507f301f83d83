"""Imports point one way. Every import statement counts, also inside a function."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "linrnn"

# lowest first; rooms on one line may not import each other
LAYERS = (
    {"errors"},
    {"_files", "_process"},
    {"_options"},
    {"typing"},
    {"compute"},
    {"state"},
    {"engine"},
    {"cells"},
    {"ops"},
    {"state_spec"},
    {"nn"},
    {"mixers"},
    {"testing", "dynamics"},
    {"block"},
    {"backbone"},
    {"rnn", "distillation", "quantization", "frozen"},
    {"streaming"},
    {"sound", "tokenizers"},
    {"generation"},
    {"tasks"},
    {"learn"},
    {"train"},
    {"interop", "estimators", "lightning"},
    {"recipes"},
    {"contest"},
    {"compare"},
    {"reproductions", "atlas"},
    {"serve"},
    {"cli"},
    {"__main__"},
)
RANK = {room: rank for rank, rooms in enumerate(LAYERS) for room in rooms}
CATALOGUES = ("mixers", "tasks", "learn", "recipes", "reproductions", "cli")
FOLDERS = 2
"""With what its entries share, of a catalogue."""


def read():
    """Every module by its dotted name below the package: whether it is a folder's, and its tree."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        inner = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if inner else parts)
        if name:  # the root holds only the version and lazy names
            found[name] = inner, ast.parse(path.read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def package():
    return read()


def imported(name, inner, tree, known):
    """Modules below the package that a module's import statements name, with line numbers."""
    own = name.split(".") if inner else name.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ["linrnn", *own[: len(own) - node.level + 1]] if node.level else []
            base += node.module.split(".") if node.module else []
            names = [[*base, alias.name] for alias in node.names]
        else:
            continue
        for parts in names:
            if parts[0] == "linrnn":
                below = parts[1:]
                while below and ".".join(below) not in known:
                    below = below[:-1]
                if below:
                    yield ".".join(below), node.lineno


def misdirected(name, inner, tree, known):
    own = name.split(".")[0]
    for other, line in imported(name, inner, tree, known):
        room = other.split(".")[0]
        if room != own and RANK[room] >= RANK[own]:
            yield f"{name}:{line}: {own} must not import {room}"


def intruding(name, inner, tree, known):
    here = name.split(".") if inner else name.split(".")[:-1]
    for other, line in imported(name, inner, tree, known):
        parts = other.split(".")
        first = next((i for i, part in enumerate(parts) if part.startswith("_")), None)
        if first is not None and here[:first] != parts[:first]:
            yield f"{name}:{line}: {other} is private to {'.'.join(parts[:first])}"


def circles(graph):
    """Modules that import one another, by Tarjan's algorithm."""
    index, low, stack, found = {}, {}, [], []

    def visit(name):
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in graph[name]:
            if other not in index:
                visit(other)
            if other in stack:
                low[name] = min(low[name], low[other])
        if low[name] == index[name]:
            circle = [stack.pop()]
            while circle[-1] != name:
                circle.append(stack.pop())
            if len(circle) > 1:
                found.append(sorted(circle))

    for name in graph:
        if name not in index:
            visit(name)
    return found


def test_every_room_of_the_package_has_a_layer(package):
    assert {name.split(".")[0] for name in package} == set(RANK)


def test_imports_point_to_lower_layers(package):
    found = [one for name, of in package.items() for one in misdirected(name, *of, package)]
    checked = sum(len(list(imported(name, *of, package))) for name, of in package.items())
    assert found == []
    assert checked > 50, "hardly any import was found: the test itself is broken"


def test_nobody_imports_what_is_private_to_others(package):
    assert [one for name, of in package.items() for one in intruding(name, *of, package)] == []


def test_no_modules_import_one_another(package):
    graph = {
        name: {other for other, _ in imported(name, *of, package)} - {name}
        for name, of in package.items()
    }
    assert circles(graph) == []


@pytest.mark.parametrize("room", CATALOGUES)
def test_a_catalogue_has_entries_and_few_folders_beside_them(room):
    inside = [p for p in (PACKAGE / room).iterdir() if p.name not in ("__init__.py", "__pycache__")]
    private = [p for p in inside if p.name.startswith("_")]
    assert all(p.is_file() and p.suffix == ".py" for p in inside if p not in private)
    assert all(p.is_dir() for p in private), "a module of a catalogue is an entry"
    assert len(private) <= FOLDERS


KNOWN = {
    "ops.linear",
    "ops",
    "mixers.lru",
    "mixers",
    "tasks",
    "backbone",
    "train.data",
    "recipes",
    "state",
}
KNOWN |= {"mixers._families.segments", "mixers._families", "train._run", "train"}


@pytest.mark.parametrize(
    ("name", "inner", "source"),
    [
        ("ops.scan", False, "from linrnn.mixers import LRU"),
        ("ops.scan", False, "from linrnn import mixers"),
        ("ops.scan", False, "import linrnn.mixers.lru"),
        ("ops.scan", False, "import linrnn.mixers as m"),
        ("ops.scan", False, "from ..mixers import lru"),
        ("ops.scan", False, "from .. import mixers"),
        ("ops", True, "from ..mixers import lru"),
        ("block", False, "from .tasks import load"),
        ("block", False, "from . import tasks"),
        ("train.model", False, "def f():\n    from linrnn.recipes import load"),
        ("typing", False, "from linrnn.state import leaves"),
    ],
)
def test_a_wrong_import_is_found_however_it_is_written(name, inner, source):
    assert len(list(misdirected(name, inner, ast.parse(source), KNOWN))) == 1


@pytest.mark.parametrize(
    ("name", "inner", "source"),
    [
        ("mixers.lru", False, "from linrnn.ops import linear_scan"),
        ("mixers.lru", False, "from ._families.segments import Segments"),
        ("mixers.lru", False, "from . import names"),
        ("mixers.lru", False, "from ..ops import linear_scan"),
        ("mixers", True, "from ._families import segments"),
        ("state", False, "from linrnn.typing import State"),
        ("cli.list", False, "from linrnn import __version__"),
        ("cli.list", False, "import linrnn"),
    ],
)
def test_a_right_import_passes(name, inner, source):
    tree = ast.parse(source)
    assert [*misdirected(name, inner, tree, KNOWN), *intruding(name, inner, tree, KNOWN)] == []


@pytest.mark.parametrize(
    ("name", "inner", "source"),
    [
        ("train.model", False, "from linrnn.mixers._families.segments import Segments"),
        ("learn.bptt", False, "from linrnn.mixers._families import segments"),
        ("compare", True, "import linrnn.train._run"),
        ("compare.rows", False, "from linrnn.train import _run"),
    ],
)
def test_an_import_of_what_is_private_is_found(name, inner, source):
    assert len(list(intruding(name, inner, ast.parse(source), KNOWN))) == 1


def test_a_circle_is_found():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}
    assert circles(graph) == [["b", "c"]]


MOST_LINES_OF_A_FILE = 500
MOST_LINES = 50
"""Lines of a function's code, without its signature and docstring."""
LONG_KERNELS = {
    "ops.linear.linear_scan._triton_adjoint": {"run_backward": 142},
    "ops.linear.linear_scan._triton_forward": {"run_forward": 94},
    "ops.conv.causal_conv._triton_kernels": {"run_backward": 78},
    "ops.linear.block_scan._triton_kernels": {"run_backward": 68},
    "ops.selective_scan._triton_kernels": {"run_forward": 60, "run_backward": 126},
}
"""Kernels of Triton, whose loop holds a dozen tiles in registers, and their lines: these only fall.
A kernel is cut where a part needs few of the tiles."""


def code_lines(function):
    """Lines of a function from the first statement behind its docstring to the end."""
    documented = len(function.body) > 1 and ast.get_docstring(function) is not None
    return function.end_lineno - function.body[documented].lineno + 1


def test_files_have_at_most_500_lines():
    lengths = {path: len(path.read_text().splitlines()) for path in sorted(PACKAGE.rglob("*.py"))}
    assert len(lengths) > 1000
    assert {str(path) for path, length in lengths.items() if length > MOST_LINES_OF_A_FILE} == set()


def test_functions_have_at_most_50_lines_of_code(package):
    long: dict[str, dict[str, int]] = {}
    for module, (_, tree) in package.items():
        for node in ast.walk(tree):
            function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            if function and code_lines(node) > MOST_LINES:
                long.setdefault(module, {})[node.name] = code_lines(node)
    assert long == LONG_KERNELS


def test_code_lines_leave_out_docstrings_and_signatures():
    source = 'def f(\n    x,\n):\n    """One.\n\n    Two."""\n    y = x\n    return y'
    assert code_lines(ast.parse(source).body[0]) == 2


CONTRACTS = {
    "mixers._contract.base": "Mixer",
    "mixers._contract.traits": "Traits",
    "tasks._kinds.base": "Task",
    "learn._parts.base": "Learner",
    "ops.attention.segments": "Rule",
    "backbone": "SequenceModel",
}
"""Where the contracts are whose attributes everything that keeps them has."""
FOREIGN = {
    ("cli._line.entries", "summary"): "a task of a package, which may state none",
    ("engine.replay.step", "shape"): "a leaf of a state, which may be no tensor",
    ("estimators._cells", "kind"): "a dtype of NumPy",
    ("estimators._inputs", "kind"): "a dtype of NumPy or pandas",
    ("tasks._reading.frame", "kind"): "a dtype of NumPy or pandas",
    ("learn._parts.windows", "documents"): "any module",
    ("learn.ridge", "head"): "any module",
    ("learn.ridge", "tie_embeddings"): "any module",
    ("lightning._module", "blocks"): "any module",
    ("lightning._losses", "forward"): "a function or a module",
    ("nn.parameters", "weight_parameters"): "any module",
    ("train.optim", "recurrent_parameters"): "any part of a model",
    ("testing._mixer_runs", "in_laws"): "a function that makes a mixer",
}
"""Attributes of a contract that are read with a default, since what they are read of may have none:
by module and name, with what that is."""


def attributes(tree, of):
    """Names that a class states in its body, or sets in its constructor."""
    (body,) = [n.body for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == of]
    names = set()
    for part in body:
        if isinstance(part, ast.AnnAssign):
            names.add(part.target.id)
        elif isinstance(part, ast.FunctionDef):
            names.add(part.name)
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            names |= {
                node.attr
                for node in ast.walk(part)
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            }
    return names


def read_with_defaults(tree):
    """Names of attributes in calls of getattr with a default."""
    return [
        node.args[1].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "getattr"
        and len(node.args) == 3
        and isinstance(node.args[1], ast.Constant)
    ]


def test_attributes_of_a_contract_are_read_without_a_default(package):
    stated = set().union(*(attributes(package[m][1], cls) for m, cls in CONTRACTS.items()))
    assert {"form", "declared", "tokenizer", "documents", "independent", "head"} <= stated
    left = {
        (module, name)
        for module, (_, tree) in package.items()
        for name in read_with_defaults(tree)
        if name in stated
    }
    assert left == set(FOREIGN)


def test_a_default_is_found():
    source = 'a = getattr(x, "form", None)\nb = getattr(x, "form")\nc = getattr(x, n, None)'
    assert read_with_defaults(ast.parse(source)) == ["form"]
