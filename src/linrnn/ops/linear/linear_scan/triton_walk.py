"""How the kernels of a scan walk along time: Triton functions for the kernels of other ops."""

from linrnn.ops.linear.linear_scan._triton_kernels import _flags as flags
from linrnn.ops.linear.linear_scan._triton_kernels import _last as last
from linrnn.ops.linear.linear_scan._triton_kernels import _place as place
from linrnn.ops.linear.linear_scan._triton_kernels import _rows as rows
from linrnn.ops.linear.linear_scan._triton_kernels import carry

__all__ = ["carry", "flags", "last", "place", "rows"]
