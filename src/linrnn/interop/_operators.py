"""Our operators in PyTorch's own, for formats that know no others."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from linrnn.ops import _causal_conv, _selective_scan_reference


def decompositions() -> dict[Any, Callable[..., Any]]:
    """A table for `torch.export.ExportedProgram.run_decompositions`."""
    table: dict[Any, Callable[..., Any]] = dict(torch.export.default_decompositions().items())
    ours = torch.ops.linrnn
    table[ours.scan.default] = _scan
    table[ours.causal_conv.default] = _causal_conv.definition
    table[ours.selective_scan.default] = _selective_scan
    table[ours.selective_scan_definition.default] = _selective_scan_definition
    return table


def _scan(
    a: Tensor,
    b: Tensor,
    initial_state: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    reverse: bool,
    backend: str | None,
) -> tuple[Tensor, Tensor]:
    """The few steps of a traced call, one after the other."""
    assert reset is None
    assert cu_seqlens is None
    assert not reverse
    h = b.new_zeros(b.shape[0], b.shape[2]) if initial_state is None else initial_state
    states = []
    for t in range(b.shape[1]):
        h = (a if a.ndim == 1 else a[:, t]) * h + b[:, t]
        states.append(h)
    return torch.stack(states, 1), h.clone()


def _selective_scan(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    problem = _selective_scan_reference.Problem(*arguments[:-2])
    y, final = _selective_scan_reference.selective_scan(problem, None)
    return y, final, y.new_empty(0)  # states kept for a backward pass


def _selective_scan_definition(*arguments: Any) -> tuple[Tensor, Tensor]:
    problem = _selective_scan_reference.Problem(*arguments[:-1])
    return _selective_scan_reference.selective_scan(problem, None)
