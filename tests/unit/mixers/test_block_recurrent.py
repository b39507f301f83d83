"""Block-recurrent attention: a loop over queries, blocks alone, and states that stay."""

import pytest
import torch
import torch.nn.functional as F

from linrnn.errors import LinrnnError
from linrnn.mixers import BlockRecurrent
from linrnn.mixers.block_recurrent import _updated
from linrnn.nn import l2_normalise


def make(**options):
    torch.manual_seed(0)
    sizes = {"n_states": 3, "n_heads": 2, "d_head": 4, "segment": 4, "dtype": torch.float64}
    layer = BlockRecurrent(6, **{**sizes, **options})
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    return layer


def look(q, keys, values, scale, bias=0.0):
    """One query of one head."""
    return ((keys @ q * scale + bias).softmax(0)) @ values


def unit(z):
    return l2_normalise(z)


def transcription(layer, x):
    """One row (T, d_model): every query, head and state by itself; the gate is fixed, no MLP."""
    n, H = layer.segment, layer.n_heads
    q, far, k, v = layer.heads(x)
    q, far, k = unit(q), unit(far), unit(k)
    c, ys = layer.first, []
    for t in range(len(x)):
        c_q, c_far, c_k, c_v = layer.state_heads(F.layer_norm(c, (6,), eps=1e-6) + layer.id)
        c_q, c_far, c_k = unit(c_q), unit(c_far), unit(c_k)
        first, begin = max(0, t - n + 1), max(0, t - t % n - n)
        bias = layer.bias[:, : t - first + 1].flip(1)
        s = layer.scale
        near = [
            look(q[t, h], k[first : t + 1, h], v[first : t + 1, h], s[0, h], bias[h])
            for h in range(H)
        ]
        held = [look(far[t, h], c_k[:, h], c_v[:, h], s[1, h]) for h in range(H)]
        ys.append(torch.cat([*near, *held]))
        if t % n < n - 1:
            continue
        rows = []
        for i in range(layer.n_states):
            own = [look(c_q[i, h], c_k[:, h], c_v[:, h], s[2, h]) for h in range(H)]
            seen = [
                look(c_far[i, h], k[begin : t + 1, h], v[begin : t + 1, h], s[3, h])
                for h in range(H)
            ]
            rows.append(layer.states.z(torch.cat([*own, *seen])))
        gate = layer.states.gate_bias.sigmoid()
        c = c * gate + torch.stack(rows) * (1 - gate)
    return layer.o_proj(torch.stack(ys)), c


@torch.no_grad()
def test_equals_a_loop_over_queries_heads_and_states():
    layer, x = make(), torch.randn(2, 16, 6, dtype=torch.float64)
    y, state = layer(x)
    expected = [transcription(layer, row) for row in x]
    torch.testing.assert_close(y, torch.stack([z for z, _ in expected]), rtol=1e-9, atol=1e-9)
    c = torch.stack([c for _, c in expected])
    torch.testing.assert_close(state["memory"]["c"], c, rtol=1e-9, atol=1e-9)


@torch.no_grad()
@pytest.mark.parametrize("update", ["skip", "dual"])
def test_states_that_a_gate_holds_stay(update):
    layer = make(update=update)
    for name, parameter in layer.states.named_parameters():
        if "gate" in name:
            parameter.fill_(60.0)
    state = layer(torch.randn(1, 12, 6, dtype=torch.float64))[1]
    torch.testing.assert_close(state["memory"]["c"][0], layer.first)


@torch.no_grad()
@pytest.mark.parametrize("update", ["skip", "single", "dual"])
def test_lstm_gates_equal_their_equation(update):
    layer = make(update=update, gate="lstm")
    own, c, h = layer.states, torch.randn(1, 3, 6).double(), torch.randn(1, 3, 16).double()

    def gated(c, z, read, name):
        weight, bias = (getattr(own, f"{name}_{part}") for part in ("weight", "bias"))
        i, f = F.linear(read, weight, bias).split(6, -1)
        return c * torch.sigmoid(f + 1) + torch.tanh(z) * torch.sigmoid(i - 1)

    expected = c if update == "single" else gated(c, own.z(h), h, "gate")
    if update == "single":
        expected = gated(c, own.down(F.gelu(own.up(h))), h, "inner_gate")
    if update == "dual":
        u = F.gelu(own.up(F.layer_norm(expected, (6,), eps=1e-6)))
        expected = gated(expected, own.down(u), u, "inner_gate")
    got = _updated(layer.mode, c, h, list(own.parameters()))
    torch.testing.assert_close(got, expected)


@pytest.mark.unchecked
def test_constructor_words_its_errors():
    with pytest.raises(LinrnnError, match="n_states must be an integer of at least 1, got 0"):
        BlockRecurrent(4, n_states=0)
    with pytest.raises(LinrnnError, match="no BlockRecurrent gate named 'open'"):
        BlockRecurrent(4, gate="open")
