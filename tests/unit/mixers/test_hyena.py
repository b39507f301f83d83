from functools import partial
from math import log, pi

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from linrnn.errors import ArgumentError
from linrnn.mixers import Hyena
from linrnn.testing import check_close, check_property


def filters(layer):
    """The published program's filters, (filters, channels, l_max), in NumPy."""
    p = {n: x.detach().double().numpy() for n, x in layer.named_parameters()}
    L, bands = layer.l_max, (layer.d_position - 1) // 2
    t = np.linspace(0, 1, L)
    w = 2 * pi * np.linspace(0, L - 1, L) / L
    f = np.linspace(1e-4, bands - 1, bands)
    z = np.exp(-1j * f * w[:, None])
    h = np.concatenate([t[:, None], z.real, z.imag], 1)
    for i in range(3):
        h = np.sin(p["freq"] * (h @ p[f"ffn.{i}.weight"].T + p[f"ffn.{i}.bias"]))
    h = h @ p["ffn.3.weight"].T
    decays = np.linspace(log(0.01) / 1.5, log(0.01) / 0.3, h.shape[1])
    h = h * (np.exp(-t[:, None] * abs(decays)) + layer.shift)
    return h.reshape(L, layer.d_model, -1).transpose(2, 1, 0)


def toeplitz(kernel, bias, z):
    """The definition, as a sum over all pairs of steps; z (B, T, C)."""
    T, L = z.shape[1], kernel.shape[1]
    lag = np.arange(T)[:, None] - np.arange(T)
    matrix = np.where((lag >= 0) & (lag < L), kernel[:, lag.clip(0, L - 1)], 0)
    return np.einsum("cts,bsc->btc", matrix, z) + bias * z


def oracle(layer, x):
    p = {n: v.detach().numpy() for n, v in layer.named_parameters()}
    u = x.detach().numpy() @ p["in_proj.weight"].T + p["in_proj.bias"]
    padded = np.pad(u, ((0, 0), (layer.d_short - 1, 0), (0, 0)))
    u = p["short.bias"] + sum(
        padded[:, j : j + x.shape[1]] * p["short.weight"][:, j] for j in range(layer.d_short)
    )
    *gates, z = np.split(u, layer.order + 1, -1)
    kernels, bias = filters(layer), p["bias"].reshape(layer.d_model, -1).T
    if layer.ordering == "code":
        for n, gate in enumerate(reversed(gates[1:])):
            z = toeplitz(kernels[n], bias[n], gate * z)
        z = gates[0] * z
    else:
        for n, gate in enumerate(gates):
            z = gate * toeplitz(kernels[n], bias[n], z)
    return torch.from_numpy(z @ p["out_proj.weight"].T + p["out_proj.bias"])


@pytest.mark.parametrize("ordering", ["code", "paper"])
@pytest.mark.parametrize(("order", "l_max", "d_position"), [(2, 64, 3), (3, 20, 5)])
def test_hyena_is_its_equation_whole_and_split(ordering, order, l_max, d_position):
    torch.manual_seed(0)
    options = {"ordering": ordering, "order": order, "l_max": l_max, "d_position": d_position}
    layer = Hyena(3, d_filter=8, frequency=5.0, shift=0.05, dtype=torch.float64, **options)
    x = torch.randn(2, 33, 3, dtype=torch.float64)
    expected = oracle(layer, x)
    for sizes in ((33,), (7, 1, 25), (1,) * 33):
        state, ys = None, []
        for part in x.split(sizes, 1):
            y, state = layer(part, state)
            ys.append(y)
        check_close(f"in {sizes}", torch.cat(ys, 1), expected, roundings=2**10)


@pytest.mark.parametrize("ordering", ["code", "paper"])
def test_gradients_of_long_pieces_are_those_of_the_whole(ordering):
    torch.manual_seed(0)
    layer = Hyena(2, l_max=280, ordering=ordering, d_filter=4, dtype=torch.float64)
    x = torch.randn(1, 300, 2, dtype=torch.float64, requires_grad=True)
    ys, state = [], None
    for part in x.split((128, 72, 100), 1):
        y, state = layer(part, state)
        ys.append(y)
    sources = [x, *layer.parameters()]
    whole, pieces = layer(x)[0], torch.cat(ys, 1)
    check_close("y", pieces, whole, roundings=2**10)
    got, true = (torch.autograd.grad(v.sin().sum(), sources) for v in (pieces, whole))
    for g, t in zip(got, true, strict=True):
        check_close("gradient", g, t, roundings=2**12)


def test_gates_of_one_leave_the_composed_convolution():
    torch.manual_seed(0)
    layer = Hyena(2, order=3, l_max=16, dtype=torch.float64)
    with torch.no_grad():
        for part in (layer.in_proj, layer.short):
            part.weight.zero_()
            part.bias.zero_()
        layer.in_proj.weight[6:] = torch.eye(2)
        layer.in_proj.bias[:6] = 1
        layer.short.weight[:, -1] = 1
        layer.out_proj.weight.copy_(torch.eye(2))
        layer.out_proj.bias.zero_()
    x = torch.randn(1, 16, 2, dtype=torch.float64, requires_grad=True)
    z = x.transpose(1, 2)
    for kernel in layer.kernels():
        z = F.conv1d(F.pad(z, (15, 0)), kernel.flip(1)[:, None], groups=2)
    y, _ = layer(x)
    check_close("y", y, z.transpose(1, 2), roundings=64)
    sources = [x, layer.bias, layer.freq, *layer.ffn.parameters()]
    got, true = (torch.autograd.grad(v.sin().sum(), sources) for v in (y, z))
    for g, t in zip(got, true, strict=True):
        check_close("gradient", g, t, roundings=2**10)


def heads_by_loops(layer, kernels, x):
    """One head, one pair of channels and one step after another; kernels (heads, taps)."""
    p = {n: v.detach().numpy() for n, v in layer.named_parameters()}
    u = x.numpy() @ p["in_proj.weight"].T + p["in_proj.bias"]
    padded = np.pad(u, ((0, 0), (layer.d_short - 1, 0), (0, 0)))
    u = p["short.bias"] + sum(
        padded[:, j : j + x.shape[1]] * p["short.weight"][:, j] for j in range(layer.d_short)
    )
    q, k, v = np.split(u, 3, -1)
    o, width = np.zeros_like(q), layer.d_model // layer.n_heads
    for c, j in np.ndindex(layer.n_heads, width):
        for i, t in np.ndindex(width, x.shape[1]):
            products = k[:, : t + 1, c * width + i] * v[:, : t + 1, c * width + j]
            weights = kernels[c][: t + 1][::-1]  # of the newest step first
            read = (products[:, -len(weights) :] * weights).sum(1)
            o[:, t, c * width + j] += q[:, t, c * width + i] * read
    return torch.from_numpy(o @ p["out_proj.weight"].T + p["out_proj.bias"])


@pytest.mark.parametrize("l_max", [20, 40])
def test_heads_share_a_filter_for_all_products_of_their_channels(l_max):
    torch.manual_seed(0)
    layer = Hyena(6, n_heads=2, l_max=l_max, d_filter=8, dtype=torch.float64)
    assert layer.kernels().shape == (1, 2, l_max)
    x = torch.randn(2, 33, 6, dtype=torch.float64)
    expected = heads_by_loops(layer, layer.kernels()[0].detach().numpy(), x)
    for sizes in ((33,), (7, 1, 25), (1,) * 33):
        state, ys = None, []
        for part in x.split(sizes, 1):
            y, state = layer(part, state)
            ys.append(y)
        check_close(f"in {sizes}", torch.cat(ys, 1), expected, roundings=2**10)


def test_as_many_heads_as_channels_are_the_layer_without():
    plain, heads = Hyena(4, l_max=20), Hyena(4, n_heads=4, l_max=20)
    heads.load_state_dict(plain.state_dict())
    x = torch.randn(2, 30, 4)
    check_close("y", heads(x)[0], plain(x)[0], roundings=64)


def test_filters_depend_on_l_max_and_not_on_what_is_read():
    layer = Hyena(4, l_max=100)
    assert layer.kernels().shape == (1, 4, 100)
    check_close("the first taps", layer.kernels(10), layer.kernels()[..., :10], roundings=16)
    y, _ = layer(torch.randn(1, 300, 4))
    assert y.shape == (1, 300, 4)
    assert len(Hyena(4, order=3, ordering="paper").state_spec()["long"]) == 3


def test_initial_statistics():
    torch.manual_seed(0)
    layer = Hyena(256, frequency=14.0)
    assert (layer.freq == 14).all()
    assert abs(float(layer.bias.detach().std()) - 1) < 0.15
    assert layer.ffn[1].weight.abs().max() <= 1 / 8
    assert layer.short.weight.abs().max() <= 3**-0.5
    assert layer.ffn[3].bias is None


@pytest.mark.unchecked
def test_hyena_words_its_errors():
    with pytest.raises(ArgumentError, match="Hyena: order must be at least 2 for ordering='code'"):
        Hyena(4, order=1)
    with pytest.raises(ArgumentError, match="Hyena: d_position must be odd and at least 3, got 4"):
        Hyena(4, d_position=4)
    with pytest.raises(ArgumentError, match="Hyena: n_heads must divide d_model=4, got 3"):
        Hyena(4, n_heads=3)
    with pytest.raises(ArgumentError, match="Hyena: order must be 2 and ordering 'code' with n_h"):
        Hyena(4, n_heads=2, order=3)


@pytest.mark.parametrize("law", ["causal", "forms_agree", "reset_and_packing"])
@pytest.mark.parametrize("ordering", ["code", "paper"])
def test_laws_hold_in_blocks(law, ordering):
    check_property(law, partial(Hyena, form="blocks", l_max=50, ordering=ordering))


@pytest.mark.parametrize("law", ["causal", "forms_agree", "reset_and_packing", "gradients"])
def test_laws_hold_with_heads(law):
    check_property(law, partial(Hyena, n_heads=2, l_max=50))
