"""The recurrences: tensors in, tensors out, no parameters.

Batch first, time second, always. Each op takes an initial state and returns
``(outputs, final_state)``; gradients flow into the one and from the other.
"""

from linrnn.compute.backend import use_backend as use_backend
from linrnn.compute.layout import accumulator_dtype as accumulator_dtype
from linrnn.compute.sequence_parallel import sequence_parallel as sequence_parallel
from linrnn.ops._explain import backend_report as backend_report
from linrnn.ops._explain import explain as explain
from linrnn.ops.cell.cell_scan import cell_scan as cell_scan
from linrnn.ops.cell.cell_scan import newton_scan as newton_scan
from linrnn.ops.cell.cell_scan import use_form as use_form
from linrnn.ops.conv.causal_conv import causal_conv as causal_conv
from linrnn.ops.conv.fft import fft_scan as fft_scan
from linrnn.ops.conv.fft_conv import fft_conv as fft_conv
from linrnn.ops.gated_norm import gated_rms_norm as gated_rms_norm
from linrnn.ops.linear.block_scan import block_scan as block_scan
from linrnn.ops.linear.distributed import distributed_linear_scan as distributed_linear_scan
from linrnn.ops.linear.gated_scan import gated_scan as gated_scan
from linrnn.ops.linear.linear_scan import linear_scan as linear_scan
from linrnn.ops.linear.log_linear_scan import log_linear_scan as log_linear_scan
from linrnn.ops.matrix.delta_scan import delta_scan as delta_scan
from linrnn.ops.matrix.fenwick_scan import fenwick_scan as fenwick_scan
from linrnn.ops.matrix.outer_scan import outer_scan as outer_scan
from linrnn.ops.selective_scan import selective_scan as selective_scan
from linrnn.ops.sequence_index import seq_idx_to_cu_seqlens as seq_idx_to_cu_seqlens
from linrnn.ops.sequence_index import seq_idx_to_reset as seq_idx_to_reset
from linrnn.ops.updates import conv_update as conv_update
from linrnn.ops.updates import delta_update as delta_update
from linrnn.ops.updates import outer_update as outer_update
from linrnn.ops.updates import selective_update as selective_update

__all__ = [
    "accumulator_dtype",
    "backend_report",
    "block_scan",
    "causal_conv",
    "cell_scan",
    "conv_update",
    "delta_scan",
    "delta_update",
    "distributed_linear_scan",
    "explain",
    "fenwick_scan",
    "fft_conv",
    "fft_scan",
    "gated_rms_norm",
    "gated_scan",
    "linear_scan",
    "log_linear_scan",
    "newton_scan",
    "outer_scan",
    "outer_update",
    "selective_scan",
    "selective_update",
    "seq_idx_to_cu_seqlens",
    "seq_idx_to_reset",
    "sequence_parallel",
    "use_backend",
    "use_form",
]


def __dir__() -> list[str]:
    return sorted(__all__)
