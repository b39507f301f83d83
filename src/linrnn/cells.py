"""The recurrence compiler: one step, written in PyTorch, becomes a graph, and that every form.

`Cell` declares a step; `linrnn.ops.cell_scan` computes it along time.
"""

from linrnn.engine.cell import Cell as Cell
from linrnn.engine.cell import cell as cell
from linrnn.engine.cell_factory import cell_factory as cell_factory
from linrnn.engine.functions import functions as functions
from linrnn.engine.operations import block_linear as block_linear
from linrnn.engine.trace import fold as fold
from linrnn.engine.trace import spread as spread

__all__ = ["Cell", "block_linear", "cell", "cell_factory", "fold", "functions", "spread"]


def __dir__() -> list[str]:
    return sorted(__all__)
