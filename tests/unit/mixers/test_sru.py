"""SRU against golden numbers and a loop over its equation, its start, its errors."""

from math import exp

import numpy as np
import pytest
import torch
from plain_loop import check_equal, lead_out
from scipy.stats import kstest

from linrnn.errors import LinrnnError
from linrnn.mixers import SRU
from linrnn.mixers.sru import sru
from linrnn.ops import cell_scan

GOLDEN = [0.3946265985, -0.0318212241, -0.7139725748, -0.5607966590, -0.2819656126]


def transcription(layer, x):
    """One step after another; both gates see the state before."""
    u = x @ layer.in_proj.weight.T
    z, f, r, *passing = u.split(layer.d_state, -1)
    passing = passing[0] if passing else (1 + 2 * exp(layer.highway_bias)) ** 0.5 * x
    v = torch.zeros_like(layer.bias) if layer.v is None else layer.v
    c, h = layer.c0 if layer.learn_initial else torch.zeros_like(z[0]), []
    for t in range(len(x)):
        forget = torch.sigmoid(f[t] + v[0] * c + layer.bias[0])
        reset = torch.sigmoid(r[t] + v[1] * c + layer.bias[1])
        c = forget * c + (1 - forget) * z[t]
        h.append(reset * c + (1 - reset) * passing[t])
    return lead_out(layer, torch.stack(h))


@pytest.mark.parametrize(
    "options",
    [{}, {"d_state": 5, "highway_bias": -2.0}, {"peepholes": False}, {"learn_initial": True}],
    ids=str,
)
def test_equals_a_transcription_split_and_whole_gradients_too(options):
    check_equal(SRU(3, dtype=torch.float64, **options), transcription)


@pytest.mark.parametrize("form", ["loop", "native", "newton"])
def test_golden_numbers(form):
    t = np.arange(1, 6)
    u, v = (torch.from_numpy(f(t)).view(1, 5, 1) for f in (np.cos, np.sin))
    given = dict(zip(("b_f", "b_r", "v_f", "v_r"), torch.tensor([0, 0, 0.5, -0.5]), strict=True))
    given = {name: value.double().view(1) for name, value in given.items()}
    y, _ = cell_scan(sru, z=v, f=u, r=u, x=u, **given, form=form)
    np.testing.assert_allclose(y.flatten().numpy(), GOLDEN, rtol=0, atol=1e-10)


def test_parameters_start_as_published():
    torch.manual_seed(0)
    layer = SRU(400, d_state=300, highway_bias=-1.0)
    bound = (3 / 400) ** 0.5
    sizes = (1, 0.5**0.5, 0.5**0.5, (1 + 2 * exp(-1)) ** 0.5)
    for rows, size in zip(layer.in_proj.weight.split(300), sizes, strict=True):
        spread = rows.detach().flatten().double() / (2 * bound * size) + 0.5
        assert kstest(spread[:20_000], "uniform").pvalue > 0.001
    assert 1.2 < layer.v.abs().max() <= 1.5**0.5
    assert not layer.bias[0].any()
    assert (layer.bias[1] == -1).all()


@pytest.mark.parametrize("highway_bias", [0.0, -2.0])
def test_output_starts_with_the_variance_of_the_input(highway_bias):
    """Alpha balances c, whose variance is about 1/3, against the input."""
    torch.manual_seed(0)
    x = torch.randn(8, 300, 256)
    y, plain = (SRU(256, highway_bias=highway_bias, rescale=r)(x)[0] for r in (True, False))
    assert y.var().item() == pytest.approx(1, abs=0.12)
    assert plain.var().item() < 0.85 * y.var().item()


BAD = [
    ({"highway_bias": float("nan")}, "SRU: highway_bias must be finite, got nan"),
    ({"gates": "us"}, "no SRU gates named 'us'"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("options", "message"), BAD)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        SRU(4, **options)
