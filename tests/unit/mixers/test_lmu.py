"""The Legendre memory unit against its equation, published numbers and what it is to delay."""

from functools import partial

import numpy as np
import pytest
import torch
from scipy.signal import cont2discrete
from scipy.special import eval_legendre
from scipy.stats import kstest
from transcribed import check, weights

from linrnn.errors import LinrnnError
from linrnn.mixers import LMU
from linrnn.testing import check_property

F64 = {"dtype": torch.float64}


def system(order, theta, rule, dt=1):
    """Written out as in the paper, in steps by SciPy."""
    i, j = np.arange(order)[:, None], np.arange(order)
    A = (2 * i + 1) / theta * np.where(i < j, -1.0, (-1.0) ** (i - j + 1))
    B = (2 * i + 1) * (-1.0) ** i / theta
    return cont2discrete((A, B, B.T, 0), dt, {"euler": "euler"}.get(rule, rule))[:2]


@pytest.mark.parametrize("options", [{}, {"learn_theta": True}, {"discretisation": "euler"}])
@pytest.mark.parametrize("recurrent", [True, False])
def test_equals_a_transcription(recurrent, options):
    torch.manual_seed(0)
    layer = LMU(
        3, d_state=4, d_memory=2, order=5, theta=23.0, recurrent=recurrent, **options, **F64
    )
    for p in layer.parameters():
        if p.ndim:  # not the length of a step
            torch.nn.init.normal_(p, std=0.4)
    p = weights(layer)

    def step(states, x, dt):
        a, b = system(5, 23.0, options.get("discretisation", "zoh"), dt)
        h, m = states[0], states[1].reshape(2, 5)
        w = p["E_x"] @ x
        if recurrent:
            w = w + p["E_h"] @ h + p["E_m"] @ m.reshape(-1)
        m = m @ a.T + w[:, None] * b.T
        v = p["W_x"] @ x + p["W_m"] @ m.reshape(-1)
        h = np.tanh(v + p["W_h"] @ h if recurrent else v)
        return p["out_proj.weight"] @ h + p["out_proj.bias"], [h, m.reshape(-1)]

    def begun(states, x, dt):
        return step([np.zeros(4), states[1]] if states[0].shape != (4,) else states, x, dt)

    check(layer, begun, 2, width=10)


def test_steps_are_the_published_numbers():
    a, b = LMU(1, order=3, theta=4.0, **F64).memory()
    expected = [
        [0.7633232082, -0.2053030867, -0.0647040050],
        [0.6159092601, 0.2121179532, -0.2784714641],
        [-0.3235200252, 0.4641191068, 0.1670693921],
    ]
    np.testing.assert_allclose(a, expected, atol=1e-10)
    np.testing.assert_allclose(b, [0.2366767918, -0.6159092601, 0.3235200252], atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_keep_their_digits_through_half_precision(dtype):
    """They are found anew from double precision."""
    layer = LMU(2, order=6, theta=30.0, dtype=dtype)
    kept = [x.clone() for x in layer.memory()]
    again = layer.to(torch.bfloat16).to(dtype).memory()
    assert all(map(torch.equal, again, kept))
    assert LMU(2).to(torch.bfloat16).memory()[0].dtype == torch.float32


def test_built_without_memory_it_is_filled_from_a_checkpoint():
    layer = LMU(2, order=6, theta=30.0)
    with torch.device("meta"):
        bare = LMU(2, order=6, theta=30.0)
    bare.load_state_dict(layer.state_dict(), assign=True)
    x = torch.randn(1, 9, 2)
    torch.testing.assert_close(bare(x), layer(x), rtol=0, atol=0)
    torch.testing.assert_close(bare.double()(x.double()), layer.double()(x.double()))


def test_memory_delays():
    """A slow sine is read back from every part of the window."""
    layer = LMU(1, d_state=1, order=12, theta=200.0, recurrent=False, **F64)
    with torch.no_grad():
        layer.E_x.fill_(1.0)
    rate, end = 2 * np.pi / 150, 999
    w = torch.sin(rate * torch.arange(end + 1, dtype=torch.float64))
    m = layer(w[None, :, None])[1]["m"][0, 0].detach().numpy()
    for r in (0.0, 0.25, 0.5, 0.8, 1.0):
        got = sum(m[i] * eval_legendre(i, 2 * r - 1) for i in range(12))
        # an input is held for a step: what is remembered is the signal half a step ago
        assert got == pytest.approx(np.sin(rate * (end + 0.5 - 200 * r)), abs=2e-3)


def test_initial_parameters_are_the_published_ones():
    torch.manual_seed(0)
    layer = LMU(30, d_state=40, d_memory=20, order=3)
    for E in (layer.E_x, layer.E_h):
        u = E.detach().flatten() / (3 / E.shape[1]) ** 0.5
        assert kstest((u + 1) / 2, "uniform").pvalue > 1e-3
    assert not layer.E_m.any()
    for W in (layer.W_x, layer.W_h, layer.W_m):
        z = W.detach().flatten() / (2 / sum(W.shape)) ** 0.5
        assert kstest(z, "norm").pvalue > 1e-3


@pytest.mark.parametrize("options", [{"recurrent": False}, {"learn_theta": True}])
def test_keeps_the_laws_of_numbers_with_other_options(options):
    for law in ("forms_agree", "causal", "reset_and_packing", "gradients", "trains"):
        check_property(law, partial(LMU, order=4, theta=20.0, **options))


@pytest.mark.parametrize("recurrent", [True, False])
def test_rows_begin_anew_where_their_own_mask_says(recurrent):
    layer = LMU(3, d_memory=2, order=4, theta=9.0, recurrent=recurrent, **F64)
    x, reset = torch.randn(2, 8, 3, **F64), torch.zeros(2, 8, dtype=torch.bool)
    reset[0, 5] = reset[1, 2] = True
    y, _ = layer(x, reset=reset)
    for row, cut in ((0, 5), (1, 2)):
        alone = [layer(part)[0] for part in x[row : row + 1].split([cut, 8 - cut], 1)]
        torch.testing.assert_close(y[row : row + 1], torch.cat(alone, 1))


def test_memory_alone_is_parallel():
    assert LMU(4, recurrent=False).cost == "parallel"
    assert LMU(4).cost == "sequential"


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"theta": -1.0}, "theta must be positive"),
        ({"discretisation": "bilinear"}, "discretisation"),
        ({"discretisation": "euler", "theta": 64.0}, r"more than 4 \* order = 64 .* got 64.0. Use"),
        ({"order": 0}, "order must be an integer of at least 1"),
    ],
)
def test_errors(options, text):
    with pytest.raises(LinrnnError, match=text):
        LMU(4, **options)
