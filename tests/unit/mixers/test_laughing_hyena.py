from functools import partial

import numpy as np
import pytest
import torch

from linrnn.distillation import distill
from linrnn.errors import ArgumentError
from linrnn.mixers import Hyena, LaughingHyena
from linrnn.testing import check_close, check_property


def oracle(layer, x):
    """The equation in NumPy: gates, and each filter as a loop over its recurrence."""
    p = {n: v.detach().numpy() for n, v in layer.named_parameters()}
    u = x.detach().numpy() @ p["in_proj.weight"].T + p["in_proj.bias"]
    padded = np.pad(u, ((0, 0), (layer.d_short - 1, 0), (0, 0)))
    u = p["short.bias"] + sum(
        padded[:, j : j + x.shape[1]] * p["short.weight"][:, j] for j in range(layer.d_short)
    )
    *gates, z = np.split(u, layer.order + 1, -1)
    if layer.ordering == "code":
        for n, gate in enumerate(reversed(gates[1:])):
            z = recurrence(p, n, gate * z)
        z = gates[0] * z
    else:
        for n, gate in enumerate(gates):
            z = gate * recurrence(p, n, z)
    return torch.from_numpy(z @ p["out_proj.weight"].T + p["out_proj.bias"])


def recurrence(p, n, z):
    nu_log, theta, re, im, D = (
        p[f"modal.{n}.{k}"] for k in ("nu_log", "theta", "R_re", "R_im", "D")
    )
    lam, s, ys = np.exp(-np.exp(nu_log) + 1j * theta), 0, []
    for z_t in z.swapaxes(0, 1):
        ys.append(np.real((re + 1j * im) * s).sum(-1) + D * z_t)
        s = lam * s + z_t[..., None]
    return np.stack(ys, 1)


@pytest.mark.parametrize("ordering", ["code", "paper"])
@pytest.mark.parametrize("order", [2, 3])
def test_laughing_hyena_is_its_equation_whole_and_split(ordering, order):
    torch.manual_seed(0)
    layer = LaughingHyena(
        3, order=order, ordering=ordering, d_state=4, l_max=20, dtype=torch.float64
    )
    x = torch.randn(2, 33, 3, dtype=torch.float64)
    expected = oracle(layer, x)
    for sizes in ((33,), (7, 1, 25), (1,) * 33):
        state, ys = None, []
        for part in x.split(sizes, 1):
            y, state = layer(part, state)
            ys.append(y)
        check_close(f"in {sizes}", torch.cat(ys, 1), expected, roundings=2**10)


@pytest.mark.parametrize("ordering", ["code", "paper"])
def test_it_is_the_hyena_whose_filters_it_has(ordering):
    """All but the filters is one and the same, so a Hyena with these filters is that layer."""
    torch.manual_seed(0)
    options = {"order": 3, "ordering": ordering, "dtype": torch.float64}
    layer = LaughingHyena(4, d_state=2, l_max=20, **options)
    other = Hyena(4, l_max=30, **options)
    shared = {n: v for n, v in layer.state_dict().items() if not n.startswith("modal.")}
    other.load_state_dict({**other.state_dict(), **shared})
    other.kernels = lambda taps=None: layer.impulse_responses(30)[..., :taps]
    x = torch.randn(2, 30, 4, dtype=torch.float64)
    check_close("y", layer(x)[0], other(x)[0], roundings=2**10)


def test_heads_are_those_of_the_hyena_whose_filters_they_have():
    torch.manual_seed(0)
    layer = LaughingHyena(6, n_heads=2, d_state=2, l_max=20, dtype=torch.float64)
    other = Hyena(6, n_heads=2, l_max=30, dtype=torch.float64)
    shared = {n: v for n, v in layer.state_dict().items() if not n.startswith("modal.")}
    other.load_state_dict({**other.state_dict(), **shared})
    assert layer.impulse_responses(30).shape == (1, 2, 30)
    other.kernels = lambda taps=None: layer.impulse_responses(30)[..., :taps]
    x = torch.randn(2, 30, 6, dtype=torch.float64)
    check_close("y", layer(x)[0], other(x)[0], roundings=2**10)
    assert layer(x)[1]["long"][0].shape == (2, 9, 2, 2)


def test_a_hyena_with_heads_is_distilled_into_one():
    torch.manual_seed(0)
    layer = Hyena(8, n_heads=2, l_max=20, dtype=torch.float64)
    small = distill(layer, 9, length=20).model
    assert isinstance(small, LaughingHyena)
    assert small.n_heads == 2
    x = torch.randn(2, 20, 8, dtype=torch.float64)
    torch.testing.assert_close(small(x)[0], layer(x)[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "law",
    [
        *("forms_agree", "reset_and_packing", "gradients"),
        pytest.param("times", marks=pytest.mark.unchecked),  # a wrong length, whose error is ours
    ],
)
def test_laws_hold_with_heads(law):
    check_property(law, partial(LaughingHyena, n_heads=2, d_state=3))


def test_its_state_does_not_grow():
    layer = LaughingHyena(4, order=3, d_state=8)
    shapes = [
        [state["short"].shape, *(h.shape for h in state["long"])]
        for state in (layer(torch.randn(2, n, 4))[1] for n in (1, 50))
    ]
    assert shapes[0] == shapes[1] == [(2, 2, 16), (2, 4, 8), (2, 4, 8)]
    assert len(LaughingHyena(4, order=3, ordering="paper").state_spec()["long"]) == 3


@pytest.mark.unchecked
def test_laughing_hyena_words_its_errors():
    with pytest.raises(ArgumentError, match="LaughingHyena: order must be at least 2 for ordering"):
        LaughingHyena(4, order=1)
    with pytest.raises(ArgumentError, match="Modal: d_state must be an integer of at least 1"):
        LaughingHyena(4, d_state=0)
