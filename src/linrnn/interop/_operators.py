"""Our operators in PyTorch's own, for formats that know no others."""

from collections.abc import Callable
from typing import Any

import torch

from linrnn.compute.op import ALL


def decompositions() -> dict[Any, Callable[..., Any]]:
    """A table for `torch.export.ExportedProgram.run_decompositions`: operators by definition."""
    table: dict[Any, Callable[..., Any]] = dict(torch.export.default_decompositions().items())
    return table | {op.operator(): op.decomposition for op in ALL.values()}
