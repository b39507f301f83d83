"""`selective_scan` as PyTorch operators over the kernels: choice, shapes, gradients.

The kernels know first derivatives. Higher ones, and the transforms of `torch.func`, go through the
definition in `_selective_scan_reference`.
"""

import importlib
from collections.abc import Sequence
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor

from linrnn.errors import BackendError, check_in
from linrnn.ops import _selective_scan_reference as reference
from linrnn.ops._backend import BACKENDS, requested
from linrnn.ops._opaque import opaque
from linrnn.ops._scan_op import _eager, _transformed
from linrnn.ops._selective_scan_reference import Problem

#: Kernels, fastest first, and the kind of device each was written for.
KERNELS = {"triton": "cuda", "cpu": "cpu"}

_INPUTS = (
    "Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? initial_state, "
    "Tensor? z, Tensor? dt_bias, Tensor? reset, bool dt_softplus, bool zoh"
)
_FIELDS = len(Problem._fields)
_TENSORS = 9  # through which gradients flow, at the head of a Problem
_library = torch.library.Library("linrnn", "FRAGMENT")
_library.define(
    f"selective_scan({_INPUTS}, bool keep, str backend) -> (Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.define(
    f"selective_scan_backward({_INPUTS}, Tensor kept, Tensor grad_y, Tensor grad_final, "
    "str backend) -> Tensor[]",
    tags=(torch.Tag.pt2_compliant_tag,),
)


@runtime_checkable
class Kernels(Protocol):
    """What a module ``linrnn.ops._selective_scan_<backend>`` provides."""

    CHUNK: int  # steps between the states that forward keeps

    def unavailable(self, device: torch.device, dtype: torch.dtype) -> str | None:
        """Why this backend cannot compute on that device and dtype, or None when it can."""

    def forward(self, p: Problem, kept: Tensor) -> tuple[Tensor, Tensor]:
        """``(y, final_state)``; the state before each chunk goes to ``kept`` where it has room."""

    def backward(
        self, p: Problem, kept: Tensor, grad_y: Tensor, grad_final: Tensor
    ) -> Sequence[Tensor | None]:
        """The gradients of the nine tensors at the head of ``p``; None for those that are."""


def load(name: str) -> Kernels:
    """The kernels of a backend."""
    return cast(Kernels, importlib.import_module(f"linrnn.ops._selective_scan_{name}"))


def choose(explicit: str | None, device: str, dtype: torch.dtype) -> str:
    """The backend that computes a call.

    Raises:
        BackendError: the backend asked for cannot compute the call, or under
            ``LINRNN_STRICT=1`` the automatic choice is a slow one.
    """
    name, asked_by = requested(explicit)
    if name != "auto":
        check_in("selective_scan", "backend", name, (*BACKENDS, "auto"))
        problem = load(name).unavailable(torch.device(device), dtype) if name in KERNELS else None
        if problem:
            raise BackendError(
                f"selective_scan: backend {name!r} (asked for by {asked_by}) cannot compute this "
                f"call: {problem}. Use backend='tree', which runs everywhere."
            )
        return name
    for candidate, kind in KERNELS.items():
        if torch.device(device).type == kind:
            problem = load(candidate).unavailable(torch.device(device), dtype)
            if problem is None:
                return candidate
            _announce_slow(f"{candidate} cannot ({problem})")
    return "tree"


# The compiler keeps the result instead of tracing in. torch.compiler.assume_constant_result does
# just this, but first imports the compiler, for seconds.
choose._dynamo_marked_constant = True  # type: ignore[attr-defined]


def apply(p: Problem, backend: str | None) -> tuple[Tensor, Tensor]:
    """``(y, final_state)`` of a checked problem."""
    name = choose(backend, str(p.x.device), p.x.dtype)
    if name not in KERNELS or _transformed():
        return _definition(*p, None if name in KERNELS else name)
    keep = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in p.tensors)
    if not _eager(p.x, p.A):
        y, final, _ = torch.ops.linrnn.selective_scan(*p, keep, name)
    elif keep:
        y, final, _ = _SelectiveScan.apply(*p, keep, name)
    else:
        y, final, _ = _forward(*p, keep, name)
    return y, final


def _definition_shapes(*arguments: Any) -> tuple[Tensor, Tensor]:
    p = Problem(*arguments[:_FIELDS])
    return p.x.new_empty(p.x.shape), _final(p)


@opaque("selective_scan_definition", f"{_INPUTS}, str? backend", _definition_shapes)
def _definition(*arguments: Any) -> tuple[Tensor, Tensor]:
    return reference.selective_scan(Problem(*arguments[:_FIELDS]), arguments[_FIELDS])


def _announce_slow(why: str) -> None:
    import os
    import warnings

    message = f"selective_scan runs on the slower backend 'tree': {why}."
    if os.environ.get("LINRNN_STRICT", "0") not in ("", "0"):
        raise BackendError(f"{message} Refused because LINRNN_STRICT is set.")
    warnings.warn(message, UserWarning, stacklevel=5)


def _kept_states(p: Problem, keep: bool, backend: str) -> Tensor:
    batch, time, channels = p.x.shape
    chunks = -(-time // load(backend).CHUNK) if keep else 0
    # batch and chunks on one axis: a graph would ask whether an axis of chunks has length 1
    return p.A.new_empty(batch * chunks, p.A.shape[1], channels)


def _forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    p, (keep, backend) = Problem(*arguments[:_FIELDS]), arguments[_FIELDS:]
    kept = _kept_states(p, keep, backend)
    if p.x.numel() == 0:
        final = _final(p)
        start = p.initial_state
        return torch.empty_like(p.x), final.zero_() if start is None else final.copy_(start), kept
    return *load(backend).forward(p, kept), kept


def _forward_shapes(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    p, (keep, backend) = Problem(*arguments[:_FIELDS]), arguments[_FIELDS:]
    y = p.x.new_empty(p.x.shape)
    return y, _final(p), _kept_states(p, keep, backend)


def _final(p: Problem) -> Tensor:
    return p.A.new_empty(p.x.shape[0], *p.A.shape)


def _backward(*arguments: Any) -> list[Tensor]:
    p, (kept, grad_y, grad_final, backend) = (
        Problem(*arguments[:_FIELDS]),
        arguments[_FIELDS:],
    )
    if p.x.numel() == 0:
        grads = [None if t is None else torch.zeros_like(t) for t in p.tensors]
        grads[6] = grad_final.clone()
    else:
        grads = list(load(backend).backward(p, kept, grad_y, grad_final))
    return [p.A.new_empty(0) if g is None else g for g in grads]


def _backward_shapes(*arguments: Any) -> list[Tensor]:
    p = Problem(*arguments[:_FIELDS])
    return [
        p.A.new_empty(0 if t is None else t.shape, dtype=(p.A if t is None else t).dtype)
        for t in p.tensors
    ]


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    p = Problem(*inputs[:_FIELDS])
    ctx.save_for_backward(*p[:10], output[2])
    ctx.flags, ctx.backend = p[10:], inputs[-1]
    ctx.mark_non_differentiable(output[2])


def _differentiate(
    ctx: Any, grad_y: Tensor, grad_final: Tensor, _: Tensor
) -> tuple[Tensor | None, ...]:
    *tensors, kept = ctx.saved_tensors
    p = Problem(*tensors, *ctx.flags)
    wanted = [t is not None and ctx.needs_input_grad[i] for i, t in enumerate(p.tensors)]
    grads: Sequence[Tensor | None]
    if torch.is_grad_enabled():
        grads = _through_definition(p, wanted, grad_y, grad_final)
    else:
        run = _backward if _eager(p.x, grad_y) else torch.ops.linrnn.selective_scan_backward
        grads = run(*p, kept, grad_y, grad_final, ctx.backend)
    none = (None,) * (_FIELDS + 2 - _TENSORS)
    return *(g if want else None for g, want in zip(grads, wanted, strict=True)), *none


def _through_definition(
    p: Problem, wanted: list[bool], grad_y: Tensor, grad_final: Tensor
) -> list[Tensor | None]:
    """Gradients that can themselves be differentiated."""
    outputs = reference.selective_scan(p, None)
    sources = [t for t, want in zip(p.tensors, wanted, strict=True) if want and t is not None]
    grads = torch.autograd.grad(
        outputs, sources, (grad_y, grad_final), create_graph=True, materialize_grads=True
    )
    remaining = iter(grads)
    return [next(remaining) if want else None for want in wanted]


class _SelectiveScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        output = _forward(*inputs)
        _keep_for_backward(ctx, inputs, output)
        return output

    backward = staticmethod(_differentiate)


_library.impl("selective_scan", _forward, "CompositeExplicitAutograd")
_library.impl("selective_scan_backward", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("linrnn::selective_scan", _forward_shapes, lib=_library)
torch.library.register_fake("linrnn::selective_scan_backward", _backward_shapes, lib=_library)
torch.library.register_autograd(
    "linrnn::selective_scan", _differentiate, setup_context=_keep_for_backward, lib=_library
)
