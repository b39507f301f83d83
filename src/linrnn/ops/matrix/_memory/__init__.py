"""Kernels of `outer_scan` and `delta_scan`: a matrix per head that decays and is written to."""
