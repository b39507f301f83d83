"""Layers that are one cell: the native machine runs each, in every setting."""

import pytest
import torch

from linrnn import mixers
from linrnn.cells import Cell
from linrnn.mixers._families.cell_rnn import CellRNN, timed
from linrnn.ops import cell_scan, explain
from linrnn.ops.cell.cell_scan import has_kernels

LAYERS = [name for name in mixers.names() if issubclass(mixers.load(name), CellRNN)]


@pytest.mark.skipif(
    not has_kernels(torch.device("cpu"), torch.float32), reason="there are no kernels here"
)
@pytest.mark.parametrize("name", LAYERS)
def test_the_machine_runs_it_with_and_without_times(name, monkeypatch):
    said = []

    def noted(cell, **given):
        said.append(explain(cell, **given))
        return cell_scan(cell, **given)

    monkeypatch.setattr("linrnn.mixers._families.cell_rnn.cell_scan", noted)
    layer, x = mixers.load(name)(6), torch.randn(2, 5, 6)
    layer(x)
    if layer.timed:
        layer(x, dt=torch.ones(2, 5))
    assert len(said) == 1 + layer.timed
    assert all(words.startswith("native: the fastest that supports the call") for words in said)


def test_the_cell_without_time_is_the_cell_with_steps_of_one():
    def leak(h, dt, x, rate):
        h = h + dt * rate * (x - h)
        return h, h

    cell = Cell(leak, state="h", constant="rate", start=2.0)
    _, even = timed(leak=cell)["leak"]
    x, rate = torch.randn(2, 7, 3), torch.rand(3)
    wanted, _ = cell_scan(cell, x=x, rate=rate, dt=torch.ones(2, 7, 1))
    got, _ = cell_scan(even, x=x, rate=rate)
    torch.testing.assert_close(got, wanted)
    assert even.inputs == ("x",)
