"""RWKV-6 against the layer of the package rwkv and the loop of fla, its start and errors."""

import pytest
import torch
import torch.nn.functional as F
from fla_naive import naive

from linrnn.errors import ArgumentError
from linrnn.mixers import RWKV6
from linrnn.ops import outer_scan
from published.rwkv6 import theirs_of
from rwkv_package import busy, load


def published(layer, x, shift, memory, monkeypatch):
    """``(y, last input, memory)`` of one sequence (time, d_model) that is normalised."""
    seq = load(monkeypatch, seven=False).RWKV.att_seq_v6_0
    one, zero = torch.ones(x.shape[1]), torch.zeros(x.shape[1])
    weights = theirs_of(dict(layer.named_parameters()), layer.n_heads)
    y, last, memory = seq(None, x, shift, memory, one, zero, *weights)
    return y - x, last, memory


def test_equals_the_layer_of_the_package_with_its_state_and_gradients(monkeypatch):
    layer = busy(RWKV6(8, n_heads=2, mix_rank=3, decay_rank=5))
    # they normalise the input as well
    x = F.layer_norm(torch.randn(40, 8), (8,), eps=0).requires_grad_()
    shift, memory = torch.randn(8), torch.randn(2, 4, 4)
    theirs, last, final = published(layer, x, shift, memory, monkeypatch)
    y, state = layer(x[None], {"memory": memory[None], "shift": shift[None, None]})
    torch.testing.assert_close(y[0], theirs, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(state["memory"][0], final, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(state["shift"][0, 0], last)
    wanted = [*layer.parameters()]
    grads = [torch.autograd.grad(z.square().mean(), wanted) for z in (y[0], theirs)]
    torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-3)


def test_the_memory_equals_the_loop_of_fla_where_decays_are_strong():
    loop = naive("rwkv6/recurrent_naive.py")
    torch.manual_seed(0)
    r, k, v, g = torch.randn(4, 2, 3, 40, 8)
    g, u, start = -g.mul(2).exp(), torch.randn(3, 8), torch.randn(2, 3, 8, 8)
    theirs, last = loop.naive_recurrent_rwkv6(r, k, v, g, u, 1.0, start, True)
    o, final = outer_scan(*(z.transpose(1, 2) for z in (r, k, v, g)), start, bonus=u)
    torch.testing.assert_close(o.transpose(1, 2), theirs, rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(final, last, rtol=1e-4, atol=2e-5)


def test_starts_as_published_by_its_place_in_the_stack():
    layer = RWKV6(64, layer=1, n_layers=3, init="published")
    part, depth, rest = torch.arange(64.0) / 64, 0.5, 2 / 3
    soon, now = 1 - part**rest, 1 - part ** (rest / 2)
    wanted = torch.stack([soon, soon, soon - 0.3 * depth, now, now])
    torch.testing.assert_close(layer.mu.detach(), wanted)
    torch.testing.assert_close(layer.mu_x.detach(), soon)
    place = torch.arange(64.0) / 63
    torch.testing.assert_close(layer.time_decay.detach(), -6 + 5 * place**1.35)
    zigzag = torch.tensor([0.0, 1, -1]).repeat(22)[:64]
    first = layer.time_first.detach().flatten()
    torch.testing.assert_close(first, depth * (1 - place) + 0.1 * zigzag)
    key = layer.key.weight.detach()
    torch.testing.assert_close(key @ key.T, 0.01 * torch.eye(64), rtol=0, atol=1e-6)
    assert layer.norm_weight.tolist() == pytest.approx([(2 / 3) ** 0.7] * 64)
    zeros = (layer.output.weight, layer.mix_down.weight, layer.decay.down.weight)
    assert not any(weight.any() for weight in zeros)
    assert all(weight.any() for weight in (layer.mix_up, layer.decay.up.weight))


def test_starts_with_orthogonal_maps():
    layer = RWKV6(16)
    for linear in (layer.receptance, layer.key, layer.value, layer.gate, layer.output):
        w = linear.weight.detach()
        torch.testing.assert_close(w @ w.T, torch.eye(16), rtol=0, atol=1e-5)


@pytest.mark.unchecked
def test_errors():
    with pytest.raises(ArgumentError, match=r"RWKV6: layer must be an integer from 0 to .*=0"):
        RWKV6(8, layer=1)
    with pytest.raises(ArgumentError, match=r"RWKV6: norm_eps must be positive, got 0"):
        RWKV6(8, norm_eps=0.0)
    with pytest.raises(ArgumentError, match="mix_rank"):
        RWKV6(8, mix_rank=0)
