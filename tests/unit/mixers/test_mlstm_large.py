"""The mLSTM of xLSTM 7B against the layer of transformers with the same weights."""

from functools import partial

import pytest
import torch

from linrnn.errors import LinrnnError
from linrnn.mixers import MLSTMLarge
from linrnn.testing import check_property


def theirs(ours):
    """The layer of transformers with our weights: chunks of 16 steps, and then single ones."""
    modeling = pytest.importorskip("transformers.models.xlstm.modeling_xlstm")
    config = modeling.xLSTMConfig(
        hidden_size=ours.d_model,
        num_heads=ours.n_heads,
        qk_dim_factor=ours.n_heads * ours.d_key / ours.d_model,
        v_dim_factor=ours.n_heads * ours.d_value / ours.d_model,
        chunk_size=16,
        autocast_kernel_dtype="float32",
        mode="inference",
    )
    layer = modeling.xLSTMLayer(config)
    layer.load_state_dict(ours.state_dict())  # the same names
    return layer


def test_equals_transformers_split_and_whole_gradients_too():
    ours = MLSTMLarge(8, n_heads=2, d_key=2, d_value=4)
    for parameter in ours.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    other, x = theirs(ours), torch.randn(2, 37, 8, requires_grad=True)
    expected, (S, n, m) = other(x)
    first, state = ours(x[:, :9])
    second, last = ours(x[:, 9:], state)
    y = torch.cat([first, second], 1)
    torch.testing.assert_close(y, expected, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(ours(x)[0], y, rtol=1e-4, atol=1e-5)
    memory = torch.cat([S, n[..., None]], -1)
    torch.testing.assert_close(last["memory"], memory, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(last["m"], m.view(2, 2), rtol=1e-5, atol=1e-5)
    weight, mine = torch.randn_like(y), dict(ours.named_parameters())
    names, parameters = zip(*other.named_parameters(), strict=True)
    want = torch.autograd.grad((expected * weight).sum(), (x, *parameters))
    got = torch.autograd.grad((y * weight).sum(), (x, *(mine[name] for name in names)))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-3 * b.abs().max().item())


def test_starts_as_published():
    layer = MLSTMLarge(256)
    assert (layer.n_heads, layer.d_key, layer.d_value) == (8, 16, 32)
    assert layer.q.weight.std().item() == pytest.approx((0.4 / 256) ** 0.5, rel=0.03)
    assert layer.out_proj.weight.std().item() == pytest.approx(1 / 8, rel=0.02)
    assert layer.igate_preact.bias.eq(-10).all()
    torch.testing.assert_close(layer.fgate_preact.bias, torch.linspace(3, 6, 8))
    for gate in (layer.igate_preact, layer.fgate_preact, layer.ogate_preact):
        assert not gate.weight.any()


@pytest.mark.parametrize("law", ["forms_agree", "reset_and_packing", "gradients", "low_precision"])
@pytest.mark.parametrize(
    "options",
    [
        {"input_gate": "sigmoid"},
        {"input_gate": "sigmoid", "normalize": False},
    ],
    ids=["normalized", "plain"],
)
def test_variants_keep_the_laws(law, options):
    check_property(law, partial(MLSTMLarge, **options))


BAD = [
    ({"n_heads": 0}, "MLSTMLarge: n_heads must be an integer of at least 1, got 0"),
    ({"gate_soft_cap": 0}, "MLSTMLarge: gate_soft_cap must be positive and finite, got 0"),
    ({"n_heads": 8}, "at least 2 channels, whose mean is subtracted, got d_value=1"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("options", "message"), BAD)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        MLSTMLarge(8, **options)
