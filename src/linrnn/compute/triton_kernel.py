"""Compile the package's Triton kernels: once for all lengths of a sequence."""

import functools

import triton

#: Arguments that change with the length or the number of sequences. Triton would recompile a kernel
#: where one is 1 or a multiple of 16, seconds each time, and gain nothing: the alignment in bytes
#: follows from the channels.
LENGTHS = ("time", "chunk", "chunks", "batch", "reset_seq", "reset_step", "lanes")

kernel = functools.partial(triton.jit, do_not_specialize=LENGTHS)
