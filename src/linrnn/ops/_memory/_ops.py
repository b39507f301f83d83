"""The two ops, described to PyTorch."""

from typing import Any

from torch import Tensor

from linrnn.ops._memory._definition import definition
from linrnn.ops._memory._problem import SCHEMA, Problem
from linrnn.ops._op import Op


def _shapes(*fields: Any) -> tuple[Tensor, Tensor]:
    p = Problem(*fields)
    return p.v.new_empty(*p.v.shape[:3], p.columns), p.v.new_empty(p.memory, dtype=p.wide)


def _op(name: str) -> Op:
    return Op(
        name,
        SCHEMA,
        gradients=10,
        results=2,
        definition=definition,
        shapes=_shapes,
        kernels={},
        opaque=True,
    )


OUTER = _op("outer_scan")
DELTA = _op("delta_scan")
