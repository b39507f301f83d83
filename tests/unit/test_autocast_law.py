"""The law about gradients inside of autocast catches what breaks it."""

import pytest
import torch
from torch import nn

from linrnn.mixers import Mixer
from linrnn.state_spec import real
from linrnn.testing._autocast_law import check_autocast_gradients
from linrnn.testing._tolerance import BrokenPropertyError


class Sums(torch.autograd.Function):
    """Adds up its rows for the gradient of a gain, in the dtype that the gradient has."""

    @staticmethod
    def forward(ctx, x, gain, how):
        ctx.save_for_backward(x, gain)
        ctx.how = how
        return x * gain.to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        x, gain = ctx.saved_tensors
        if ctx.how == "products":
            return grad @ torch.eye(grad.shape[-1]) * gain, (grad * x).sum((0, 1)), None
        total = torch.zeros_like(gain, dtype=x.dtype)
        for row in (grad * x).flatten(0, 1):
            total = total + row
        return grad * gain.to(grad.dtype), total.to(gain.dtype), None


class Gained(Mixer):
    family = "diagonal"

    def __init__(self, d_model, how):
        super().__init__()
        self.d_model, self.how = d_model, how
        self.proj = nn.Linear(d_model, d_model)
        self.gain = nn.Parameter(torch.ones(d_model))

    def state_spec(self):
        return real(d_model=self.d_model)

    def _read(self, x, state, reset):
        z = self.proj(x)
        if self.how == "right":
            return z * self.gain, state
        return Sums.apply(z, self.gain, self.how), state


def drawn(how):
    torch.manual_seed(0)
    return Gained(8, how), torch.randn(4, 400, 8)


def test_right_gradients_pass():
    check_autocast_gradients(*drawn("right"))


def test_sums_in_half_precision_are_caught():
    with pytest.raises(BrokenPropertyError, match="autocast: grad gain differs"):
        check_autocast_gradients(*drawn("loop"))


def test_products_of_two_dtypes_are_caught():
    with pytest.raises(RuntimeError, match=r"dtype|expected"):
        check_autocast_gradients(*drawn("products"))
