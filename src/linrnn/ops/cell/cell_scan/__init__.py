"""`cell_scan`: any recurrence a person writes as one step, along time."""

from typing import Any

import torch
from torch import Tensor

from linrnn.cells import Cell
from linrnn.compute.arguments import check_flags
from linrnn.compute.backend import requested
from linrnn.compute.op import STOPPED
from linrnn.compute.precision import without_autocast
from linrnn.errors import DTypeError, check_positive_int
from linrnn.ops.cell.cell_scan import _loop
from linrnn.ops.cell.cell_scan._arguments import Call, prepare
from linrnn.ops.cell.cell_scan._newton import NOTED, Convergence
from linrnn.ops.cell.cell_scan._plan import Signature, again, planned, signature
from linrnn.ops.cell.cell_scan.run import (
    choose,
    compute,
    has_kernels,
    joined,
    obstacles,
    of_text,
    requested_form,
    use_form,
)
from linrnn.typing import CuSeqlens, ResetMask

__all__ = [
    "Convergence",
    "cell_scan",
    "forms",
    "has_kernels",
    "newton_scan",
    "requested_form",
    "use_form",
]


def cell_scan(
    cell: Cell,
    *,
    state: Any = None,
    reset: ResetMask | None = None,
    cu_seqlens: CuSeqlens | None = None,
    reverse: bool = False,
    time: int | None = None,
    form: str | None = None,
    backend: str | None = None,
    checkpoint: int | None = None,
    **arguments: Tensor,
) -> tuple[Any, Any]:
    """Run the recurrence of a cell: ``output_t, state_t = cell(state_{t-1}, input_t, ...)``.

    Args:
        cell: the step, see `linrnn.cells.Cell`.
        state: before the first step, (batch, *channels), one row for each packed sequence; a tuple
            in the order of the declaration where there are several. None is the cell's start.
        reset: boolean (batch, time); True begins a new sequence at that step, from the start.
        cu_seqlens, reverse: as in `linrnn.ops.linear_scan`.
        time: how many steps, of a cell without inputs, which also needs a state.
        form: ``loop``, the function step by step; ``scan``, a linear scan where the cell is affine
            in its state, or the cell's own ``parallel``; ``native``, kernels that run the cell's
            graph; ``newton``, all steps at once, corrected by linear scans until they fit. None is
            what `use_form` asks for, else the fastest that supports the call, of the first three.
        backend: of kernels and scans; ``reference`` is the loop.
        checkpoint: k keeps the states after every k-th step of a sequence for the gradient, and
            computes the others again, k at a time: states that are no output then take a k-th of
            the memory. Results and gradients are the same bit by bit. Honoured by ``native`` on a
            CPU; other forms keep what they keep.
        arguments: by their names in the function: inputs (batch, time, *channels), constants
            (*channels), matrices. Channel axes broadcast. With matrices there is one such axis.

    Returns:
        ``(output, final_state)``, each a tensor or a tuple as the function returns them: outputs
        (batch, time, *channels) in the inputs' dtype, states (batch, *channels) in the dtype that
        is computed in, at least float32. Gradients flow to all arguments from both.

    Raises:
        ShapeError, DTypeError, DeviceError: arguments that do not fit together.
        ArgumentError: arguments of other names than the cell's, or ``cu_seqlens`` that do not
            rise from 0 to ``time``.
        BackendError: the requested form or backend cannot compute this cell, or Newton's method
            does not converge.

    Example:
        >>> import torch
        >>> from linrnn.cells import cell
        >>> from linrnn.ops import cell_scan
        >>> @cell(state="h", constant="rate")
        ... def leak(h, x, rate):
        ...     h = h + rate * (x - h)
        ...     return h, h
        >>> y, last = cell_scan(leak, x=torch.ones(1, 3, 1), rate=torch.tensor([0.5]))
        >>> y.flatten()
        tensor([0.5000, 0.7500, 0.8750])
    """
    if not isinstance(cell, Cell):
        raise DTypeError(
            f"cell_scan: cell must be a Cell, got {type(cell).__name__}. "
            "Declare the function: linrnn.cells.Cell(step, state='h')."
        )
    request = (arguments, state, reset, cu_seqlens, reverse, time, form, backend)
    compiling = torch.compiler.is_compiling()
    sig = None if compiling or checkpoint is not None else signature(cell, *request)
    replayed = None if sig is None else again(cell, sig)
    if replayed is not None:
        return replayed
    check_flags("cell_scan", reverse=reverse)
    call = prepare(cell, arguments, state, reset, cu_seqlens, reverse, time)
    if checkpoint is not None:
        check_positive_int("cell_scan", checkpoint=checkpoint)
        call = call._replace(layout=call.layout._replace(checkpoint=checkpoint))
    return _computed(cell, call, sig, form, backend, compiling)


def newton_scan(cell: Cell, **arguments: Any) -> tuple[Any, Any, Convergence]:
    """`cell_scan` by Newton's method, and how it converged.

    All states are guessed, and corrected at once by linear scans of the derivative, until they fit
    their steps up to rounding. The derivative is that of a channel's states by one another; what
    comes through a matrix is left out. On a machine with many processors that is faster than one
    step after another. For a layer: `use_form`.

    Args:
        cell: the step, see `linrnn.cells.Cell`.
        arguments: those of `cell_scan` but ``form``.

    Returns:
        Output and final state as of `cell_scan`, and the residual with the number of rounds.

    Raises:
        BackendError: it does not converge.

    Example:
        >>> import torch
        >>> from linrnn.cells import cell
        >>> @cell(state="h")
        ... def relax(h, x):
        ...     h = torch.tanh(0.5 * h + x)
        ...     return h, h
        >>> y, last, how = newton_scan(relax, x=torch.ones(1, 100, 2))
        >>> how.rounds < 20, how.residual < 1e-5
        (True, True)

    Reference:
        Lim et al., "Parallelizing non-linear sequential models over the sequence length", 2024,
        arXiv:2309.12252; Gonzalez et al., "Towards Scalable and Stable Parallelization of
        Nonlinear RNNs", 2024, arXiv:2407.19115.
    """
    noted: list[Convergence] = []
    with NOTED.set(noted):
        output, final = cell_scan(cell, **arguments, form="newton")
    return output, final, noted[-1] if noted else Convergence(0.0, 0)


def forms(cell: Cell, **arguments: Tensor) -> dict[str, str | None]:
    """Each form, and why it cannot compute a call with these arguments, or None."""
    call = prepare(cell, arguments, None, None, None, False, None)
    return obstacles(cell.program, call.leaves, call.layout)


def _computed(
    cell: Cell,
    call: Call,
    sig: Signature | None,
    form: str | None,
    backend: str | None,
    compiling: bool,
) -> tuple[Any, Any]:
    """Output and final state; a call that may come again is computed as it will be then."""
    leaves, layout, channels = call
    if compiling and layout.time == 1 and layout.cu_seqlens is None:
        # in operators that every format and every fusing compiler knows
        outputs, finals = _loop.results(cell.program, leaves, layout, cell.by_parts)
    elif compiling or leaves.states[0].is_meta or (sig is None and STOPPED.get()):
        results = of_text(
            list(leaves.states),
            list(leaves.inputs),
            list(leaves.parameters),
            list(leaves.matrices),
            layout.reset,
            layout.cu_seqlens,
            layout.time,
            layout.reverse,
            list(layout.starts),
            layout.dtype,
            list(layout.widths),
            cell.text,
            form,
            backend,
        )
        n = len(layout.widths)
        outputs, finals = list(results[:n]), list(results[n:])
    else:
        with without_autocast(leaves.states[0].device):
            requests = sig.requests if sig else (requested_form(form), requested(backend))
            chosen = choose(cell.program, leaves, layout, *requests)
            if sig is not None:
                plan = planned(cell, call, sig, chosen.kernels)
                replayed = None if plan is None else plan(cell, sig)
                if replayed is not None:
                    return replayed
            outputs, finals = compute(chosen, cell.program, leaves, layout, cell.by_parts)
    if channels is not None and len(channels) != 1:
        outputs = [y.reshape(*y.shape[:2], *channels) for y in outputs]  # (B, T, *channels)
        finals = [h.reshape(h.shape[0], *channels) for h in finals]  # (S, *channels)
    return joined(cell, outputs, finals)
