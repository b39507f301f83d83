"""Detect the mode that an op is called in: plain eager mode, a compiler, a transform."""

import cmath
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

#: The dispatch key set by PyTorch's older ``vmap``, that of ``is_grads_batched`` and ``vectorize``.
_OLDER_VMAP: Any = torch._C._parse_dispatch_key("VmapMode")


def transformed() -> bool:
    """Inside a transform of `torch.func`, an older ``vmap`` or forward-mode differentiation."""
    functorch = torch._C._are_functorch_transforms_active()
    return functorch or forward_ad._current_level >= 0 or older_vmap()


def forward_mode() -> bool:
    """Whether a forward-mode derivative is being taken, as by ``jvp``, ``jacfwd``, ``hessian``."""
    return not torch.compiler.is_compiling() and forward_ad._current_level >= 0


def older_vmap() -> bool:
    """Whether the ``vmap`` is around that knows no function of ours and maps operators alone."""
    # compilers cannot read what is asked then
    if torch.compiler.is_compiling():
        return False
    return torch._C._dispatch_tls_is_dispatch_key_included(_OLDER_VMAP)


def eager(*tensors: Tensor) -> bool:
    """Plain tensors, nobody records the operators that are called, and no transform is around.

    A ``vmap`` is around gradients of several outputs at once, too (``is_grads_batched``).
    """
    for x in tensors:
        if type(x) is not Tensor and type(x) is not torch.nn.Parameter:
            return False
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return False
    # as `transformed` without another look for a compiler: every op asks this at every call
    functorch = torch._C._are_functorch_transforms_active()
    older = torch._C._dispatch_tls_is_dispatch_key_included(_OLDER_VMAP)
    return not (functorch or forward_ad._current_level >= 0 or older)


def eager_apply(function: type[torch.autograd.Function]) -> Any:
    """``function.apply`` for calls in eager mode, whose arguments are all given by place.

    It leaves out what PyTorch does first for transforms and for defaults.
    """
    inherited: Any = super(torch.autograd.Function, function)
    return inherited.apply


def captured(x: Tensor) -> bool:
    """Whether a CUDA graph records what is done with ``x``, so that no number can be looked at."""
    # compilers cannot read what is asked then
    if torch.compiler.is_compiling() or not x.is_cuda:
        return False
    return torch.cuda.is_current_stream_capturing()


def nested_forward_mode() -> bool:
    """Whether two or more ``jvp`` or ``jacfwd`` are around this call."""
    functorch = torch._C._functorch
    if functorch.maybe_current_level() is None:
        return False
    kinds = [level.key() for level in functorch.get_interpreter_stack() or ()]
    return kinds.count(functorch.TransformType.Jvp) > 1


def plain(x: Tensor) -> Tensor:
    """The numbers of ``x``, those of all mapped calls under vmap: to look at, not to return."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(x):
        x = functorch.get_unwrapped(x)
    return x


def mapped(*tensors: Tensor | None) -> bool:
    """Whether ``vmap`` maps over one of them; inside a compiler whether a transform is around."""
    if not torch._C._are_functorch_transforms_active():
        return False
    if torch.compiler.is_compiling():  # which cannot read what is asked below
        return True
    functorch = torch._C._functorch
    for x in tensors:
        while x is not None and functorch.is_functorch_wrapped_tensor(x):
            if functorch.is_batchedtensor(x):
                return True
            x = functorch.get_unwrapped(x)
    return False


def may_look(x: Tensor) -> bool:
    """Whether a look at a number of ``x`` breaks no graph and waits for no device."""
    return x.is_cpu and eager(x) and not torch._C._get_tracing_state()


def seen_finite(x: Tensor) -> bool:
    """Whether one look at ``x`` says that all of it is finite.

    False also where nobody may look: this decides on a shorter way to the same numbers, and on
    nothing else.
    """
    return may_look(x) and cmath.isfinite(x.detach().sum().item())


def seen_zero(x: Tensor) -> bool:
    """Whether one look at ``x`` says that all of it is zero and that nobody asks for its gradient.

    As with `seen_finite`, a no means nothing: what zeros would add may then be left out.
    """
    return not x.requires_grad and may_look(x) and not bool(x.any())
