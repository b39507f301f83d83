"""Count what a call compiles for a GPU that is not here: `benchmarks/_gpu_offline.py` pretends one.

To be run in a process of its own. Kernels are compiled with the arguments of real calls, so this
finds what a compiler refuses and how often it has to compile; numbers mean nothing.
"""

import os
from pathlib import Path

import torch

from _gpu_offline import pretend

pretend(shared=99 * 1024)  # what a program may have of every GPU since Ampere


def compiled():
    """How many kernels there are on disk; every version of Triton writes them there."""
    return len(list(Path(os.environ["TRITON_CACHE_DIR"]).glob("*/*.cubin")))


def count(function, *leaves, **arguments):
    """How many kernels a call and its gradients compile."""
    before = compiled()
    y = function(*leaves, **arguments)[0]
    inputs = [x for x in (*leaves, *arguments.values()) if isinstance(x, torch.Tensor)]
    torch.autograd.grad(y.sum(), inputs, allow_unused=True)
    return compiled() - before
