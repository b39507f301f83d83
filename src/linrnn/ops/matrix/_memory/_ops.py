"""The two ops, described to PyTorch."""

from typing import Any

from torch import Tensor

from linrnn.compute.op import Op
from linrnn.ops.matrix._memory._definition import definition
from linrnn.ops.matrix._memory._problem import SCHEMA, Problem


def _shapes(*fields: Any) -> tuple[Tensor, Tensor]:
    p = Problem(*fields)
    return p.v.new_empty(p.outputs), p.v.new_empty(p.memory, dtype=p.wide)


def _kept_memories(kernels: Any, *fields: Any) -> tuple[Tensor]:
    """Room for the memory before each window of steps, from which the backward pass starts."""
    p = Problem(*fields)
    window = kernels.window(p)
    if window is None:
        return (p.v.new_empty(0),)
    time, shape = p.q.shape[1] * p.rank, p.memory[1:]
    if p.cu_seqlens is None:
        count = p.v.shape[0] * -(-time // window)
        return (p.v.new_empty(count, *shape, dtype=p.wide),)
    # each sequence begins a window anew: some stay unused, and an operator returns them
    return (p.v.new_zeros(time // window + p.seqs, *shape, dtype=p.wide),)


def _op(name: str) -> Op:
    return Op(
        name,
        SCHEMA,
        gradients=10,
        results=2,
        definition=definition,
        shapes=_shapes,
        kernels={
            "triton": "linrnn.ops.matrix._memory._triton",
            "cpu": "linrnn.ops.matrix._memory._cpu",
        },
        extras=_kept_memories,
        n_extras=1,
        opaque=True,
    )


OUTER = _op("outer_scan")
DELTA = _op("delta_scan")
