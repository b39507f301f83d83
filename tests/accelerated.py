"""Models of transformers for the tests of `accelerate`, and what is exact of them."""

import contextlib
import copy
import inspect
import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
from _hf_families import FAMILIES, VOCABULARY, build
from linrnn.interop._accelerate.table import FUNCTIONS
from linrnn.interop._accelerate.theirs import is_ours

__all__ = ["FAMILIES", "VOCABULARY", "build", "exact", "in_float64", "plain", "relative"]


def modules(model):
    """The modules of transformers that define a model's parts."""
    names = {type(part).__module__ for part in model.modules()}
    return [sys.modules[name] for name in names if name.startswith("transformers.models.")]


@contextlib.contextmanager
def plain(model):
    """Transformers' own definitions in PyTorch, whatever packages with kernels are installed."""
    with pytest.MonkeyPatch.context() as patch:
        for module in modules(model):
            for name in FUNCTIONS:
                if hasattr(module, name):
                    patch.setattr(module, name, inspect.unwrap(getattr(module, name)))
        yield


@contextlib.contextmanager
def in_float64():
    """Cast to float64 where a model casts to float32 for precision."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "float32", torch.float64)
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(default)


def exact(model):
    """A copy that computes in float64."""
    double = copy.deepcopy(model).double()
    double.set_experts_implementation("eager")  # grouped products know no float64
    assert not any(is_ours(getattr(type(part), "forward", None)) for part in double.modules())
    return double


def relative(x, expected):
    """The distance from what is expected, by its size."""
    expected = expected.double()
    return float((x.double() - expected).norm() / expected.norm().clamp(min=1e-30))
