"""Where kernels for cells plug in: which calls they get, and what happens where they cannot."""

import pickle

import pytest
import torch
from literature import CELLS, draw
from test_cell_scan import by_steps, gradients, scanned

from linrnn.cells import Cell, cell
from linrnn.errors import BackendError
from linrnn.ops import cell_scan, explain
from linrnn.ops.cell.cell_scan import _newton
from linrnn.ops.cell.cell_scan import run as _run
from linrnn.testing._derivatives import check_derivatives


class Kernels:
    """Newton's method in the place of a machine; counts the calls."""

    problem = refusal = None

    def __init__(self):
        self.calls = []

    def unavailable(self, device, dtype):
        return self.problem

    def declines(self, program, leaves, layout):
        return self.refusal

    def forward(self, program, leaves, layout, keep):
        assert layout.time > 0
        assert all(h.numel() for h in leaves.states)
        self.calls.append(f"forward {keep}")
        return _newton.forward(program, leaves, layout, keep)

    def backward(self, *given):
        self.calls.append("backward")
        return _newton.backward(*given)


@pytest.fixture
def kernels(monkeypatch):
    made = Kernels()
    module = _run._module
    fake = {_run._NATIVE["cpu"]: made}
    monkeypatch.setattr(_run, "_module", lambda name: fake.get(name) or module(name))
    return made


@pytest.mark.parametrize("name", ["slstm", "gru", "lru"])
def test_kernels_compute_a_call_and_its_gradient(kernels, name):
    arguments, state = draw(CELLS[name])
    layout = {"reset": torch.rand(2, 6) < 0.3, "reverse": True}
    sources = [x.requires_grad_() for x in (*arguments.values(), *state)]
    steps = by_steps(CELLS[name], arguments, state, layout["reset"], None, True)
    want = gradients(steps, sources)
    for options in ({}, {"form": "native"}, {"backend": "cpu"}):
        kernels.calls.clear()
        got = gradients(scanned(CELLS[name], arguments, state, **layout, **options), sources)
        assert kernels.calls == ["forward True", "backward"]
        for kind, true in zip(got, want, strict=True):
            for x, y in zip(kind, true, strict=True):
                torch.testing.assert_close(x, y, rtol=1e-11, atol=1e-11)
    with torch.no_grad():
        scanned(CELLS[name], arguments, state)
    assert kernels.calls[-1] == "forward False"
    text = explain(CELLS[name], **arguments)
    assert text.startswith("native: the fastest that supports the call, on cpu")


@pytest.mark.unchecked
@pytest.mark.parametrize("name", ["slstm", "mingru"])
def test_further_derivatives_are_those_of_the_definition(kernels, name):
    arguments, state = draw(CELLS[name], 2, 3, 2)
    states = {f"state_{i}": h for i, h in enumerate(state)}

    def run(**given):
        return cell_scan(CELLS[name], state=tuple(given.pop(x) for x in states), **given)

    check_derivatives(name, run, {**arguments, **states}, singly=False)
    assert "backward" in kernels.calls


def test_an_empty_call_needs_no_kernel(kernels):
    arguments, _ = draw(CELLS["slstm"], 2, 0)
    assert cell_scan(CELLS["slstm"], **arguments)[0].shape == (2, 0, 4)
    assert kernels.calls == []


@pytest.mark.unchecked
def test_kernels_that_cannot_are_announced_and_refused(kernels, monkeypatch):
    arguments, _ = draw(CELLS["slstm"])
    kernels.problem = "the library is not built here"
    with pytest.warns(UserWarning, match="cell_scan runs on the slower .*the library is not built"):
        cell_scan(CELLS["slstm"], **arguments)
    rule = r"backend 'cpu' \(requested by .*\) cannot .*: the library is not built here"
    with pytest.raises(BackendError, match=rule):
        cell_scan(CELLS["slstm"], **arguments, backend="cpu")
    with pytest.raises(BackendError, match=r"form 'native' must be .* not built here"):
        cell_scan(CELLS["slstm"], **arguments, form="native")
    monkeypatch.setenv("LINRNN_STRICT", "1")
    with pytest.raises(BackendError, match="Refused because LINRNN_STRICT is set"):
        cell_scan(CELLS["slstm"], **arguments)
    kernels.problem, kernels.refusal = None, "it has too many instructions"
    text = explain(CELLS["slstm"], **arguments)
    assert text.startswith("loop: the fastest that supports the call; native cannot (it has")
    assert kernels.calls == []


@cell(state="h")
def leak(h, x):
    h = 0.5 * h + x
    return h, h


def plain(h, x):
    return h + x, h


def test_cells_are_pickled():
    assert pickle.loads(pickle.dumps(leak)) is leak  # noqa: S301
    copied = pickle.loads(pickle.dumps(Cell(plain, state="h")))  # noqa: S301
    assert copied.program == Cell(plain, state="h").program
