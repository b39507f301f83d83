"""State that lives as long as the process is listed in one place, with those who change it."""

import ast
import functools
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "linrnn"
PAGE = ROOT / "docs" / "process-state.md"
CONTAINERS = (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)
MAKERS = {"dict", "list", "set", "defaultdict", "WeakKeyDictionary", "WeakSet", "Replays"}
CHANGES = {"append", "extend", "add", "update", "pop", "clear", "setdefault", "discard", "remove"}
CHANGES |= {"insert", "popitem", "store"}


@functools.cache
def modules():
    return [
        (path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text(encoding="utf-8")))
        for path in sorted(PACKAGE.rglob("*.py"))
    ]


def module_containers(tree):
    """Names that a module binds to a container of its own."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        call = value.func if isinstance(value, ast.Call) else None
        maker = getattr(call, "id", getattr(call, "attr", ""))
        if isinstance(value, CONTAINERS) or maker in MAKERS:
            yield from (x.id for x in targets if isinstance(x, ast.Name))


class Changes(ast.NodeVisitor):
    """Names of a module that its functions change."""

    def __init__(self):
        self.depth, self.names = 0, set()

    def visit_FunctionDef(self, node):
        self.depth += 1
        self.generic_visit(node)
        self.depth -= 1

    visit_AsyncFunctionDef = visit_Lambda = visit_FunctionDef

    def visit_Subscript(self, node):
        changes = isinstance(node.ctx, (ast.Store, ast.Del))
        if self.depth and changes and isinstance(node.value, ast.Name):
            self.names.add(node.value.id)
        self.generic_visit(node)

    def visit_Call(self, node):
        method = node.func
        changes = isinstance(method, ast.Attribute) and method.attr in CHANGES
        if self.depth and changes and isinstance(method.value, ast.Name):
            self.names.add(method.value.id)
        self.generic_visit(node)

    def visit_AugAssign(self, node):
        if self.depth and isinstance(node.target, ast.Name):
            self.names.add(node.target.id)
        self.generic_visit(node)

    def visit_Global(self, node):
        self.names.update(f"global {name}" for name in node.names)


def changeable(tree):
    changes = Changes()
    changes.visit(tree)
    names = set(module_containers(tree)) & changes.names
    return names | {name for name in changes.names if name.startswith("global ")}


def caches(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            words = " ".join(map(ast.unparse, node.decorator_list))
            if re.search(r"\b(lru_cache|cache)\b(?!d)", words):
                yield node.name


def variables(tree):
    """Environment variables that a module names where it reads the environment."""
    source = ast.unparse(tree)
    if "os.environ" not in source and "os.getenv" not in source:
        return
    yield from set(re.findall(r"['\"]((?:LINRNN|TRITON|OMP|MKL)_[A-Z_]+)['\"]", source))


def sections():
    """By heading of the page, the first cells of its table's rows."""
    tables, heading = {}, None
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            heading = line[3:]
            tables[heading] = set()
        row = re.match(r"\| `([^`]+)` \|", line)
        if row and heading:
            tables[heading].add(row[1])
    return tables


def written(kind):
    return {f"{name}:{x}" for name, tree in modules() for x in kind(tree)}


def test_containers_that_functions_change_are_on_the_page():
    assert written(changeable) == sections()["Containers"]


def test_caches_of_functions_are_on_the_page():
    assert written(caches) == sections()["Caches of functions"]


def test_variables_of_the_environment_are_on_the_page():
    assert {x.partition(":")[2] for x in written(variables)} == sections()["Environment"]


def test_the_walk_sees_what_it_should():
    tree = ast.parse("A = {}\nB = []\ndef f(x):\n    A[x] = 1\n    return B\n")
    assert changeable(tree) == {"A"}
    assert list(caches(ast.parse("@functools.lru_cache(maxsize=3)\ndef f(): pass"))) == ["f"]
