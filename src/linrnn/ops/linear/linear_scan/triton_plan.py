"""How a scan is laid out on a GPU: for other ops that walk along time as it does."""

from linrnn.ops.linear.linear_scan._triton import Plan, make_plan, tile

__all__ = ["Plan", "make_plan", "tile"]
