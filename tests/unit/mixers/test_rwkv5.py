"""RWKV-5 against the layer of the package rwkv, golden numbers, its start and errors."""

import pytest
import torch
import torch.nn.functional as F

from linrnn.errors import UnknownNameError
from linrnn.mixers import RWKV5
from linrnn.ops import outer_scan
from published.rwkv5 import theirs_of
from rwkv_package import busy, load


def test_equals_the_layer_of_the_package_with_its_state_and_gradients(monkeypatch):
    seq = load(monkeypatch, seven=False).RWKV.att_seq_v5_2
    layer, one, zero = busy(RWKV5(8, n_heads=2)), torch.ones(8), torch.zeros(8)
    # they normalise the input as well
    x = F.layer_norm(torch.randn(40, 8), (8,), eps=0)
    shift, memory = torch.randn(8), torch.randn(2, 4, 4)
    weights = theirs_of(dict(layer.named_parameters()))
    theirs, last, final = seq(None, x, shift, memory, one, zero, *weights)
    theirs = theirs - x
    y, state = layer(x[None], {"memory": memory[None], "shift": shift[None, None]})
    torch.testing.assert_close(y[0], theirs, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(state["memory"][0], final, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(state["shift"][0, 0], last)
    wanted = [*layer.parameters()]
    grads = [torch.autograd.grad(z.square().mean(), wanted) for z in (y[0], theirs)]
    torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-3)


def test_golden_numbers():
    one, half, two = torch.ones(1, 4, 1, 1), torch.full((1, 1), 0.5), torch.full((1, 1), 2.0)
    o, _ = outer_scan(one, one, one, half.log(), bonus=two)
    assert o.flatten().tolist() == pytest.approx([2, 3, 3.5, 3.75])


def test_starts_as_published_by_its_place_in_the_stack():
    layer = RWKV5(64, layer=1, n_layers=3, init="published")
    part, place = torch.arange(64.0) / 64, torch.arange(64.0) / 63
    got = {n: getattr(layer, n).detach().flatten() for n in ("mu_r", "mu_k", "mu_v", "mu_g")}
    want = {"mu_r": part ** (1 / 3), "mu_k": part ** (2 / 3), "mu_v": part ** (2 / 3) + 0.15}
    for name, mu in (want | {"mu_g": want["mu_r"]}).items():
        torch.testing.assert_close(got[name], mu)
    torch.testing.assert_close(layer.time_decay.detach().flatten(), -6 + 5 * place**1.35)
    zigzag = torch.tensor([0.0, 1, -1]).repeat(22)[:64]
    first = layer.time_first.detach().flatten()
    torch.testing.assert_close(first, 0.5 * (1 - place) + 0.1 * zigzag)
    for linear, gain in ((layer.value, 1), (layer.receptance, 1), (layer.key, 0.1)):
        w = linear.weight.detach()
        torch.testing.assert_close(w @ w.T, gain**2 * torch.eye(64), rtol=0, atol=1e-5)
    gate = layer.gate.weight.detach()
    torch.testing.assert_close(gate @ gate.T, 0.01 * torch.eye(64), rtol=0, atol=1e-6)
    assert layer.norm_weight.tolist() == pytest.approx([(2 / 3) ** 0.7] * 64)
    assert not layer.output.weight.any()


def test_starts_with_orthogonal_maps():
    layer = RWKV5(16)
    for linear in (layer.receptance, layer.key, layer.value, layer.gate, layer.output):
        w = linear.weight.detach()
        torch.testing.assert_close(w @ w.T, torch.eye(16), rtol=0, atol=1e-5)


@pytest.mark.unchecked
def test_errors():
    with pytest.raises(UnknownNameError, match="RWKV5 init named 'zero'"):
        RWKV5(8, init="zero")
