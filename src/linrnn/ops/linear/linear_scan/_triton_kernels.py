"""Triton kernels of the recurrence ``h_t = a_t h_{t-1} + b_t`` and its adjoint, by tiles.

A program owns one sequence and a block of channels and walks along time, a tile at a time: each
warp has a stretch of ``STEPS`` steps. It finds what its stretch does to a state, warps
exchange these maps once, and then each runs its steps from the state that truly enters, by the same
operations as a loop. With one warp there is nothing to exchange, and a tile is a loop. Where
sequences are too few to keep a device busy, a program owns one tile (``CHAINED``) and is handed the
state that enters it by the programs of the tiles before: all numbers are still read and written
once. The order of operations never depends on which program is first, so all runs give the same
bits.

With ``GATES``, a step's ``a`` and ``b`` are computed as its row arrives, from parts of a row of
``b`` that lie ``part`` numbers apart: the value, then one or two logits.

The same kernel computes with logarithms (``PAIR`` is 2), where nothing is -inf and ``WIDE`` is as
wide as all else. The adjoint of that, with ``LOG``, is one of real numbers: its decay is the share
that the state before a step has of the one after it.

The local scan that is repeated from the true state, and the hand-over along tiles, are those of
Merrill and Garland, "Single-pass parallel prefix scan with decoupled look-back", 2016, with a fixed
order of look-back in place of theirs.
"""

from linrnn.ops.linear.linear_scan._triton_adjoint import add_rows as add_rows
from linrnn.ops.linear.linear_scan._triton_adjoint import run_backward as run_backward
from linrnn.ops.linear.linear_scan._triton_forward import run_forward as run_forward
