"""Titans' memory against a loop in which autograd finds the surprise, and the delta rule."""

import pytest
import torch
import torch.nn.functional as F
from plain_loop import check_equal

from linrnn.errors import LinrnnError
from linrnn.mixers import Titans
from linrnn.nn import l2_normalise
from linrnn.ops.inner import ACTIVATIONS

F64 = torch.float64


def predict(layer, weights, z):
    for i, W in enumerate(weights):
        z = torch.einsum("hi,hio->ho", z, W)
        z = ACTIVATIONS[layer.activation].value(z) if i + 1 < len(weights) else z
    return z


def transcription(layer, x):
    """One step after another, each with weights of its own."""
    heads, taps = layer.n_heads, layer.qkv.conv1d.weight
    z = F.pad(layer.qkv.heads.proj(x), (0, 0, taps.shape[1] - 1, 0))
    z = F.silu((z.unfold(0, taps.shape[1], 1) * taps).sum(-1))
    q, k, v = z.unflatten(-1, (3, heads, -1)).unbind(1)
    q, k = l2_normalise(q), l2_normalise(k)
    gates = layer.gates(x).sigmoid().unflatten(-1, (3, heads, 1, 1))
    weights = list(layer.memory.parameters())
    speeds, outputs = [0 * w for w in weights], []
    for t in range(len(x)):
        start = weights if t % layer.mini_batch == 0 else start
        theta, eta, alpha = gates[t]
        loss = (predict(layer, start, k[t]) - v[t]).square().sum()
        gradients = torch.autograd.grad(loss, start, create_graph=True)
        pairs = zip(speeds, gradients, strict=True)
        speeds = [eta * s - layer.rate_max * theta * g for s, g in pairs]
        weights = [(1 - alpha) * w + s for w, s in zip(weights, speeds, strict=True)]
        o = F.rms_norm(predict(layer, weights, q[t]), (layer.d_head,), None, layer.norm_eps)
        gate = F.silu(layer.out.gate_proj(x[t]))
        outputs.append(layer.out.out_proj(o.flatten() * gate))
    return torch.stack(outputs)


OPTIONS = [
    {},
    {"depth": 1, "mini_batch": 1},
    {"depth": 3, "mini_batch": 5, "activation": "silu"},
    {"activation": "gelu_tanh", "rate_max": 0.2},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_equals_a_transcription_split_and_whole_gradients_too(options):
    sizes = {"n_heads": 2, "d_head": 3, "mini_batch": 4, "dtype": F64} | options
    check_equal(Titans(6, **sizes), transcription)


def test_sizes_and_starts():
    layer = Titans(768, device="meta")
    assert (layer.n_heads, layer.d_head, layer.mini_batch) == (12, 64, 16)
    assert [tuple(w.shape) for w in layer.memory.parameters()] == [(12, 64, 128), (12, 128, 64)]
    layer = Titans(128)
    assert layer.gates.bias.tolist() == [0, 0, 0, 0, -4, -4]
    bound = (6 / (64 + 128)) ** 0.5
    for W in layer.memory.parameters():
        assert 0.95 * bound < W.abs().max() <= bound


def test_a_matrix_that_does_not_forget_learns_the_value_of_a_key():
    torch.manual_seed(0)
    layer = Titans(16, depth=1, d_conv=None, dtype=F64)
    with torch.no_grad():
        layer.gates.bias[-1] = -20
        _, state = layer(torch.ones(1, 400, 16, dtype=F64))
        (_, k, v), _ = layer.qkv.read(torch.ones(1, 1, 16, dtype=F64), {}, None)
        weights = [
            w + c[0]
            for w, c in zip(layer.memory.parameters(), state["change"].values(), strict=True)
        ]
        read = predict(layer, weights, l2_normalise(k)[0, 0])
    torch.testing.assert_close(read, v[0, 0], rtol=1e-3, atol=1e-3)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": 0}, "Titans: depth must be an integer of at least 1, got 0"),
        ({"depth": 2**31}, "Titans: depth must be at most 64, got 2147483648"),
        ({"rate_max": 0.0}, "Titans: rate_max must be positive and finite, got 0.0"),
        ({"activation": "tanh"}, "no Titans activation named 'tanh'"),
        ({"d_conv": None, "conv_bias": True}, "Titans: conv_bias must be False without"),
    ],
)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        Titans(8, **options)
