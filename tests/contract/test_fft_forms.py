"""The declared exception of forms that are an FFT: how far back a step reaches, and no further."""

import pytest
import torch

from linrnn import mixers
from linrnn.mixers._contract.base import FFT_REACHES_BACK
from linrnn.testing._mixer_laws import HUGE

FFT = [
    (name, form)
    for name in mixers.names()
    for form in mixers.load(name).forms
    if FFT_REACHES_BACK
    in (mixers.load(name).declared.get(law) for law in ("causal", f"causal:{form}"))
]
NAMES = ("dlr", "dss", "gss", "h3", "hyena", "laughing_hyena", "liquid_s4", "lru", "lssl")
NAMES += ("modal", "s4", "s4d", "s5", "sgconv", "slru")
EPSILON = torch.finfo(torch.float32).eps

each_fft = pytest.mark.parametrize(("name", "form"), FFT)


def outputs(name, form, time, at, value):
    """Outputs of one layer before and after one step of row 1 is ``value``."""
    torch.manual_seed(0)
    choice = {"form": form} if len(mixers.load(name).forms) > 1 else {}
    layer = mixers.build(name, 6, choice)
    x = torch.randn(3, time, 6)
    changed = x.clone()
    changed[1, at] = value
    with torch.no_grad():
        return layer(x)[0], layer(changed)[0]


def test_layers_that_compute_by_fft_say_so():
    assert [(name, "conv") for name in NAMES] == FFT


@each_fft
@pytest.mark.parametrize("value", [1.0, 1e4, 1e10])
def test_step_changes_those_before_it_by_roundings_of_the_largest_output(name, form, value):
    for time in (19, 1000):
        for at in (1, time // 2, time - 1):
            before, after = outputs(name, form, time, at, value)
            reach = (after - before)[1, :at].abs().max()
            assert reach <= 4 * EPSILON * max(after[1].abs().max(), before[1].abs().max())
            assert torch.equal(after[::2], before[::2])


@each_fft
@pytest.mark.parametrize("value", [v for v in HUGE if not abs(v) < float("inf")])
def test_what_is_not_finite_makes_its_row_nan_and_no_other(name, form, value):
    before, after = outputs(name, form, 50, 30, value)
    assert after[1, 1:].isnan().all()
    first = after[1, 0]  # of a layer whose filters are a step late no FFT computes it
    assert first.isnan().all() or torch.equal(first, before[1, 0])
    assert torch.equal(after[::2], before[::2])
