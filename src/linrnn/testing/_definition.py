"""The definition of `linear_scan`: a loop over time, differentiated by PyTorch."""

from torch import Tensor

from linrnn.ops.linear.loop import LINEAR, loop


def loop_scan(
    a: Tensor,
    b: Tensor,
    initial_state: Tensor | None = None,
    *,
    reset: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    reverse: bool = False,
) -> tuple[Tensor, Tensor]:
    """``h_t = a_t * h_{t-1} + b_t`` one step at a time, in the dtype of ``b``.

    Arguments and results are those of `linrnn.ops.linear_scan` for one channel axis.

    Example:
        >>> import torch
        >>> loop_scan(torch.tensor([0.5]), torch.ones(1, 3, 1))[0].flatten()
        tensor([1.0000, 1.5000, 1.7500])
    """
    return loop(LINEAR, a, b, initial_state, reset, cu_seqlens, reverse)
