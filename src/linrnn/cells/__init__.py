"""The recurrence compiler: one step, written in PyTorch, becomes a graph, and that every form.

`Cell` declares a step; `linrnn.ops.cell_scan` computes it along time.
"""

from linrnn.cells._cell import Cell as Cell
from linrnn.cells._cell import cell as cell
from linrnn.cells._functions import functions as functions
from linrnn.cells._trace import block_linear as block_linear
from linrnn.cells._trace import fold as fold
from linrnn.cells._trace import spread as spread

__all__ = ["Cell", "block_linear", "cell", "fold", "functions", "spread"]
