"""RetNet against its parallel equation with complex rotations in NumPy; its decays and start."""

from functools import partial

import numpy as np
import pytest
import torch
from public_loops import naive

from linrnn.errors import ArgumentError
from linrnn.mixers import RetNet
from linrnn.nn import rotate
from linrnn.testing import check_property


def make(d_model=6, **options):
    torch.manual_seed(0)
    return RetNet(d_model, dtype=torch.float64, **options)


def parallel(layer, x):
    """``(Q K^T * D) V`` of every head, the rotation as complex numbers, then norm and gate."""
    H, K, V = layer.n_heads, layer.d_key, layer.d_value
    time, weight = x.shape[0], layer.heads.proj.weight.detach().numpy()
    q, k, v = np.split(x @ weight.T, [H * K, 2 * H * K], -1)
    q, k, v = q.reshape(time, H, K), k.reshape(time, H, K) / K**0.5, v.reshape(time, H, V)
    theta = 10_000.0 ** (-np.arange(K // 2) / max(K // 2 - 1, 1))
    t = np.arange(time)
    out = []
    for h in range(H):
        z, w = (a[:, h, 0::2] + 1j * a[:, h, 1::2] for a in (q, k))
        turn = np.exp(1j * t[:, None] * theta)
        scores = ((z * turn) @ (w * turn).conj().T).real
        gamma = 1 - 2.0 ** (-5 - h)
        age = t[:, None] - t
        decay = np.where(age >= 0, gamma ** np.maximum(age, 0), 0)
        o = (scores * decay) @ v[:, h]
        o = o - (o.mean(-1, keepdims=True) if layer.norm == "layer" else 0)
        out.append(o / np.sqrt((o**2).mean(-1, keepdims=True) + layer.norm_eps))
    gate = x @ layer.out.gate_proj.weight.detach().numpy().T
    y = gate / (1 + np.exp(-gate)) * np.concatenate(out, -1)
    return y @ layer.out.out_proj.weight.detach().numpy().T


@pytest.mark.parametrize(
    ("heads", "time", "norm"), [(1, 5, "rms"), (3, 150, "rms"), (2, 9, "layer")]
)
def test_equals_the_parallel_equation(heads, time, norm):
    layer = make(n_heads=heads, norm=norm)
    x = torch.randn(time, 6, dtype=torch.float64)
    y = layer(x[None])[0][0].detach().numpy()
    np.testing.assert_allclose(y, parallel(layer, x.numpy()), rtol=1e-9, atol=1e-10)


def test_equals_a_public_form_gradients_too():
    """fla-core's, which rotates nothing and computes in float32."""
    layer, x = RetNet(8, n_heads=2), torch.randn(2, 20, 8, requires_grad=True)
    q, k, v = layer.heads(x)
    q, k = (rotate(z, torch.arange(20)[None], endpoint=True) for z in (q, k))
    heads = (z.transpose(1, 2) for z in (q, k, v))
    o = naive("retention/naive.py", "naive_retention")(*heads).transpose(1, 2)
    y, expected = layer(x)[0], layer.out(o, x)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
    sources, weight = (x, *layer.parameters()), torch.randn_like(y)
    got, want = (torch.autograd.grad((z * weight).sum(), sources) for z in (y, expected))
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)


def test_memory_of_the_first_head_by_hand():
    """gamma = 31/32 and writes of 1 in the channel that the input does not turn far."""
    layer = make(1, n_heads=1, d_key=2, d_value=1)
    with torch.no_grad():
        layer.heads.proj.weight.copy_(torch.tensor([[1.0], [0], [2**0.5], [0], [1]]))
    x, sizes = torch.ones(1, 3, 1, dtype=torch.float64), []
    state = layer.init_state(1)
    for t in range(3):
        _, state = layer(x[:, t : t + 1], {**state, "position": torch.zeros(1, dtype=torch.long)})
        sizes.append(state["memory"][0, 0, 0, 0].item())
    assert sizes == pytest.approx([1, 1.96875, 2.9072265625])


def test_positions_go_on_from_call_to_call_and_begin_anew_at_a_reset():
    layer, x = make(n_heads=2), torch.randn(1, 9, 6, dtype=torch.float64)
    _, state = layer(x[:, :4])
    assert state["position"].tolist() == [4]
    reset = torch.zeros(1, 9, dtype=torch.bool)
    reset[0, 6] = True
    assert layer(x, reset=reset)[1]["position"].tolist() == [3]


def test_starts_as_published():
    layer = RetNet(256, n_heads=1)
    q, k, v = layer.heads.proj.weight.split([256, 256, 512])
    for weight, gain in (
        (q, 2**-2.5),
        (k, 2**-2.5),
        (v, 2**-2.5),
        (layer.out.out_proj.weight, 0.5),
    ):
        bound = gain * (6 / sum(weight.shape)) ** 0.5
        assert weight.abs().max().item() == pytest.approx(bound, rel=0.01)


@pytest.mark.parametrize("law", ["forms_agree", "reset_and_packing", "gradients", "low_precision"])
@pytest.mark.parametrize(
    "options",
    [
        {"n_heads": 2, "n_kv_heads": 1, "d_conv": 3, "feature_map": "silu", "gate": "none"},
        {"d_conv": 3, "conv_bias": True, "gate": "sigmoid", "turns": "rotary"},
    ],
    ids=["shared keys", "convolution"],
)
def test_variants_keep_the_laws(law, options):
    check_property(law, partial(RetNet, **options))


@pytest.mark.unchecked
def test_bad_arguments():
    with pytest.raises(ArgumentError, match=r"d_key must be even, .* got d_key=3"):
        RetNet(6, d_key=3)
    with pytest.raises(ArgumentError, match=r"n_heads at most 19.*n_heads=20"):
        RetNet(40, n_heads=20)
