"""`log_linear_scan` by the native kernel in ``src/native/kernels/log_scan.cpp``."""

from torch import Tensor

from linrnn.ops import _scan_cpu
from linrnn.ops._backend import choose
from linrnn.ops._layout import empty_results
from linrnn.ops._native import pointer


def available(log_b: Tensor) -> bool:
    """Whether the kernel computes this call: the choice of `linear_scan` for the same tensor."""
    return log_b.device.type == "cpu" and choose(None, log_b.device, log_b.dtype)[0] == "cpu"


def log_scan(
    log_a: Tensor,
    log_b: Tensor,
    initial_state: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    """``log h_t = logaddexp(log a_t + log h_{t-1}, log b_t)`` in one pass."""
    a, b, initial_state, cu_seqlens = _scan_cpu._prepare(log_a, log_b, initial_state, cu_seqlens)
    log_h, final = empty_results(b, cu_seqlens)
    states = (pointer(initial_state), final.data_ptr(), 0, 0, 0)
    _scan_cpu._run(a, b, log_h, reset, cu_seqlens, reverse, states, kernel="log_scan")
    return log_h, final
