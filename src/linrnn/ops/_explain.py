"""Say which backend computes a call, or could on this machine, and why the others do not."""

import importlib
import os
import pkgutil
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from linrnn.cells import Cell
from linrnn.compute.in_place import UPDATES
from linrnn.compute.op import ALL, reached
from linrnn.engine.replay.step import explain_step
from linrnn.errors import check_in
from linrnn.ops.cell.cell_scan import cell_scan
from linrnn.ops.cell.cell_scan.run import problems as of_cells
from linrnn.ops.conv.causal_conv import causal_conv
from linrnn.ops.conv.fft import fft_scan
from linrnn.ops.conv.fft_conv import fft_conv
from linrnn.ops.linear.block_scan import block_scan
from linrnn.ops.linear.gated_scan import gated_scan
from linrnn.ops.linear.linear_scan import linear_scan
from linrnn.ops.linear.log_linear_scan import log_linear_scan
from linrnn.ops.matrix.delta_scan import delta_scan
from linrnn.ops.matrix.outer_scan import outer_scan
from linrnn.ops.selective_scan import selective_scan
from linrnn.ops.updates import conv_update, delta_update, outer_update, selective_update

_BY_NAME = {
    f.__name__: f
    for f in (
        block_scan,
        causal_conv,
        cell_scan,
        conv_update,
        delta_scan,
        delta_update,
        fft_conv,
        fft_scan,
        gated_scan,
        linear_scan,
        log_linear_scan,
        outer_scan,
        outer_update,
        selective_scan,
        selective_update,
    )
}


def explain(op: str | Callable[..., Any] | Tensor | None = None, *args: Any, **kwargs: Any) -> str:
    """Say which backend would compute a call of an op, and why no other one.

    Of cells and of `linear_scan` and its relatives on a GPU also how kernels are laid out, and why.

    Args:
        op: an op of `linrnn.ops`, or its name, or that of a recurrence in one of its modules, such
            as "siso_scan"; or a `linrnn.cells.Cell`, for `cell_scan` of
            it, and then also what keeps the cell from other forms; or the ``step`` of a
            `linrnn.SequenceModel`, which is run: whether it is one native call, and which operator
            kept it from that. Left out, it is `linear_scan`,
            whose first argument may stand in its place.
        args, kwargs: those of the call, ``backend`` among them. They are checked; nothing is
            computed.

    Raises:
        UnknownNameError: no such op.
        LinrnnError: what the op raises for these arguments.

    Example:
        >>> import torch
        >>> from linrnn.ops import explain
        >>> explain("gated_scan", torch.ones(1, 4, 2, 3), backend="tree")
        'tree: requested by the argument backend='
        >>> explain(torch.ones(2), torch.ones(1, 4, 2), backend="tree")
        'tree: requested by the argument backend='
    """
    module = getattr(op, "__self__", None)
    if isinstance(module, nn.Module) and getattr(op, "__name__", "") == "step":
        return explain_step(module, cast(Any, op), *args, **kwargs)
    if isinstance(op, str):
        if op not in ALL and op not in UPDATES:  # its module may not have been needed so far
            for module in pkgutil.walk_packages([os.path.dirname(__file__)], "linrnn.ops."):
                if "._" not in module.name:
                    importlib.import_module(module.name)
        check_in("explain", "op", op, (*ALL, *UPDATES))
        op = _BY_NAME[op] if op in _BY_NAME else ALL[op]
    if isinstance(op, Cell):
        op, args = cell_scan, (op, *args)
    if not callable(op):
        args = args if op is None else (op, *args)
        op = linear_scan
    call = reached(op, *args, **kwargs)
    if call is None:
        return "PyTorch's operators: one step from a state is a single torch.addcmul"
    operator, arguments, backend = call
    reasons: str = operator.explain(arguments, backend)
    return reasons


def backend_report(op: str = "linear_scan") -> dict[str, str]:
    """Each backend and, for this machine, ``"available"`` or why it is not (float32).

    Args:
        op: the name of the op that is to be computed.

    Raises:
        UnknownNameError: no such op.

    Example:
        >>> from linrnn.ops import backend_report
        >>> backend_report()["tree"]
        'available'
    """
    described = ALL | UPDATES
    check_in("backend_report", "op", op, described)
    problems = of_cells if op == "cell_scan" else described[op].problems
    best = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_best, on_cpu = (problems(d, torch.float32) for d in (best, torch.device("cpu")))
    obstacles = on_best | {"cpu": on_cpu["cpu"]}
    return {name: why or "available" for name, why in obstacles.items()}
