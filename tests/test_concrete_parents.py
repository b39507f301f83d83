"""A class is abstract or final: nothing is derived from a class that has instances of its own."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "linrnn"
#: Classes with instances and children, that a part would do better; the list only shrinks.
LEFT = {
    *("compute.op.Op", "learn._parts.session.LearningSession", "train._module.TrainingModule"),
}


def modules():
    """Every module by its dotted name: whether it is a folder's, and its tree."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        inner = parts[-1] == "__init__"
        yield ".".join(parts[:-1] if inner else parts), inner, ast.parse(path.read_text())


def imported(module, inner, tree):
    """Where each imported name of a module comes from."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}: a relative import"
            names |= {x.asname or x.name: (node.module, x.name) for x in node.names}
        elif isinstance(node, ast.Import):
            names |= {x.asname or x.name: (x.name, None) for x in node.names}
    return names


def read():
    """Parents and classes with instances, each by module and name."""
    trees = {module: (inner, tree) for module, inner, tree in modules()}
    imports = {module: imported(module, *tree) for module, tree in trees.items()}
    classes = {
        (module, node.name): node
        for module, (_, tree) in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }

    def place(module, node):
        """The class of the library that an expression names, or None."""
        if isinstance(node, ast.Subscript):
            return place(module, node.value)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            origin, name = imports[module].get(node.value.id, (None, None))
            folder = origin if name is None else f"{origin}.{name}"
            return origin_of(folder, node.attr)
        return origin_of(module, node.id) if isinstance(node, ast.Name) else None

    def origin_of(module, name):
        while (module, name) not in classes:
            module, name = imports.get(module, {}).get(name, (None, None))
            if module is None:
                return None
        return module, name

    parents = {}
    for (module, name), node in classes.items():
        for base in node.bases:
            parents.setdefault(place(module, base), []).append(name)
    used = {
        place(module, node.func)
        for module, (_, tree) in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    }
    return parents, used


def test_a_class_with_instances_has_no_children():
    parents, used = read()
    assert len(parents) > 60
    assert len(used) > 500  # or calls were overlooked
    both = (parents.keys() & used) - {None}
    names = {f"{module.removeprefix('linrnn.')}.{name}" for module, name in both}
    # an error is raised as what its caller must know of it, and caught as any of its parents
    assert {x for x in names if not x.startswith("errors.")} == LEFT
