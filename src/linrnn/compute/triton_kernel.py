"""Compile the package's Triton kernels: once for all lengths of a sequence."""

import functools

import triton

#: What changes with the length or the number of sequences. Triton compiles a kernel anew where such
#: a number is 1 or becomes a multiple of 16, seconds each time, and gains nothing: what is aligned
#: to how many bytes follows from the channels.
LENGTHS = ("time", "chunk", "chunks", "batch", "reset_seq", "reset_step")

kernel = functools.partial(triton.jit, do_not_specialize=LENGTHS)
