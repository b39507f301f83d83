"""`selective_scan`: the recurrence of Mamba, which never stores its expanded states."""

from typing import Any, Literal

import torch
from torch import Tensor

from linrnn.compute.arguments import (
    check_device,
    check_flags,
    check_numbers,
    check_packed,
    check_reset,
)
from linrnn.compute.layout import accumulator_dtype
from linrnn.compute.op import Op
from linrnn.errors import check_in, check_shape
from linrnn.ops.selective_scan._reference import Problem
from linrnn.ops.selective_scan._reference import selective_scan as definition
from linrnn.typing import CuSeqlens, Float, ResetMask

_WHERE = "selective_scan"


def selective_scan(
    x: Float[Tensor, "batch time channels"],
    dt: Float[Tensor, "batch time channels"],
    A: Float[Tensor, "channels d_state"],
    B: Float[Tensor, "batch time d_state"],
    C: Float[Tensor, "batch time d_state"],
    D: Float[Tensor, " channels"] | None = None,
    initial_state: Float[Tensor, "seqs channels d_state"] | None = None,
    *,
    z: Float[Tensor, "batch time channels"] | None = None,
    dt_bias: Float[Tensor, " channels"] | None = None,
    dt_softplus: bool = False,
    b_disc: Literal["euler", "zoh"] = "euler",
    reset: ResetMask | None = None,
    cu_seqlens: CuSeqlens | None = None,
    reverse: bool = False,
    backend: str | None = None,
) -> tuple[Float[Tensor, "batch time channels"], Float[Tensor, "seqs channels d_state"]]:
    r"""Run one small state-space model a channel, with step, input and output chosen by the input.

    Equation::

        h_t[c, n] = exp(dt_t[c] A[c, n]) h_{t-1}[c, n] + w_t[c, n] B_t[n] x_t[c]
        y_t[c]    = sum_n C_t[n] h_t[c, n] + D[c] x_t[c]

    with ``w = dt`` ("euler") or ``w = (exp(dt A) - 1) / A`` ("zoh"). The kernels keep the states
    (batch, time, channels, d_state) in cache: memory is that of ``x``, forward and backward.

    Args:
        x: input, one scalar a channel and step.
        dt: step size, in input steps; positive, unless ``dt_softplus`` makes it so.
        A: continuous-time decay, one for every channel and mode; negative.
        B, C: how an input enters the state and how the state is read, shared by all channels.
        D: weight of the input in the output, or None.
        initial_state: state before the first step, one for each packed sequence, or None for zeros.
        z: where given, the output is ``y * silu(z)``.
        dt_bias: added to ``dt`` first.
        dt_softplus: use ``softplus(dt + dt_bias)``.
        b_disc: how ``B`` is discretised.
        reset: boolean (batch, time); True clears the state before that step.
        cu_seqlens, reverse: as in `linear_scan`.
        backend: ``cpu`` or ``triton`` for the kernels; ``tree`` or ``reference`` for the
            definition, chunk by chunk through `linear_scan` on that backend; None takes what
            `use_backend` or ``LINRNN_BACKEND`` asks for, else the fastest that supports the call.

    Returns:
        ``(y, final_state)``. float16 and bfloat16 are storage: the recurrence, and the final
        state, are float32. Gradients of any order flow to every tensor from both results; those
        beyond the first are computed through the definition.

    Raises:
        ShapeError, DTypeError, DeviceError: tensors that do not fit together.
        ArgumentError: ``cu_seqlens`` that do not rise from 0 to ``time``.
        UnknownNameError: an unknown ``b_disc`` or backend.
        BackendError: the requested backend cannot compute this call.

    Example:
        >>> import torch
        >>> from linrnn.ops import selective_scan
        >>> one = torch.ones(1, 3, 1)
        >>> y, final = selective_scan(one, one, torch.tensor([[-0.6931472]]), one, one)
        >>> y.flatten(), final.flatten()
        (tensor([1.0000, 1.5000, 1.7500]), tensor([1.7500]))

    Reference:
        A. Gu and T. Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces",
        2023, arXiv:2312.00752.
    """
    check_in(_WHERE, "b_disc", b_disc, ("euler", "zoh"))
    check_flags(_WHERE, dt_softplus=dt_softplus, reverse=reverse)
    required = {"x": x, "dt": dt, "A": A, "B": B, "C": C}
    optional = {"D": D, "initial_state": initial_state, "z": z, "dt_bias": dt_bias}
    check_numbers(_WHERE, required, real=True, **optional)
    tensors = required | {name: t for name, t in optional.items() if t is not None}
    _check(tensors, reset, cu_seqlens)
    store, compute_dtype = _dtypes(tensors)
    stored = ("x", "dt", "B", "C", "z")
    cast = {n: t.to(store if n in stored else compute_dtype) for n, t in tensors.items()}
    sequences = (cast["x"], cast["dt"], cast["A"], cast["B"], cast["C"])
    D, initial_state, z, dt_bias = (cast.get(n) for n in ("D", "initial_state", "z", "dt_bias"))
    optional_tensors = (D, initial_state, z, dt_bias, reset, cu_seqlens)
    problem = Problem(*sequences, *optional_tensors, dt_softplus, b_disc == "zoh", reverse)
    y, final = _OP(*problem, backend=backend)
    return y, final


def _check(tensors: dict[str, Tensor], reset: Tensor | None, cu_seqlens: Tensor | None) -> None:
    x, A = tensors["x"], tensors["A"]
    check_shape(_WHERE, "x", x.shape, {"batch": None, "time": None, "channels": None})
    batch, time, channels = x.shape
    check_shape(_WHERE, "A", A.shape, {"channels": channels, "d_state": None})
    seqs = check_packed(_WHERE, "x", x, cu_seqlens)
    rows = "batch" if cu_seqlens is None else "sequences"
    sizes = {"batch": batch, "time": time, "channels": channels, "d_state": A.shape[1]}
    sizes[rows] = seqs
    axes = {"initial_state": (rows, "channels", "d_state"), "A": ("channels", "d_state")}
    axes |= dict.fromkeys(("D", "dt_bias"), ("channels",))
    axes |= dict.fromkeys(("B", "C"), ("batch", "time", "d_state"))
    for name, t in tensors.items():
        axis_names = axes.get(name, ("batch", "time", "channels"))
        check_shape(_WHERE, name, t.shape, {axis: sizes[axis] for axis in axis_names})
    check_reset(_WHERE, reset, batch, time)
    check_device(_WHERE, "x", x.device, reset=reset, **tensors)


def _dtypes(tensors: dict[str, Tensor]) -> tuple[torch.dtype, torch.dtype]:
    """Return the dtype that sequences are stored in and the one the recurrence computes in."""
    store = tensors["x"].dtype
    for name in ("dt", "B", "C", "z"):
        if name in tensors:
            store = torch.promote_types(store, tensors[name].dtype)
    if any(tensors[n].dtype == torch.float64 for n in ("A", "D", "dt_bias") if n in tensors):
        store = torch.float64
    return store, accumulator_dtype(store)


def _shapes(*fields: Any) -> tuple[Tensor, Tensor]:
    p = Problem(*fields)
    return p.x.new_empty(p.x.shape), p.A.new_empty(p.seqs, *p.A.shape)


def _kept_states(kernels: Any, *fields: Any) -> tuple[Tensor]:
    """Room for the state before each chunk, from which the backward pass computes the others."""
    p = Problem(*fields)
    batch, time, channels = p.x.shape
    # batch and chunks on one axis: a graph would ask whether an axis of chunks has length 1
    if p.cu_seqlens is None:
        return (p.A.new_empty(batch * -(-time // kernels.CHUNK), p.A.shape[1], channels),)
    # each sequence begins one anew, so some stay unused: zeros, for an operator returns them
    return (p.A.new_zeros(time // kernels.CHUNK + p.seqs, p.A.shape[1], channels),)


_OP = Op(
    "selective_scan",
    "Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? initial_state, "
    "Tensor? z, Tensor? dt_bias, Tensor? reset, Tensor? cu_seqlens, bool dt_softplus, bool zoh, "
    "bool reverse",
    gradients=9,
    results=2,
    definition=definition,
    shapes=_shapes,
    kernels={
        "triton": "linrnn.ops.selective_scan._triton",
        "cpu": "linrnn.ops.selective_scan._cpu",
    },
    extras=_kept_states,
    n_extras=1,
    opaque=True,
)
