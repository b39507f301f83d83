"""Comments that state shapes, as in ``x = x.mT  # (B, H, T)``, compared with what runs."""

import ast
import functools
import io
import math
import re
import sys
import tokenize
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

SHAPE = re.compile(r"\(((?:[^(),]+,)+[^(),]*)\)")
STARTS = re.compile(r"#\s*(?:each\s+|(\w+): )?(?=\((?:[^(),]+,)+[^(),]*\))")


class Statement(NamedTuple):
    """A statement with the shapes that its comment states, behind it or on the line above."""

    line: int
    names: tuple[str, ...]  # that it binds; none where it returns
    returns: bool
    shapes: tuple[tuple[str, ...], ...]
    one_of: bool  # the shapes are choices, as in ``(B, T) or (B, T, H)``
    each: bool  # the shape is that of every tensor that the statement binds


def stated_shapes(comment):
    """The name that a comment begins with, shapes after it, and whether they are choices."""
    start = STARTS.match(comment)
    if not start:
        return None, (), False
    rest, shapes, choices = comment[start.end() :], [], False
    while shape := SHAPE.match(rest):
        shapes.append(tuple(size.strip() for size in shape[1].split(",") if size.strip()))
        rest = rest[shape.end() :]
        joint = re.match(r",? or (?=\()|,? and (?=\()|, (?=\()", rest)
        if not joint:
            break
        choices |= "or" in joint[0]
        rest = rest[joint.end() :]
    return start[1], tuple(shapes), choices


def _comments(source):
    """Comments behind code, and those on lines of their own, by line."""
    behind, alone = {}, {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            kind = alone if token.line.lstrip().startswith("#") else behind
            kind[token.start[0]] = token.string
    return behind, alone


def _bound(target):
    if isinstance(target, ast.Name):
        return (target.id,)
    if isinstance(target, ast.Tuple) and all(isinstance(x, ast.Name) for x in target.elts):
        return tuple(x.id for x in target.elts)
    return ()


def _statement(node, comment):
    name, shapes, choices = stated_shapes(comment)
    returns = isinstance(node, ast.Return)
    names = ()
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        names = _bound(node.targets[0])
    elif isinstance(node, ast.AnnAssign | ast.AugAssign):
        names = _bound(node.target)
    if name is not None:
        names, returns = (name,) if name in names else (), False
    if not shapes or not (names or returns):
        return None
    return Statement(node.end_lineno, names, returns, shapes, choices, "each" in comment)


@functools.cache
def statements(path):
    """Statements of a file whose comments state shapes, by their last line."""
    source = Path(path).read_text(encoding="utf-8")
    behind, alone = _comments(source)
    nodes = (x for x in ast.walk(ast.parse(source)) if isinstance(x, ast.stmt))
    read = {}
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return):
            comment = behind.get(node.end_lineno) or alone.get(node.lineno - 1, "")
            statement = _statement(node, comment)
            if statement:
                read[node.lineno, node.end_lineno] = statement
    return read


class Sizes(dict):
    """Sizes that letters stand for in one call of a function; the first that is met binds one."""

    def __init__(self, variables):
        super().__init__()
        self.variables = variables

    def copy(self):
        """The same sizes, to which others may be added."""
        same = Sizes(self.variables)
        same.update(self)
        return same

    def value(self, name):
        """The size that a name has, or None if it has none yet."""
        value = self.variables.get(name)
        return value if type(value) is int else self.get(name)

    def fits(self, stated, size):
        """Whether an axis of ``size`` may be called ``stated``: ``H``, ``2 K`` or ``T/Q``."""
        if " or " in stated:
            return any(self.fits(choice.strip(), size) for choice in stated.split(" or "))
        if stated.isidentifier():
            if self.value(stated) is None:
                self[stated] = size
            return self.value(stated) == size
        value = self._computed(stated)
        return value is None or value == size

    def _computed(self, stated):
        spaced = re.sub(r"(?<=[\w)]) +(?=[\w(])", " * ", stated)
        names = re.findall(r"[A-Za-z_]\w*", spaced)
        values = {name: self.value(name) for name in names}
        if any(value is None for value in values.values()):
            return None
        try:
            return math.ceil(eval(spaced, {}, values))  # noqa: S307  # of our own sources
        except SyntaxError:
            return None

    def match(self, stated, shape):
        """Whether a tensor has the shape; ``...`` and ``*name`` stand for any axes."""
        rest = [i for i, size in enumerate(stated) if size.startswith(("..", "*"))]
        if not rest:
            return len(stated) == len(shape) and all(map(self.fits, stated, shape))
        before, after = stated[: rest[0]], stated[rest[-1] + 1 :]
        if len(shape) < len(before) + len(after):
            return False
        last = shape[len(shape) - len(after) :] if after else ()
        return all(map(self.fits, before, shape)) and all(map(self.fits, after, last))


def _tensors(value):
    if isinstance(value, Tensor):
        return [value]
    return [x for x in value if isinstance(x, Tensor)] if isinstance(value, tuple | list) else []


class Watch:
    """Compares shapes with the comments on them while functions of some files run."""

    def __init__(self, folders):
        self.folders = tuple(map(str, folders))
        self.wrong, self.right = {}, set()

    def __call__(self, frame, event, arg):
        path = frame.f_code.co_filename
        if not path.startswith(self.folders) or not statements(path):
            return None
        return _Frame(self, path).follow

    def compare(self, path, statement, values, sizes):
        """Note whether the values that a statement bound have one of the stated shapes."""
        place = path, statement.line
        shapes = statement.shapes
        if statement.one_of or len(shapes) == 1:
            pairs = [(value, shapes) for value in values]
        elif len(shapes) == len(values):
            pairs = [(value, (shape,)) for value, shape in zip(values, shapes, strict=True)]
        else:
            pairs = []
        tensors = [(x, choices) for value, choices in pairs for x in _tensors(value)]
        if statement.returns and not statement.each:
            tensors = tensors[: len(shapes)]  # what follows has another shape, not stated
        met = [sizes.copy() for _ in tensors]
        for (tensor, choices), of_one in zip(tensors, met, strict=True):
            if any(of_one.match(choice, tuple(tensor.shape)) for choice in choices):
                self.right.add(place)
            else:
                self.wrong.setdefault(place, (choices, tuple(tensor.shape), dict(sizes)))
        for name in {name for of_one in met for name in of_one}:
            values = {of_one.get(name) for of_one in met} - {None}
            if len(values) == 1:  # else every tensor has a size of its own, as in ``K or V``
                sizes.setdefault(name, *values)


class _Frame:
    """One call of a function, from line to line."""

    def __init__(self, watch, path):
        self.watch, self.path, self.sizes = watch, path, None
        self.lines = {start: (start, end) for start, end in statements(path)}
        self.current, self.seen = None, set()

    def follow(self, frame, event, arg):
        if self.current and (event == "return" or not self._within(frame.f_lineno)):
            self._finish(frame, arg if event == "return" else None)
        if event == "line" and not self.current:
            self.current = self.lines.get(frame.f_lineno)
        if event == "exception":
            self.current = None
        return self.follow

    def _within(self, line):
        first, last = self.current
        return first < last and first <= line <= last  # a statement of one line is met again

    def _finish(self, frame, result):
        statement = statements(self.path)[self.current]
        variables = frame.f_locals
        if self.sizes is None or self.current in self.seen:  # a round of a loop has its own sizes
            self.sizes, self.seen = Sizes(variables), set()
        self.seen.add(self.current)
        self.current, self.sizes.variables = None, variables
        if statement.returns:
            several = isinstance(result, tuple | list) and len(statement.shapes) > 1
            values = list(result)[: len(statement.shapes)] if several else [result]
        else:
            values = [variables.get(name) for name in statement.names]
        self.watch.compare(self.path, statement, values, self.sizes)


CHANGES = frozenset(
    (
        *(
            "reshape",
            "view",
            "view_as",
            "flatten",
            "unflatten",
            "squeeze",
            "unsqueeze",
            "transpose",
        ),
        *("permute", "movedim", "expand", "expand_as", "unfold", "repeat_interleave", "chunk"),
        *("split", "unbind", "cat", "stack", "pad", "einsum", "diag_embed", "mT"),
    )
)


def _is_tensors(value):
    """Whether an expression is a tensor or a list of some, as far as it tells."""
    if any(
        isinstance(x, ast.Lambda) or getattr(x, "attr", "") == "tolist" for x in ast.walk(value)
    ):
        return False
    if isinstance(value, ast.Call):
        name = getattr(value.func, "attr", getattr(value.func, "id", ""))
        return name not in {"zip", "iter", "dict", "frozenset", "len"}
    return not isinstance(value, ast.Dict | ast.DictComp | ast.GeneratorExp)


def _of_text(call):
    """Whether a call splits a text."""
    return call.func.attr == "split" and not (call.args and _is_number(call.args[0]))


def _is_number(node):
    return not (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _changes(node):
    """Whether an operation in an expression changes a shape."""
    calls = (x for x in ast.walk(node) if isinstance(x, ast.Call))
    called = [x for x in calls if isinstance(x.func, ast.Attribute)]
    return any(x.func.attr in CHANGES and not _of_text(x) for x in called)


def _nodes(function):
    """Statements of a function without those of functions in it."""
    for node in ast.iter_child_nodes(function):
        if not isinstance(node, ast.FunctionDef | ast.Lambda):
            yield node
            yield from _nodes(node)


def unstated(path, functions=None):
    """Lines that change a shape and do not state it, in functions of these names or in all."""
    source = Path(path).read_text(encoding="utf-8")
    behind, alone = _comments(source)
    for function in (x for x in ast.walk(ast.parse(source)) if isinstance(x, ast.FunctionDef)):
        if functions and function.name not in functions:
            continue
        for node in _nodes(function):
            if not isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return):
                continue
            value = node.value
            if value is None or not _is_tensors(value) or not _changes(value):
                continue
            texts = (alone.get(node.lineno - 1), *map(behind.get, _lines(node)))
            if not any(text and re.search(r"\(.*[,)]", text) for text in texts):
                yield node.lineno


def _lines(node):
    return range(node.lineno, node.end_lineno + 1)


@contextmanager
def watched(*folders):
    """Follow all calls of functions of these folders; the backward passes run on this thread."""
    watch, before = Watch(folders), sys.gettrace()
    sys.settrace(watch)
    try:
        yield watch
    finally:
        sys.settrace(before)
