"""GaLiTe against a loop over its equation; a memory worked out by hand; its start."""

import pytest
import torch
import torch.nn.functional as F

from linrnn.errors import LinrnnError
from linrnn.mixers import GaLiTe


def transcription(layer, x):
    """One step and one head at a time."""
    y = []
    S = s = None
    for x_t in x:
        parts = F.linear(x_t, layer.heads.proj.weight, layer.heads.proj.bias)
        sizes = [layer.n_heads * n for n in layer.heads.sizes]
        q, k, v, b, g, p1, p2, p3 = (z.view(layer.n_heads, -1) for z in parts.split(sizes))
        psi_q, psi_k, gamma = (
            torch.stack([torch.outer(act(b), act(a)).flatten() for a, b in zip(*pair, strict=True)])
            for act, *pair in ((F.relu, q, p1), (F.relu, k, p2), (torch.sigmoid, g, p3))
        )
        beta, write = b.sigmoid(), gamma * psi_k
        if S is None:
            S, s = torch.zeros_like(write[..., None] * v[:, None]), torch.zeros_like(write)
        if layer.decay == "factors":
            kept = (1 - gamma)[..., None] * (1 - beta)[:, None]
        else:
            kept = 1 - gamma[..., None] * beta[:, None]
        S = kept * S + write[..., None] * (beta * v)[:, None]
        s = (1 - gamma) * s + write
        o = torch.einsum("hkv,hk->hv", S, psi_q) / ((s * psi_q).sum(-1) + layer.eps)[:, None]
        y.append(layer.out_proj(o.flatten()))
    return torch.stack(y), torch.cat([S, s[..., None]], -1)


@pytest.mark.parametrize("decay", ["factors", "product"])
def test_equals_a_transcription_split_and_whole_gradients_too(decay):
    layer = GaLiTe(6, n_heads=2, eta=3, decay=decay, dtype=torch.float64)
    torch.nn.init.normal_(layer.heads.proj.bias)
    x = torch.randn(1, 20, 6, dtype=torch.float64, requires_grad=True)
    expected, memory = transcription(layer, x[0])
    first, state = layer(x[:, :7])
    second, last = layer(x[:, 7:], state)
    y = torch.cat([first, second], 1)
    torch.testing.assert_close(y[0], expected, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(layer(x)[0][0], expected, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(last["memory"][0], memory)
    sources, weight = (x, *layer.parameters()), torch.randn_like(expected)
    got, want = (torch.autograd.grad((z * weight).sum(), sources) for z in (y[0], expected))
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)


def test_one_channel_by_hand():
    """psi = 1, gamma = beta = 1/2, v = 1: S = 1/4, 5/16 and s = 1/2, 3/4."""
    layer = GaLiTe(1, eta=1, eps=1e-12, dtype=torch.float64)
    with torch.no_grad():
        layer.heads.proj.weight.zero_()
        # queries, keys and values 1, beta = sigmoid(0), gamma = sigmoid(0) sigmoid(40), features 1
        layer.heads.proj.bias.copy_(torch.tensor([1.0, 1, 1, 0, 0, 1, 1, 40]))
        layer.out_proj.weight.fill_(1)
    y, state = layer(torch.ones(1, 2, 1, dtype=torch.float64))
    assert y.flatten().tolist() == pytest.approx([0.5, 5 / 12])
    assert state["memory"].flatten().tolist() == pytest.approx([5 / 16, 3 / 4])


def test_gates_that_round_to_one_have_finite_gradients():
    layer, x = GaLiTe(4), torch.randn(1, 5, 4, requires_grad=True)
    torch.nn.init.constant_(layer.heads.proj.bias, 100)
    y, state = layer(x)
    (grad,) = torch.autograd.grad(y.sum() + state["memory"].sum(), x)
    assert y.isfinite().all()
    assert grad.isfinite().all()


def test_starts_as_published():
    layer = GaLiTe(64, n_heads=4)
    assert (layer.d_head, layer.eta) == (16, 4)
    for weight in (*layer.heads.rows(), layer.out_proj.weight):
        rows = min(weight.shape)
        square = weight @ weight.T if rows == len(weight) else weight.T @ weight
        torch.testing.assert_close(square, 2 * torch.eye(rows), rtol=1e-4, atol=1e-4)
    assert not layer.heads.proj.bias.any()
    assert not layer.out_proj.bias.any()


BAD = [
    ({"decay": "sum"}, "no GaLiTe decay named 'sum'"),
    ({"eta": 0}, "GaLiTe: eta must be an integer of at least 1, got 0"),
    ({"eps": 0.0}, "GaLiTe: eps must be positive and finite, got 0.0"),
    ({"n_heads": 0}, "GaLiTe: n_heads must be an integer of at least 1, got 0"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("options", "message"), BAD)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        GaLiTe(8, **options)
