"""Mamba-2 against the layer of transformers with the same weights; its start and errors."""

from functools import partial

import numpy as np
import pytest
import torch

from linrnn.errors import LinrnnError
from linrnn.mixers import Mamba2
from linrnn.testing import check_property

WIDTHS = {"d_state": 5, "d_head": 4, "n_groups": 2, "d_conv": 3}


def theirs(ours):
    """The layer of transformers with our weights."""
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Config, Mamba2Mixer

    config = Mamba2Config(
        hidden_size=ours.d_model,
        num_heads=ours.n_heads,
        head_dim=ours.d_head,
        state_size=ours.d_state,
        n_groups=ours.n_groups,
        conv_kernel=ours.d_conv,
        chunk_size=8,
        use_bias=ours.bias,
        use_conv_bias=ours.conv_bias,
    )
    layer = Mamba2Mixer(config, 0).eval()
    weights = ours.state_dict()
    weights["conv1d.weight"] = weights["conv1d.weight"][:, None]
    layer.load_state_dict(weights)  # the same names
    return layer


def scattered(layer):
    """Weights of order one, so that everything matters."""
    for parameter in (layer.D, layer.norm.weight):
        torch.nn.init.normal_(parameter)
    torch.nn.init.normal_(layer.dt_bias, std=2)
    return layer


@pytest.mark.parametrize("options", [WIDTHS, {**WIDTHS, "bias": True, "conv_bias": False}])
def test_equals_transformers_split_and_whole_gradients_too(options):
    ours = scattered(Mamba2(8, **options))
    other = theirs(ours)
    x = torch.randn(2, 27, 8, requires_grad=True)
    expected = other(x)
    weight = torch.randn_like(expected)
    sources = dict(other.named_parameters())
    want = torch.autograd.grad((expected * weight).sum(), (x, *sources.values()))

    first, state = ours(x[:, :10])
    second, last = ours(x[:, 10:], state)
    assert last["memory"].shape == (2, 4, 5, 4)
    y = torch.cat([first, second], 1)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours(x)[0], expected, rtol=1e-4, atol=1e-5)
    mine = dict(ours.named_parameters())
    got = torch.autograd.grad((y * weight).sum(), (x, *(mine[n] for n in sources)))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a.view(b.shape), b, rtol=1e-3, atol=2e-4)


def test_one_channel_one_mode_by_hand():
    """Everything but the recurrence switched off: S = 1/2 S + dt, read by C = 1."""
    layer = Mamba2(1, d_state=1, expand=1, d_conv=1, dtype=torch.float64)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
        layer.conv1d.bias.fill_(1.2784645427610737)  # of which SiLU is 1
        layer.dt_bias.fill_(0.5413248546129181)  # of which softplus is 1
        layer.A_log.fill_(torch.tensor(2.0).log().log())
        layer.in_proj.weight[0] = 1.0  # z = x
        layer.norm.weight.fill_(1)
        layer.out_proj.weight.fill_(1)
        layer.norm.eps = 1e30  # y = o SiLU(z) / 1e15
        y, state = layer(torch.full((1, 4, 1), 1.2784645427610737, dtype=torch.float64))
    want = torch.tensor([1, 1.5, 1.75, 1.875], dtype=torch.float64)
    torch.testing.assert_close(y.flatten() * 1e15, want, rtol=1e-7, atol=0)
    assert state["memory"].item() == pytest.approx(1.875)


def test_starts_as_published():
    layer = Mamba2(512)
    assert (layer.n_heads, layer.d_head, layer.d_state) == (16, 64, 128)
    assert layer.in_proj.weight.shape == (2 * 1024 + 2 * 128 + 16, 512)
    A, dt = layer.A_log.exp(), torch.nn.functional.softplus(layer.dt_bias)
    assert 1 <= A.min() < 6
    assert 11 < A.max() <= 16
    assert 1e-3 <= dt.min() < 5e-3
    assert 2e-2 < dt.max() <= 0.1
    assert layer.D.eq(1).all()
    assert layer.norm.weight.eq(1).all()


BAD = [
    ({"d_head": 5}, r"d_head must divide d_inner=16, .* got d_head=5"),
    ({"d_head": 4, "n_groups": 3}, r"n_groups the heads, .* n_groups=3"),
    ({"dt_min": 1.0}, r"dt_min must be at most dt_max, .* dt_min=1.0"),
    ({"d_ssm": 20, "d_head": 4}, "d_ssm must be at most d_inner=16, got 20"),
    ({"d_ssm": 8, "d_head": 3}, "d_head must divide d_ssm=8"),
    ({"A_min": 2.0, "A_max": 1.0}, "A_min must be at most A_max, got A_min=2.0, A_max=1.0"),
    ({"A_min": 0.0}, "A_min must be positive and finite, got 0.0"),
    ({"dt_low": 0.5, "dt_high": 0.1}, "0 <= dt_low <= dt_high, got dt_low=0.5, dt_high=0.1"),
    ({"dt_low": -1.0}, "0 <= dt_low <= dt_high, got dt_low=-1.0, dt_high=None"),
    ({"rmsnorm": False, "norm_before_gate": True}, "norm_before_gate must be False for rmsnorm"),
    ({"dt_floor": 0.0}, "Mamba2: dt_floor must be positive and finite, got 0.0"),
    ({"d_state": 0}, "Mamba2: d_state must be an integer of at least 1, got 0"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("options", "message"), BAD)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        Mamba2(8, **options)


CHOSEN = [
    {"norm_before_gate": True},
    {"rmsnorm": False, "D_has_hdim": True},
    {"d_ssm": 8, "dt_low": 0.3, "dt_high": 1.5},
    {"d_inner": 12, "d_ssm": 8, "D_has_hdim": True, "norm_before_gate": True, "bias": True},
]


def numpy_mamba2(layer, x):
    """One step of one sequence at a time in float64, with the rows of W_in in the public order."""
    p = {n: v.detach().double().numpy() for n, v in layer.named_parameters()}
    G, N, S, P, H = layer.n_groups, layer.d_state, layer.d_ssm, layer.d_head, layer.n_heads
    linear = layer.d_inner - S
    high = np.inf if layer.dt_high is None else layer.dt_high
    y = np.empty_like(x)

    def silu(v):
        return v / (1 + np.exp(-v))

    def normed(v):
        groups = v.reshape(G, -1)
        root = np.sqrt(np.square(groups).mean(-1, keepdims=True) + layer.norm_eps)
        return (groups / root).ravel() * p["norm.weight"]

    for i in range(len(x)):
        window = [np.zeros(S + 2 * G * N)] * layer.d_conv
        M = np.zeros((H, N, P))
        for t in range(x.shape[1]):
            row = p["in_proj.weight"] @ x[i, t] + p.get("in_proj.bias", 0)
            cuts = np.cumsum([linear, linear, S, S + 2 * G * N])
            z_0, x_0, z, u, dt = np.split(row, cuts)
            window = [*window[1:], u]
            u = sum(p["conv1d.weight"][:, j] * w for j, w in enumerate(window))
            s, B, C = np.split(silu(u + p["conv1d.bias"]), [S, S + G * N])
            s, B, C = s.reshape(H, P), B.reshape(G, N), C.reshape(G, N)
            dt = np.clip(np.log1p(np.exp(dt + p["dt_bias"])), layer.dt_low, high)
            o = np.empty((H, P))
            D = p["D"].reshape(H, -1)
            for h in range(H):
                g = h * G // H
                M[h] = np.exp(-dt[h] * np.exp(p["A_log"][h])) * M[h]
                M[h] += dt[h] * np.outer(B[g], s[h])
                o[h] = C[g] @ M[h] + D[h] * s[h]
            o = o.ravel()
            if not layer.rmsnorm:
                o = o * silu(z)
            elif layer.norm_before_gate:
                o = normed(o) * silu(z)
            else:
                o = normed(o * silu(z))
            o = np.concatenate([silu(z_0) * x_0, o])
            y[i, t] = p["out_proj.weight"] @ o + p.get("out_proj.bias", 0)
    return y


@pytest.mark.parametrize("options", [{}, *CHOSEN])
def test_equals_a_transcription_in_numpy_with_every_option(options):
    layer = Mamba2(8, **WIDTHS, **options, dtype=torch.float64)
    for name in ("D", "norm.weight", "dt_bias"):
        if name in dict(layer.named_parameters()):
            torch.nn.init.normal_(layer.get_parameter(name))
    x = torch.randn(2, 19, 8, dtype=torch.float64)
    got = layer(x)[0].detach().numpy()
    np.testing.assert_allclose(got, numpy_mamba2(layer, x.numpy()), rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("options", CHOSEN)
@pytest.mark.parametrize("law", ["forms_agree", "reset_and_packing", "gradients", "low_precision"])
def test_laws_hold_with_every_option(options, law):
    check_property(law, partial(Mamba2, d_head=2, n_groups=2, d_state=3, **options))


def test_decays_start_in_the_given_range():
    A = Mamba2(64, d_head=1, A_min=0.5, A_max=0.75).A_log.exp()
    assert 0.5 <= A.min() < 0.55
    assert 0.7 < A.max() <= 0.75


def test_a_step_size_at_a_bound_has_no_gradient():
    layer = Mamba2(8, **WIDTHS, dt_low=0.5, dt_high=0.6)
    with torch.no_grad():
        layer.in_proj.weight[-layer.n_heads :] = 0  # dt is that of the bias alone
        layer.dt_bias.copy_(torch.tensor([-5.0, 0.25, -0.43, -0.3]))  # 2nd: 0.83, 3rd: 0.501
    layer(torch.randn(2, 9, 8))[0].sum().backward()
    assert (layer.dt_bias.grad != 0).tolist() == [False, False, True, True]
