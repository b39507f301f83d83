"""Call the native kernels of `linear_scan` and `log_linear_scan`."""

from torch import Tensor

from linrnn.compute import native
from linrnn.compute.layout import checked_offsets, dense, n_sequences, unit_channels
from linrnn.compute.native import array, pointer

_FIELDS = (
    "reverse backward constant seqs time channels offsets a b h reset "
    "initial final grad_a grad_b grad_initial"
)
SCAN, LOG_SCAN = native.Kernel("scan", _FIELDS), native.Kernel("log_scan", _FIELDS)


def run(
    a: Tensor,
    b: Tensor,
    h: Tensor,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    reverse: bool,
    states: tuple[int, int, int, int, int],
    *,
    backward: bool = False,
    kernel: native.Kernel = SCAN,
) -> None:
    """Call a kernel with inputs as `prepare` leaves them."""
    _, time, channels = h.shape
    constant = a.ndim == 1
    kernel(
        h.dtype,
        reverse,
        backward,
        constant,
        n_sequences(h, cu_seqlens),
        time,
        channels,
        pointer(cu_seqlens),
        *((a.data_ptr(), 0, 0) if constant else array(a)),
        *array(b),
        *array(h),
        *array(reset),
        *states,
    )


def prepare(
    a: Tensor, b: Tensor, initial_state: Tensor | None, cu_seqlens: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Inputs as the kernel reads them: any batch and time strides, channels side by side."""
    if initial_state is not None:
        initial_state = dense(initial_state)
    cu_seqlens = checked_offsets("linear_scan", cu_seqlens, b.shape[1])
    return unit_channels(a), unit_channels(b), initial_state, cu_seqlens
