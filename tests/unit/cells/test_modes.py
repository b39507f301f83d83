"""Operators inside a cell's own computation stay invisible to those who record a call."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from linrnn.cells import Cell
from linrnn.mixers.rg_lru import rg_lru
from linrnn.ops import cell_scan


class Seen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function._schema.name)
        return function(*args, **(kwargs or {}))


def test_a_call_looks_at_no_number():
    # a cell that nobody has asked about yet
    first = {"first": 1.0}
    fresh = Cell(rg_lru.function, state="h first", constant="decay", start=first, name="fresh")
    x = {name: torch.randn(1, 3, 2) for name in fresh.inputs}
    with Seen() as seen:
        cell_scan(fresh, **x, decay=torch.randn(2), form="scan")
        cell_scan(fresh, **{n: u[:, :1] for n, u in x.items()}, decay=torch.randn(2))
    assert seen.names
    assert "aten::_local_scalar_dense" not in seen.names
