"""A GPU that compiles what it is asked to run and does not run it: tensors lie on the CPU.

To be run in a process of its own: it stands in for Triton's driver, and for what the package knows
of devices. Kernels are compiled with the arguments of real calls, so this finds what a compiler
refuses and how often it has to compile; numbers mean nothing.
"""

import os
from importlib.metadata import version
from pathlib import Path

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from linrnn.compute import backend, gpu


class _Utils:
    def get_device_properties(self, device):
        return {"max_shared_mem": 99 * 1024}  # what a program may have of every GPU since Ampere

    def load_binary(self, *arguments):
        module, function, registers, spilled, threads = 1, 1, 32, 0, 1024
        found = module, function, registers, spilled, threads
        return found[:4] if version("triton").startswith("3.3.") else found  # knew no threads


class _Driver:
    utils = _Utils()

    def launcher_cls(self, *arguments):
        return lambda *arguments, **more: None

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


def _unavailable(device, dtype):
    return None if dtype in gpu.DTYPES else f"it has no kernel for {dtype}"


driver.set_active(_Driver())
gpu.unavailable, gpu.processors = _unavailable, lambda device: 132
backend.WRITTEN_FOR.pop("triton")


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
