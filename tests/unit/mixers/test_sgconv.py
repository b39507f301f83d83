from functools import partial

import pytest
import torch
import torch.nn.functional as F

from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.mixers import SGConv
from linrnn.testing import check_close, check_property


def oracle(layer, x):
    """PyTorch's interpolation and its correlation with the kernel turned round."""
    parts = [
        layer.decay**i * F.interpolate(w[None], scale_factor=2 ** max(i - 1, 0), mode="linear")[0]
        for i, w in enumerate(layer.w)
    ]
    K = torch.cat(parts, 1) / layer.norm
    taps = K[:, : layer.l_max].flip(1)[:, None]
    u = F.pad(x.transpose(1, 2), (layer.l_max - 1, 0))
    return F.conv1d(u, taps, groups=layer.d_model).transpose(1, 2) + layer.D * x


@pytest.mark.parametrize("l_max", [7, 8, 40, 64])
def test_sgconv_is_its_equation_whole_and_split(l_max):
    torch.manual_seed(0)
    layer = SGConv(3, d_kernel=8, l_max=l_max, decay=0.6, dtype=torch.float64)
    x = torch.randn(2, 50, 3, dtype=torch.float64, requires_grad=True)
    expected = oracle(layer, x)
    sources = [x, layer.w, layer.D]
    true = torch.autograd.grad(expected.sin().sum(), sources)
    for sizes in ((50,), (13, 1, 36)):
        state, ys = None, []
        for part in x.split(sizes, 1):
            y, state = layer(part, state)
            ys.append(y)
        y = torch.cat(ys, 1)
        check_close(f"y in {sizes}", y, expected, roundings=64)
        for got, t in zip(torch.autograd.grad(y.sin().sum(), sources), true, strict=True):
            check_close(f"gradient in {sizes}", got, t, roundings=256)


def test_kernel_has_norm_one_uncut_at_the_start_and_the_norm_stays():
    layer = SGConv(5, d_kernel=4, l_max=32)
    assert layer.w.shape == (4, 5, 4)  # 4, 4, 8 and 16 taps
    kernel = layer.kernel() - F.pad(layer.D.detach()[:, None], (0, 31))
    assert torch.allclose(kernel.norm(dim=1), torch.ones(5), atol=1e-6)
    before = layer.norm.clone()
    with torch.no_grad():
        layer.w *= 3
    layer(torch.ones(1, 4, 5))[0].sum().backward()
    assert torch.equal(layer.norm, before)
    assert "norm" in layer.state_dict()
    assert not layer.norm.requires_grad


def test_parts_fade_and_start_standard_normal():
    torch.manual_seed(0)
    layer = SGConv(256)
    assert layer.w.shape == (5, 256, 64)
    assert abs(float(layer.w.detach().mean())) < 0.01
    assert abs(float(layer.w.detach().std()) - 1) < 0.01
    sizes = layer.kernel().detach()[:, 1:].square().mean(0)
    far, near = sizes[512:].mean(), sizes[:63].mean()
    assert far < near / 2**6


@torch.no_grad()
def test_kept_kernel_follows_its_parameters():
    layer, x = SGConv(3, l_max=32), torch.randn(1, 5, 3)
    first, _ = layer(x)
    layer.w.data[0] += 1  # which no counter of versions sees
    second, _ = layer(x)
    assert not torch.equal(first, second)
    layer.w.data[0] -= 1
    check_close("as before", layer(x)[0], first, roundings=16)


@torch.no_grad()
def test_streaming_a_long_way_equals_the_whole():
    torch.manual_seed(0)
    layer = SGConv(2, d_kernel=16, l_max=500, dtype=torch.float64)
    x = torch.randn(1, 900, 2, dtype=torch.float64)
    whole, _ = layer(x)
    state, ys = layer.init_state(1), []
    for t in range(900):
        y, state = layer.step(x[:, t], state)
        ys.append(y)
    check_close("steps", torch.stack(ys, 1), whole, roundings=256)


@pytest.mark.unchecked
def test_state_of_a_graph_and_of_eager_mode_are_read_in_both():
    layer = SGConv(2, d_kernel=16, l_max=300, dtype=torch.float64)
    x = torch.randn(1, 900, 2, dtype=torch.float64)
    whole, _ = layer(x)
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    y, state = compiled(x[:, :300])
    z, state = layer(x[:, 300:360], state)
    assert any(block.shape[1] for block in state["far"])
    w, state = layer(x[:, 360:380], state)
    v, _ = compiled(x[:, 380:], state)
    check_close("y", torch.cat([y, z, w, v], 1), whole, roundings=256)


@pytest.mark.unchecked
def test_sgconv_words_its_errors():
    with pytest.raises(ArgumentError, match="SGConv: decay must be above 0 and at most 1, got 0"):
        SGConv(4, decay=0.0)
    with pytest.raises(ArgumentError, match="SGConv: decay_last must be above 0"):
        SGConv(4, decay_last=2.0)
    with pytest.raises(UnknownNameError, match="no SGConv form named 'block'"):
        SGConv(4, form="block")
    with pytest.raises(ArgumentError, match="SGConv: l_max must be an integer of at least 1"):
        SGConv(4, l_max=0)


def test_decays_of_channels_have_inverses_spread_evenly():
    """The parts of a kernel, which fall by the channel's decay before it is scaled."""
    layer = SGConv(3, d_kernel=4, l_max=32, decay=0.5, decay_last=0.25, dtype=torch.float64)
    torch.nn.init.ones_(layer.w)
    taps = layer._unscaled()
    for channel, decay in enumerate((1 / 2, 1 / 3, 1 / 4)):
        parts = taps[channel, [0, 4, 8, 16]]
        expected = torch.tensor([decay**i for i in range(4)], dtype=torch.float64)
        torch.testing.assert_close(parts, expected, rtol=1e-12, atol=0)


LONG = {"d_kernel": 16, "l_max": 300, "form": "blocks"}


@pytest.mark.parametrize("law", ["causal", "forms_agree", "reset_and_packing", "gradients"])
def test_laws_hold_in_blocks(law):
    check_property(law, partial(SGConv, **LONG))


@pytest.mark.parametrize("value", [1e6, float("nan"), float("inf")])
@pytest.mark.parametrize("at", [200, 700])
def test_in_blocks_a_step_changes_nothing_before_it_read_whole_or_in_pieces(value, at):
    """As one FFT, 1e6 changes outputs before it by hundreds of times what it is spread of."""
    layer, x = SGConv(2, **LONG), torch.randn(2, 900, 2)
    changed = x.clone()
    changed[1, at] = value
    for pieces in ([900], [150, 450, 300], [899, 1], [400, 130, 370]):
        outputs = []
        for each in (x, changed):
            state, ys = None, []
            for part in each.split(pieces, 1):
                y, state = layer(part, state)
                ys.append(y)
            outputs.append(torch.cat(ys, 1))
        assert torch.equal(outputs[0][:, :at], outputs[1][:, :at])
        assert torch.equal(outputs[0][0], outputs[1][0])


def test_in_blocks_it_equals_one_fft_of_all_with_any_split_and_reset():
    layer, blocks = SGConv(2, d_kernel=16, l_max=300), SGConv(2, **LONG)
    blocks.load_state_dict(layer.state_dict())
    layer, blocks = layer.double(), blocks.double()
    x = torch.randn(2, 900, 2, dtype=torch.float64)
    reset = torch.rand(2, 900) < 0.01
    for cut in (None, reset):
        expected = layer(x, reset=cut)[0]
        state, ys = None, []
        for part, now in zip(
            x.split([333, 100, 467], 1), reset.split([333, 100, 467], 1), strict=True
        ):
            y, state = blocks(part, state, reset=None if cut is None else now)
            ys.append(y)
        check_close("outputs", torch.cat(ys, 1), expected, roundings=256)
