"""RG-LRU against transformers' RecurrentGemma, its initial statistics, its gain and its slope."""

import pytest
import torch
from scipy.stats import kstest

from linrnn.errors import ArgumentError
from linrnn.mixers import RGLRU
from linrnn.nn import unit_gain


def make(d_model=6, dtype=torch.float64, **options):
    torch.manual_seed(0)
    layer = RGLRU(d_model, dtype=dtype, **options)
    with torch.no_grad():
        for p in layer.parameters():
            if p.ndim == 1 or p is layer.r_gate.bias or p is layer.i_gate.bias:
                p.add_(torch.randn_like(p))
    return layer


def published(layer):
    """The block of transformers with the same weights."""
    module = pytest.importorskip("transformers.models.recurrent_gemma.modeling_recurrent_gemma")
    config = module.RecurrentGemmaConfig(
        hidden_size=layer.d_model,
        lru_width=layer.d_inner,
        num_attention_heads=layer.n_heads,
        conv1d_width=layer.d_conv,
        hidden_activation="gelu_pytorch_tanh",
    )
    block = module.RecurrentGemmaRecurrentBlock(config, 0).to(layer.Lambda.dtype)
    theirs = {
        "linear_y": layer.y_proj,
        "linear_x": layer.x_proj,
        "linear_out": layer.out_proj,
    }
    state = {
        f"{name}.{kind}": getattr(linear, kind)
        for name, linear in theirs.items()
        for kind in ("weight", "bias")
    }
    state |= {
        "conv_1d.weight": layer.conv1d.weight[:, None],
        "conv_1d.bias": layer.conv1d.bias,
        "rg_lru.recurrent_param": layer.Lambda,
        "rg_lru.input_gate_weight": layer.i_gate.weight,
        "rg_lru.input_gate_bias": layer.i_gate.bias,
        "rg_lru.recurrent_gate_weight": layer.r_gate.weight,
        "rg_lru.recurrent_gate_bias": layer.r_gate.bias,
    }
    block.load_state_dict(state)
    return block


@pytest.mark.parametrize("heads", [1, 3])
def test_equals_the_recurrent_block_of_transformers_with_gradients(heads):
    layer = make(n_heads=heads, dtype=torch.float32)
    block = published(layer)
    x = torch.randn(2, 30, 6, requires_grad=True)
    positions = torch.arange(30).expand(2, -1)
    theirs, _ = block(x, positions, None, use_cache=False)
    y, _ = layer(x)
    torch.testing.assert_close(y, theirs, rtol=1e-5, atol=1e-6)
    grads = [torch.autograd.grad(out.square().sum(), x)[0] for out in (y, theirs)]
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-6)


def test_documents_in_a_row_equal_transformers_positions_that_begin_anew():
    layer = make(d_conv=1, dtype=torch.float32)  # their convolution reaches over documents
    x = torch.randn(1, 12, 6)
    begins = torch.zeros(1, 12, dtype=torch.bool)
    begins[0, 5] = True
    positions = torch.cat([torch.arange(5), torch.arange(7)])[None]
    theirs, _ = published(layer)(x, positions, None, use_cache=False)
    torch.testing.assert_close(layer(x, reset=begins)[0], theirs, rtol=1e-5, atol=1e-6)


def test_decays_start_on_the_ring_and_gates_are_open_by_half():
    layer = RGLRU(4096)
    a = torch.exp(-torch.nn.functional.softplus(layer.Lambda)).detach().double()
    assert kstest((a**2 - 0.81) / (0.999**2 - 0.81), "uniform").pvalue > 0.01
    assert not layer.r_gate.bias.any()
    assert layer.r_gate.weight.std().item() == pytest.approx(4096**-0.5, rel=0.01)
    assert layer.conv1d.weight.std().item() == pytest.approx(0.05, rel=0.05)


def test_white_input_gives_a_state_of_its_own_variance():
    log_a = torch.tensor([-1e-3, -0.1, -2.0], dtype=torch.float64)
    gain = unit_gain(log_a.expm1())
    torch.testing.assert_close(gain**2 / (1 - torch.exp(2 * log_a)), torch.ones_like(gain))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gain_and_slope_are_right_where_the_decay_rounds_to_one(dtype):
    z = torch.tensor([-40.0, -25.0, -12.0, -3.0, 3.0], dtype=dtype, requires_grad=True)

    def gain(z):
        return unit_gain(torch.expm1(-0.3 * z.sigmoid()))

    (slope,) = torch.autograd.grad(gain(z).sum(), z)
    wide = z.detach().double().requires_grad_()
    exact = torch.sqrt(-torch.expm1(-0.6 * wide.sigmoid()))
    (wanted,) = torch.autograd.grad(exact.sum(), wide)
    torch.testing.assert_close(gain(z).double(), exact, rtol=1e-6, atol=0)
    torch.testing.assert_close(slope.double(), wanted, rtol=1e-5, atol=0)


def test_a_gate_that_is_shut_as_far_as_numbers_go_has_a_slope():
    layer = make(dtype=torch.float32)
    with torch.no_grad():
        layer.Lambda[:2] = -300.0  # a decay of 1 exactly, whatever the gate
        layer.r_gate.bias[0, 2:] = -300.0
    y, _ = layer(torch.randn(2, 9, 6))
    grads = torch.autograd.grad(y.square().sum(), layer.parameters())
    assert all(g.isfinite().all() for g in grads)


@pytest.mark.unchecked
def test_blocks_must_divide_the_width():
    with pytest.raises(ArgumentError, match="blocks must divide the width of 6, got 4"):
        RGLRU(6, n_heads=4)
