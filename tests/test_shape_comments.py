"""Comments that state shapes are true, and every line that changes a shape has one."""

import importlib.util
from pathlib import Path

import pytest
import torch

import linrnn
from linrnn import mixers
from linrnn.testing._every_op import backends
from linrnn.testing._examples import ops
from linrnn.testing._laid_out import layouts
from linrnn.testing._mixer_runs import build, signal
from shape_comments import stated_shapes, statements, unstated, watched

# a shape checker wraps functions, and the tracer would follow it
pytestmark = pytest.mark.unchecked

SOURCE = Path(linrnn.__file__).parent
#: Letters have one size within one call of a function; these files have no Triton and no C++.
FOLDERS = [SOURCE / room for room in ("mixers", "ops", "nn", "block")]
READS = {"_read", "_step", "forward"}


def sources(*rooms):
    for room in rooms:
        yield from (p for p in sorted((SOURCE / room).rglob("*.py")) if "triton" not in p.name)


def report(wrong):
    return "\n".join(
        f"{Path(path).relative_to(SOURCE)}:{line} states {choices}, is {shape}, with {sizes}"
        for (path, line), (choices, shape, sizes) in sorted(wrong.items())
    )


def read_once(name):
    """All steps, with a reset and gradients, and a single one."""
    layer = build(mixers.load(name))
    x, reset = signal(3, 19, layer.d_model).requires_grad_(), torch.zeros(3, 19, dtype=torch.bool)
    reset[1, 7] = True
    y, state = layer(x, reset=reset)
    y.abs().sum().backward()
    with torch.no_grad():
        layer.step(x[:, 0], state)


def as_leaf(x):
    numbers = isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())
    return x.detach().requires_grad_() if numbers else x


def compute_once(op, backend):
    """One kind of call in every layout, with gradients."""
    for call, layout, _ in layouts(op, in_turns=True):
        inputs = {n: as_leaf(x) for n, x in {**call.arguments, **layout}.items()}
        y, _ = call.function(**inputs, backend=backend)
        y.abs().sum().backward()


def test_comments_of_mixers_state_the_shapes():
    with watched(*FOLDERS) as watch:
        for name in mixers.names():
            read_once(name)
    assert not watch.wrong, report(watch.wrong)
    assert len({Path(path).stem for path, _ in watch.right} & {*mixers.names()}) > 80


def test_comments_of_ops_state_the_shapes():
    with watched(*FOLDERS) as watch:
        for op in ops():
            for backend in backends(op):
                compute_once(op, backend)
    assert not watch.wrong, report(watch.wrong)
    assert len({path for path, _ in watch.right}) > 45


def test_every_line_that_changes_a_shape_states_it():
    lines = [(p, line) for p in sources("ops") for line in unstated(p)]
    lines += [(p, line) for p in sources("mixers") for line in unstated(p, READS)]
    assert not lines, "\n".join(f"{p.relative_to(SOURCE)}:{line}" for p, line in lines)


@pytest.mark.parametrize(
    ("comment", "stated"),
    [
        ("# (B, T, H)", (None, (("B", "T", "H"),), False)),
        ("# (B, T), (B,)", (None, (("B", "T"), ("B",)), False)),
        ("# (B, T) or (B, T, 2 K), so", (None, (("B", "T"), ("B", "T", "2 K")), True)),
        ("# each (.., K)", (None, (("..", "K"),), False)),
        ("# y: (B, V)", ("y", (("B", "V"),), False)),
        ("# once for all (B, T)", (None, (), False)),
    ],
)
def test_shapes_are_read_from_comments(comment, stated):
    assert stated_shapes(comment) == stated


FUNCTION = """
def function(x, n):
    y = x.flatten(1)  # {0}
    y, z = y.split([n, 1], 1)  # {1}
    return y.T  # {2}
"""


def run_with(folder, *comments):
    path = folder / f"module_{len(list(folder.iterdir()))}.py"
    path.write_text(FUNCTION.format(*comments), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with watched(folder) as watch:
        module.function(torch.zeros(5, 2, 3), 5)
    return [line for _, line in watch.wrong], [line for _, line in watch.right]


@pytest.mark.parametrize(
    ("comments", "wrong"),
    [
        (("(B, T)", "(B, n), (B, 1)", "(n, B)"), []),
        (("(B, T K)", "(B, C) each", "(..., B)"), []),
        (("y: (B, n + 1)", "(B, n or 1)", "(n, B) or (n, 1, B)"), []),
        (("(B, T, K)", "(B, n), (B, 2)", "(n, C)"), [3, 4]),  # C is new, so nothing says no
        (("(B, n)", "(B, n), (B, 1)", "(B, T)"), [3]),  # B and n are both 5
        (("(B, T)", "(T, n), (T, 1)", "(n, B)"), [4]),
        (("(B, 7)", "(B, n, 1), (B, 1)", "(n, B, 1)"), [3, 4, 5]),
        (("(n + 2, T)", "y: (B, n), for z: (B, 7)", "(4, B)"), [3, 5]),
    ],
)
def test_comments_that_are_not_true_are_met(tmp_path, comments, wrong):
    assert run_with(tmp_path, *comments)[0] == wrong


def test_a_line_without_a_comment_is_met(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(FUNCTION.format("(B, T)", "halves", "(n, B)"), encoding="utf-8")
    assert [*unstated(path)] == [4]
    assert [*unstated(path, {"other"})] == []
    assert [*statements(str(path))] == [(3, 3), (5, 5)]
