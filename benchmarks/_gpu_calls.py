"""Small calls of each op with Triton kernels: what launches and Python cost, whatever the size.

Tensors are so small that what a CPU computes in their place takes little beside Python.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from _memory_calls import memory, op_of, options_of
from cells import CELLS
from linrnn import mixers
from linrnn.mixers.hgrn import hgrn
from linrnn.mixers.rg_lru import rg_lru
from linrnn.ops import (
    causal_conv,
    cell_scan,
    gated_scan,
    linear_scan,
    log_linear_scan,
    selective_scan,
    use_backend,
)
from linrnn.ops.conv import siso

#: A function without arguments, and the leaves it is differentiated by.
Call = tuple[Callable[[], Tensor], tuple[Tensor, ...]]
Shape = tuple[int, ...]


def _leaf(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(shape, dtype=torch.float32).to(dtype).requires_grad_()


def scan(
    shape: Shape = (64, 4, 96),
    dtype: torch.dtype = torch.float32,
    constant: bool = False,
    marks: bool = False,
) -> Call:
    """`linear_scan`; of many sequences, so that time is not split, unless the shape says else.

    With ``marks`` also resets and an initial state, backward in time, and a single row is packed.
    """
    a, b = _leaf(*(shape[2:] if constant else shape), dtype=dtype), _leaf(*shape, dtype=dtype)
    if not marks:
        return (lambda: linear_scan(a, b, backend="triton")[0]), (a, b)
    packed = torch.tensor([0, shape[1] // 3, shape[1]]) if shape[0] == 1 else None
    state = _leaf(2 if shape[0] == 1 else shape[0], shape[2], dtype=dtype)
    reset = torch.rand(shape[:2]) < 0.1
    run = lambda: linear_scan(  # noqa: E731
        a, b, state, reset=reset, cu_seqlens=packed, reverse=True, backend="triton"
    )[0]
    return run, (a, b, state)


def log_scan(shape: Shape = (64, 4, 96), dtype: torch.dtype = torch.float32) -> Call:
    """`log_linear_scan` of decays that change."""
    log_a, log_b = _leaf(*shape, dtype=dtype), _leaf(*shape, dtype=dtype)
    return (lambda: log_linear_scan(log_a, log_b, backend="triton")[0]), (log_a, log_b)


def gated(shape: Shape = (64, 4, 96), parts: int = 2, dtype: torch.dtype = torch.float32) -> Call:
    """`gated_scan`, minGRU's or, with three parts, minLSTM's."""
    x = _leaf(*shape[:2], parts, shape[2], dtype=dtype)
    return (lambda: gated_scan(x, backend="triton")[0]), (x,)


def conv(shape: Shape = (64, 4, 96), dtype: torch.dtype = torch.float32) -> Call:
    """`causal_conv` with four taps, a bias and SiLU, as Mamba has it."""
    x, weight, bias = _leaf(*shape, dtype=dtype), _leaf(shape[2], 4), _leaf(shape[2])
    leaves = (x, weight, bias)
    return (lambda: causal_conv(*leaves, silu=True, backend="triton")[0]), leaves


def systems(shape: Shape = (2, 64, 8, 4)) -> Call:
    """S4D's scan in blocks, of complex modes."""
    batch, time, channels, modes = shape
    a, b, c = (0.5 * torch.randn(channels, modes, dtype=torch.complex128) for _ in "abc")
    leaves = (a.requires_grad_(), b.requires_grad_(), c.requires_grad_(), _leaf(channels))
    u, h = _leaf(batch, time, channels), torch.zeros(batch, channels, modes, dtype=torch.complex64)
    return (lambda: siso.scan(leaves, u, h, None)[0]), (*leaves, u)


def selective(shape: Shape = (2, 64, 32, 16), gated: bool = False) -> Call:
    """Mamba's scan; gated with all that its layer gives it, as bfloat16."""
    batch, time, channels, modes = shape
    dtype = torch.bfloat16 if gated else torch.float32
    x, dt, z = (_leaf(batch, time, channels, dtype=dtype) for _ in "xdz")
    B, C = (_leaf(batch, time, modes, dtype=dtype) for _ in "BC")
    A = (-torch.rand(channels, modes)).requires_grad_()
    D, bias = _leaf(channels), _leaf(channels)
    leaves = (x, dt, A, B, C)
    if not gated:
        return (lambda: selective_scan(*leaves, backend="triton")[0]), leaves
    run = lambda: selective_scan(  # noqa: E731
        *leaves, D, z=z, dt_bias=bias, dt_softplus=True, backend="triton"
    )[0]
    return run, (*leaves, D, z, bias)


def cell(
    name: str = "minGRU",
    shape: Shape = (2, 16, 32),
    dtype: torch.dtype = torch.float32,
    marks: bool = False,
) -> Call:
    """A cell that has kernels written for it; marks as of `scan`, without an initial state."""
    step = {"RG-LRU": rg_lru, "HGRN": hgrn, **CELLS}[name]
    inputs = {n: _leaf(*shape, dtype=dtype) for n in step.inputs}
    dtypes = {n: torch.complex64 if n in step.is_complex else torch.float32 for n in step.constants}
    given = inputs | {n: _leaf(shape[2], dtype=x) for n, x in dtypes.items()}
    given |= {n: _leaf(shape[2], shape[2]) for n in step.matrices}
    options: dict[str, Any] = {"backend": "triton", "form": "native"}
    if marks:
        options |= {"reset": torch.rand(shape[:2]) < 0.1, "reverse": True}
        packed = torch.tensor([0, shape[1] // 3, shape[1]])
        options |= {"cu_seqlens": packed} if shape[0] == 1 else {}

    def run() -> Tensor:
        y = cell_scan(step, **given, **options)[0]
        return y if isinstance(y, Tensor) else torch.stack(y)

    return run, tuple(given.values())


def layer(name: str, shape: Shape = (2, 128, 16)) -> Call:
    """A mixer with its default options, by the parameters too."""
    module, x = mixers.load(name)(shape[2]), _leaf(*shape)

    def run() -> Tensor:
        with use_backend("triton"):
            return module(x)[0]

    return run, (x, *module.parameters())


def memories(kind: str) -> Call:
    """A matrix memory of 64 keys and values."""
    shape = memory(kind, (1, 64, 2, 64, 64), 1)
    shape.pop("initial_state")
    half = ("q", "k", "v", "a", "b")
    given: dict[str, Any] = {
        n: (x.to(torch.bfloat16) if n in half else x).detach().requires_grad_()
        for n, x in shape.items()
    }
    options = options_of(kind)
    run = lambda: op_of(kind)(**given, **options, backend="triton")[0]  # noqa: E731
    return run, tuple(given.values())


#: Layers whose parameters are few and their formulas long; with norms, gates and rates of heads.
LAYERS = ("s4d", "s4", "s5", "dss", "dlr", "gss", "h3", "lru", "linoss")
LAYERS += ("mamba2", "gla", "gated_delta_net", "kda", "rwkv6", "rwkv7", "hgrn", "mlstm")
LAYERS += ("mesa_net", "slice_cde", "based", "rebased", "momentum_delta_net")
#: What these launch grows with the logarithm of time.
LEVELS = ("log_linear_mamba2", "log_linear_gated_delta_net")

#: By their names.
CALLS: dict[str, Callable[[], Call]] = {
    "linear_scan": scan,
    "linear_scan, constant": lambda: scan(constant=True),
    "linear_scan, complex": lambda: scan(dtype=torch.complex64),
    "linear_scan, time split": lambda: scan((1, 256, 64)),
    "log_linear_scan": log_scan,
    "gated_scan": gated,
    "gated_scan, time split": lambda: gated((1, 256, 64)),
    "causal_conv": conv,
    "siso_scan": systems,
    "selective_scan": selective,
    "selective_scan, gated": lambda: selective(gated=True),
    "cell_scan, minGRU": cell,
    "cell_scan, minGRU by tiles": lambda: cell("minGRU", (1, 64, 96)),
    "cell_scan, RG-LRU by tiles": lambda: cell("RG-LRU", (1, 64, 96)),
    "outer_scan": lambda: memories("outer"),
    "outer_scan, decays by channel": lambda: memories("outer, by channel"),
    "delta_scan": lambda: memories("delta"),
    "delta_scan, decays by head": lambda: memories("delta, by head"),
    **{f"layer, {name}": functools.partial(layer, name) for name in LAYERS},
    **{f"layer, {name}": functools.partial(layer, name, (2, 1024, 16)) for name in LEVELS},
}


def forward(call: Call) -> Callable[[], object]:
    """Run it without a gradient."""

    def run() -> object:
        with torch.no_grad():
            return call[0]()

    return run


def both(call: Call) -> Callable[[], object]:
    """Run it and its gradient."""
    function, leaves = call
    into = torch.ones_like(function())
    return lambda: torch.autograd.grad(function(), leaves, into, allow_unused=True)
