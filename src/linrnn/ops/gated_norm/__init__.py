"""`gated_rms_norm`: the norm behind a recurrence and its gate, in one pass each way."""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.compute.arguments import check_device, check_flags, check_numbers
from linrnn.compute.backend import another_requested
from linrnn.compute.in_place import kind_of_call
from linrnn.compute.modes import eager
from linrnn.compute.op import STOPPED, _ReachedError
from linrnn.compute.precision import wide
from linrnn.compute.product import Product
from linrnn.compute.replay import Replays
from linrnn.errors import ArgumentError, check_in, check_positive_int, check_shape
from linrnn.typing import Float

_WHERE = "gated_rms_norm"
_GATES = ("silu", "sigmoid")
_NO_ADDED, _NO_SKIP = (None,) * 4, (None,) * 2
_PLANS = Replays()


def gated_rms_norm(
    x: Float[Tensor, "*steps channels"],
    z: Float[Tensor, "*steps channels"] | None = None,
    weight: Float[Tensor, " channels"] | None = None,
    *,
    groups: int = 1,
    eps: float = 1e-5,
    norm_first: bool = False,
    gate: Literal["silu", "sigmoid"] = "silu",
) -> Float[Tensor, "*steps channels"]:
    r"""Norm each group of channels by its root mean square, with a gate before or behind it.

    Equation, in every group::

        y = weight * h / sqrt(mean(h^2) + eps)                  h = x * gate(z)
        y = weight * x / sqrt(mean(x^2) + eps) * gate(z)        with norm_first

    Args:
        x: what is normed, such as what heads have read.
        z: of the gate; None is no gate.
        weight: of every channel, or None for 1.
        groups: parts of the channels that are normed apart.
        eps: added to the mean square.
        norm_first: norm ``x`` and gate that; the default gates first.
        gate: "silu" or "sigmoid".

    Returns:
        ``y``, in the dtype of ``x``; computed in at least float32, outside of autocast. Gradients
        of any order flow to all three tensors; the first is a kernel's on a CPU or a GPU,
        which keeps nothing but its arguments.

    Raises:
        ShapeError, DTypeError, DeviceError: tensors that do not fit together.
        ArgumentError: groups that do not divide the channels, or an eps below 0.
        UnknownNameError: another gate.

    Example:
        >>> import torch
        >>> from linrnn.ops import gated_rms_norm
        >>> gated_rms_norm(torch.tensor([3.0, -3.0, 1.0, 1.0]), groups=2)
        tensor([ 1.0000, -1.0000,  1.0000,  1.0000])
    """
    key, tensors = None, (x, z, weight)
    if not torch.compiler.is_compiling():  # a decoder's call comes again
        key = kind_of_call((*tensors, groups, eps, norm_first, gate), len(tensors), None)
        plan = None if key is None else _PLANS.get(key)
        result: Tensor | None = None if plan is None else plan(tensors)
        if result is not None:
            return result
    _check(x, z, weight, groups, eps, norm_first, gate)
    arguments = (
        *tensors,
        None,
        *_NO_ADDED,
        *_NO_SKIP,
        groups,
        float(eps),
        norm_first,
        gate,
        False,
        None,
    )
    if STOPPED.get():
        raise _ReachedError(_PRODUCT, arguments, None)
    (y,) = _PRODUCT(*arguments)
    if key is not None and key not in _PLANS and x.numel():
        kernels: Any = _PRODUCT.kernels(arguments)
        _PLANS.store(key, None if kernels is None else kernels.plan(arguments, y))
    return y


def _check(
    x: Tensor,
    z: Tensor | None,
    weight: Tensor | None,
    groups: int,
    eps: float,
    norm_first: bool,
    gate: str,
) -> None:
    check_numbers(_WHERE, {"x": x}, real=True, z=z, weight=weight)
    check_positive_int(_WHERE, groups=groups)
    check_flags(_WHERE, norm_first=norm_first)
    check_in(_WHERE, "gate", gate, _GATES)
    if x.ndim == 0:
        check_shape(_WHERE, "x", x.shape, {"channels": None})
    channels = x.shape[-1]
    if z is not None and z.shape != x.shape:
        check_shape(_WHERE, "z", z.shape, {f"axis {i}": n for i, n in enumerate(x.shape)})
    if weight is not None:
        check_shape(_WHERE, "weight", weight.shape, {"channels": channels})
    if channels % groups:
        raise ArgumentError(
            f"{_WHERE}: groups must divide channels={channels}, got {groups}. Use 1 for one norm."
        )
    if not 0 <= eps < float("inf"):
        raise ArgumentError(f"{_WHERE}: eps must be at least 0 and finite, got {eps}. Use 1e-5.")
    check_device(_WHERE, "x", x.device, z=z, weight=weight)


def gated_norm(
    x: Tensor,
    z: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    groups: int,
    eps: float,
    gate: str = "none",
    norm_first: bool = True,
    centre: bool = False,
    added: tuple[Tensor, Tensor, Tensor, Tensor] | None = None,
    skip: tuple[Tensor, Tensor] | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Norm each group of channels, and multiply the result by a function of ``z``.

    Equation, in every group, of ``h = x``, or ``h = x - mean(x)`` with ``centre``::

        y = (weight * h / sqrt(mean(h^2) + eps) + bias) * gate(z)

    Without ``norm_first`` x is multiplied by the function instead of y. With ``added``, which is
    (q, k, v, w), the bias is followed by ``+ sum(w * q * k) * v``, a sum for every group.
    With ``skip``, which is (s, w), x is ``x + w * s``.

    Args:
        x, z: (..., channels).
        weight, bias: of every channel, or None for 1 and 0.
        groups: parts of the channels that are normed apart.
        eps: added to the mean square.
        gate: "silu", "sigmoid", or "none" for z itself.
        norm_first: multiply what is normed.
        centre: subtract the mean before.
        added: q, k and v (..., channels), and a weight w of every channel.
        skip: s (..., channels), and a weight w of every channel.
        dtype: of y; None is that of ``x``. Computed in at least float32.
    """
    more = *(added or _NO_ADDED), *(skip or _NO_SKIP)
    tensors = x, z, weight, bias, *more
    (y,) = _PRODUCT(*tensors, groups, float(eps), norm_first, gate, centre, dtype)
    return y


def has_gpu_kernel(x: Tensor) -> bool:
    """Whether a GPU's kernel norms ``x``, where PyTorch's operators do on a CPU."""
    # to choose among backends takes 10 microseconds, which a step on a CPU need not pay
    possible = eager(x) and (x.device.type != "cpu" or another_requested())
    return possible and _PRODUCT.backend((x,)) == "triton"


def _definition(
    x: Tensor,
    z: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    q: Tensor | None,
    k: Tensor | None,
    v: Tensor | None,
    share: Tensor | None,
    skip: Tensor | None,
    skip_weight: Tensor | None,
    groups: int,
    eps: float,
    norm_first: bool,
    gate: str,
    centre: bool,
    dtype: torch.dtype | None,
) -> tuple[Tensor]:
    """In PyTorch's operators: on any device, differentiable to any order."""
    h, channels = wide(x), x.shape[-1]
    if skip is not None and skip_weight is not None:
        h = h + wide(skip_weight) * wide(skip)
    factor: Tensor | None = None
    if z is not None:
        factor = _ACTS[gate](wide(z))
        h = h if norm_first else h * factor
    parts = h.unflatten(-1, (groups, channels // groups))  # (..., groups, C)
    parts = parts - parts.mean(-1, keepdim=True) if centre else parts
    scale = inverse_root(parts.square().mean(-1, keepdim=True) + eps)
    y = (parts * scale).flatten(-2)  # (..., channels)
    y = y if weight is None else y * wide(weight)
    y = y if bias is None else y + wide(bias)
    if q is not None and k is not None and v is not None and share is not None:
        both = (wide(q) * wide(k) * wide(share)).unflatten(-1, parts.shape[-2:])  # (..., groups, C)
        sums = both.sum(-1, keepdim=True).expand_as(both).flatten(-2)  # (..., channels)
        y = y + sums * wide(v)
    y = y * factor if factor is not None and norm_first else y
    return (y.to(dtype or x.dtype),)


def inverse_root(x: Any) -> Any:
    """``1 / sqrt(x)`` whose gradient float32 can hold for any x, a tensor or a value of a graph.

    That is a cube, which is 0 where x is 1e30: a power of two in front and one behind change
    nothing else.
    """
    return (x * 2.0**-40).rsqrt() * 2.0**-20


_ACTS: dict[str, Any] = {"silu": F.silu, "sigmoid": torch.sigmoid, "none": torch.clone}
_PRODUCT = Product(
    _WHERE,
    _definition,
    gradients=10,
    kernels={"triton": "linrnn.ops.gated_norm._triton", "cpu": "linrnn.ops.gated_norm._cpu"},
)
