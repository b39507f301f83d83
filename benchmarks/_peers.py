"""Other people's solvers of ``h_t = a_t h_{t-1} + b_t`` behind one interface.

Everyone gets the same numbers as (B, T, D). A peer that asks for another layout is measured twice:
from (B, T, D) and back, its transposes counted, because that is the job; and on arrays that were
already laid out as it likes them, which is the most that can be said for it.
"""

import importlib.metadata
import importlib.util
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Calls(NamedTuple):
    """Functions to time, on inputs prepared outside the clock, and how to read the results."""

    forward: Callable[[], Any]
    both: Callable[[], tuple[Any, Any, Any]]  # h and the gradients of a and b
    to_torch: Callable[[Any], Tensor]  # a result of either as (B, T, D)


class Peer(NamedTuple):
    """A solver: the package it comes from and how to set it up for some ``a, b, grad_h``."""

    package: str
    prepare: Callable[[Tensor, Tensor, Tensor], Calls]
    compiles: bool = False

    def missing(self) -> bool:
        """Whether the package is not installed."""
        return importlib.util.find_spec(self.package) is None

    def version(self) -> str:
        """The version of the package."""
        return importlib.metadata.version(self.package)


def differentiate(
    scan: Callable[[Tensor, Tensor], Tensor],
    a: Tensor,
    b: Tensor,
    grad: Tensor,
    to_torch: Callable[[Tensor], Tensor] = lambda x: x,
) -> Calls:
    """A scan that PyTorch differentiates."""
    leaf_a, leaf_b = a.detach().requires_grad_(), b.detach().requires_grad_()

    def forward() -> Tensor:
        with torch.no_grad():
            return scan(a, b)

    def both() -> tuple[Tensor, Tensor, Tensor]:
        h = scan(leaf_a, leaf_b)
        grad_a, grad_b = torch.autograd.grad(h, (leaf_a, leaf_b), grad)
        return h.detach(), grad_a, grad_b

    return Calls(forward, both, to_torch)


def loop(a: Tensor, b: Tensor, grad: Tensor) -> Calls:
    """The loop that everybody writes first, in its best form: unbind, addcmul, stack."""

    def scan(a: Tensor, b: Tensor) -> Tensor:
        h, states = torch.zeros_like(b[:, 0]), []
        for a_t, b_t in zip(a.unbind(1), b.unbind(1), strict=True):
            h = torch.addcmul(b_t, a_t, h)
            states.append(h)
        return torch.stack(states, 1)

    return differentiate(scan, a, b, grad)


def mambapy(a: Tensor, b: Tensor, grad: Tensor) -> Calls:
    """Its backward pass is that of a real scan: complex cotangents go in and out conjugated."""
    from mambapy.pscan import pscan

    def scan(a: Tensor, b: Tensor) -> Tensor:
        return pscan(a[..., None], b[..., None])[..., 0]

    calls = differentiate(scan, a, b, grad.conj().resolve_conj())

    def both() -> tuple[Tensor, Tensor, Tensor]:
        h, grad_a, grad_b = calls.both()
        return h, grad_a.conj(), grad_b.conj()  # a view: no work is added

    return calls._replace(both=both)


def _combine(x: Any, y: Any) -> Any:
    return x[0] * y[0], y[0] * x[1] + y[1]


def torch_associative(a: Tensor, b: Tensor, grad: Tensor) -> Calls:
    """PyTorch's prototype; on a CPU only its generic mode exists."""
    from torch._higher_order_ops.associative_scan import associative_scan

    def scan(a: Tensor, b: Tensor) -> Tensor:
        return associative_scan(_combine, (a, b), dim=1, combine_mode="generic")[1]

    return differentiate(scan, a, b, grad)


def _jax(scan: Callable[[Any, Any], Any], time_axis: int, *tensors: Tensor) -> Calls:
    """A jitted scan and its jitted vector-Jacobian product.

    JAX's product with a complex cotangent is not conjugated, PyTorch's is.
    """
    import jax
    import jax.numpy as jnp

    def to_jax(x: Tensor) -> Any:
        return jnp.asarray(x.movedim(1, time_axis).resolve_conj().contiguous().numpy())

    def to_torch(x: Any) -> Tensor:
        return torch.from_numpy(jax.device_get(x).copy()).movedim(time_axis, 1)

    a, b, grad = to_jax(tensors[0]), to_jax(tensors[1]), to_jax(tensors[2].conj())
    compiled = jax.jit(scan)

    @jax.jit
    def with_gradients(a: Any, b: Any, grad: Any) -> Any:
        h, pull = jax.vjp(scan, a, b)
        grad_a, grad_b = pull(grad)
        return h, grad_a.conj(), grad_b.conj()

    return Calls(
        lambda: compiled(a, b).block_until_ready(),
        lambda: jax.block_until_ready(with_gradients(a, b, grad)),
        to_torch,
    )


def jax_associative(a: Tensor, b: Tensor, grad: Tensor) -> Calls:
    """The log-depth scan of JAX, compiled."""
    import jax

    return _jax(lambda a, b: jax.lax.associative_scan(_combine, (a, b), axis=1)[1], 1, a, b, grad)


def jax_scan(a: Tensor, b: Tensor, grad: Tensor, *, time_axis: int = 1) -> Calls:
    """The loop of JAX, compiled; it runs along the first axis."""
    import jax
    import jax.numpy as jnp

    def scan(a: Any, b: Any) -> Any:
        a, b = jnp.moveaxis(a, time_axis, 0), jnp.moveaxis(b, time_axis, 0)

        def step(h: Any, x: Any) -> Any:
            h = x[0] * h + x[1]
            return h, h

        return jnp.moveaxis(jax.lax.scan(step, jnp.zeros_like(b[0]), (a, b))[1], 0, time_axis)

    return _jax(scan, time_axis, a, b, grad)


def jax_scan_own(a: Tensor, b: Tensor, grad: Tensor) -> Calls:
    """`jax_scan` on arrays whose first axis is time."""
    return jax_scan(a, b, grad, time_axis=0)


def _philtorch_scan() -> Callable[[Tensor, Tensor], Tensor]:
    """The solver of rows (rows, T)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # no Helion, which is for GPUs
        from philtorch.lpv import linear_recurrence

    return lambda a, b: linear_recurrence(a, b.new_zeros(()), b)


def _rows(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(0, 1).contiguous()


def philtorch(a: Tensor, b: Tensor, grad: Tensor) -> Calls:
    """The native kernel of PhilTorch, between two transposes."""
    solve = _philtorch_scan()

    def scan(a: Tensor, b: Tensor) -> Tensor:
        h = solve(_rows(a), _rows(b))
        if h.requires_grad:
            h.register_hook(Tensor.contiguous)  # its backward takes no transposed gradient
        return h.unflatten(0, (len(b), -1)).transpose(1, 2).contiguous()

    return differentiate(scan, a, b, grad)


def philtorch_own(a: Tensor, b: Tensor, grad: Tensor) -> Calls:
    """`philtorch` on arrays whose last axis is time."""

    def to_torch(x: Tensor) -> Tensor:
        return x.unflatten(0, (len(b), -1)).transpose(1, 2)

    return differentiate(_philtorch_scan(), _rows(a), _rows(b), _rows(grad), to_torch)


PEERS = {
    "loop": Peer("torch", loop),
    "mambapy.pscan": Peer("mambapy", mambapy),
    "torch associative_scan": Peer("torch", torch_associative),
    "jax associative_scan": Peer("jax", jax_associative, compiles=True),
    "jax scan": Peer("jax", jax_scan, compiles=True),
    "jax scan, time first": Peer("jax", jax_scan_own, compiles=True),
    "philtorch": Peer("philtorch", philtorch),
    "philtorch, time last": Peer("philtorch", philtorch_own),
}
