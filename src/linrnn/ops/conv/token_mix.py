"""`token_mix`: several mixes of each input with the one before, in one pass each way."""

import torch
from torch import Tensor

from linrnn.compute.product import Product
from linrnn.ops.conv.past import recall


def token_mix(
    x: Tensor,
    past: Tensor,
    mu: Tensor,
    moved: Tensor | None = None,
    reset: Tensor | None = None,
    *,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, ...]:
    """Mixes of each input with the one before, the token shift of RWKV.

    Equation, of mix i, with ``x_{-1}`` from ``past`` and zero in place of an input before a reset::

        y_i,t = x_t + (mu_i + moved_i,t) * (x_{t-1} - x_t)

    Args:
        x: inputs (batch, time, channels).
        past: the last input before them, (batch, 1, channels).
        mu: how far each mix looks back, (mixes, channels): 0 sees the current step alone.
        moved: what each step adds to ``mu``, (mixes, batch, time, channels); None adds nothing.
        reset: boolean (batch, time); True where a new sequence starts.
        dtype: of the results; None is that of ``x``.

    Returns:
        A tensor (batch, time, channels) for each mix. Kernels compute sequences in at least
        float32 and round once; operators, and single steps, in ``dtype``. Gradients of any order
        flow to ``x``, ``past``, ``mu`` and ``moved``.

    Example:
        >>> x = torch.tensor([1.0, 2.0, 3.0]).view(1, 3, 1)
        >>> token_mix(x, torch.zeros(1, 1, 1), torch.tensor([[0.0], [1.0]]))[1].flatten()
        tensor([0., 1., 2.])

    Reference:
        Peng et al., "RWKV: Reinventing RNNs for the Transformer Era", 2023, arXiv:2305.13048; with
        mixes that depend on the input, Peng et al., 2024, arXiv:2404.05892.
    """
    arguments = x, past, mu, moved, reset, dtype or x.dtype
    # a step is recorded from PyTorch's operators, and takes the same ones where it is not
    return _PRODUCT(*arguments) if x.shape[1] > 1 else _definition(*arguments)


def _definition(
    x: Tensor,
    past: Tensor,
    mu: Tensor,
    moved: Tensor | None,
    reset: Tensor | None,
    dtype: torch.dtype,
) -> tuple[Tensor, ...]:
    """In PyTorch's operators: on any device, differentiable to any order."""
    x = x.to(dtype)
    back = recall(x, past, 1, reset) - x
    factors = mu.to(dtype)[:, None, None]
    factors = factors if moved is None else moved.to(dtype) + factors
    return torch.addcmul(x, back, factors).unbind(0)  # (B, T, C) each


_PRODUCT = Product(
    "token_mix",
    _definition,
    gradients=4,
    kernels={
        "triton": "linrnn.ops.conv._token_mix_triton",
        "cpu": "linrnn.ops.conv._token_mix_cpu",
    },
)
