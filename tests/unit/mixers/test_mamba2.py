"""Mamba-2 against the layer of transformers with the same weights; its start and errors."""

import pytest
import torch

from linrnn.errors import LinrnnError
from linrnn.mixers import Mamba2

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
    ({"dt_floor": 0.0}, "Mamba2: dt_floor must be positive and finite, got 0.0"),
    ({"d_state": 0}, "Mamba2: d_state must be an integer of at least 1, got 0"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("options", "message"), BAD)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        Mamba2(8, **options)
