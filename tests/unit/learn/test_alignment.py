"""How near a rule is to back-propagation: by numbers written out, and where it is known."""

import math

import pytest
import torch
from torch.nn.functional import mse_loss

from linrnn import SequenceModel, learn
from linrnn.learn import Learner, alignment


class Skewed(Learner):
    """Twice the gradient of some parameters, the opposite of others, and none of one."""

    def step(self, model, batch, carried, loop):
        found = learn.build("bptt").step(model, batch, carried, loop)
        model.encoder.weight.grad *= 2
        model.head.weight.grad *= -3
        model.head.bias.grad = None
        return found


def make(layers=1):
    torch.manual_seed(0)
    options = {"d_model": 4, "n_layers": layers, "norm": "layer", "pool": "none"}
    model = SequenceModel(2, 1, mixer="lru", **options, dtype=torch.float64)
    x, y = torch.randn(2, 12, 2).double(), torch.randn(2, 12, 1).double()
    return model, learn.Batch(x, y, None, None)


def test_cosine_and_ratio_are_those_written_out():
    model, batch = make()
    found = alignment(model, Skewed(), batch, mse_loss)
    assert found["encoder.weight"] == pytest.approx((1.0, 2.0))
    assert found["head.weight"] == pytest.approx((-1.0, 3.0))
    assert math.isnan(found["head.bias"].cosine)
    assert found["head.bias"].ratio == 0
    learn.build("bptt").step(model, batch, None, learn.Loop(mse_loss))
    w, b = model.head.weight.grad.norm() ** 2, model.head.bias.grad.norm() ** 2
    expected = (-3 * w / (9 * w).sqrt() / (w + b).sqrt(), (9 * w / (w + b)).sqrt())
    assert found["head"] == pytest.approx([v.item() for v in expected])


def test_traces_are_the_truth_in_the_last_layer_alone():
    model, batch = make(layers=2)
    exact, cut = (
        alignment(model, learn.build(name, {"window": 3}), batch, mse_loss)
        for name in ("chunked_rtrl", "tbptt")
    )
    assert exact["blocks.1.mixer"] == pytest.approx((1.0, 1.0), abs=1e-9)
    assert exact["blocks.0.mixer"].cosine < 1 - 1e-6
    assert cut["blocks.1.mixer"].cosine < 1 - 1e-6
    assert all(p.grad is None for p in model.parameters())
