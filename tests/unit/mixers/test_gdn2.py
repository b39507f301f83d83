"""Gated DeltaNet-2 against the plain loop of fla, golden numbers and KDA, and its errors."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from fixture_f import DECAYS, ERASE, WRITE, K, Q, V, near
from fla_naive import naive

from linrnn.errors import LinrnnError
from linrnn.mixers import GDN2, KDA
from linrnn.nn.memories import erase_scan
from linrnn.testing import check_property


def test_the_rule_gives_the_golden_numbers():
    start = torch.zeros(1, 1, 2, 2, dtype=torch.float64)
    arguments = (Q, K, WRITE * V, ERASE * K, None, DECAYS.log(), start)
    o, _ = erase_scan(*arguments, scale=2**-0.5, reset=None)
    near(o, 0.707107, 0.707107, 0.780646, -0.633568, 0.955726, 0.390040, 1.140177, 0.802746)


def test_the_rule_equals_the_loop_of_fla_where_decays_are_strong():
    torch.manual_seed(0)
    loop = naive("gdn2/naive.py").naive_recurrent_gdn2
    q, k, v = torch.randn(3, 2, 40, 3, 8)
    b, w = torch.rand(2, 2, 40, 3, 8)
    k, g, start = F.normalize(k, dim=-1), -torch.randn(2, 40, 3, 8).exp(), torch.randn(2, 3, 8, 8)
    theirs, last = loop(q, k, v, g, b, w, 1.0, start, True)
    o, final = erase_scan(q, k, w * v, b * k, None, g, start, scale=1.0, reset=None)
    torch.testing.assert_close(o, theirs, rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(final, last, rtol=1e-4, atol=2e-5)


def test_with_one_rate_for_all_channels_it_is_kda():
    torch.manual_seed(0)
    layer, plain = GDN2(6, n_heads=2), KDA(6, n_heads=2, gate_bias=True)
    weights = layer.state_dict()
    rate = torch.randn(2, 6)
    weights["gates.proj.weight"] = rate.repeat_interleave(3, 0).repeat(2, 1)
    layer.load_state_dict(weights)
    del weights["gates.proj.weight"]
    plain.load_state_dict({**weights, "beta_proj.weight": rate})
    x = torch.randn(2, 30, 6)
    torch.testing.assert_close(layer(x)[0], plain(x)[0])


@pytest.mark.parametrize(("erase_max", "norm"), [(1.0, 1.154701), (2.0, 1.414214)])
def test_the_matrix_of_a_step_has_the_norm_that_the_docstring_says(erase_max, norm):
    along = torch.linspace(0, 1, 3001, dtype=torch.float64)  # sum b k^2 / erase_max
    k = torch.stack([along.sqrt(), (1 - along).sqrt()], -1)
    erased = k * torch.tensor([erase_max, 0.0], dtype=torch.float64)
    step = torch.eye(2, dtype=torch.float64) - k[:, :, None] * erased[:, None]
    assert torch.linalg.matrix_norm(step, 2).max().item() == pytest.approx(norm, abs=1e-6)


@pytest.mark.parametrize("law", ["forms_agree", "reset_and_packing", "gradients", "low_precision"])
@pytest.mark.parametrize(
    "options",
    [
        {"n_heads": 2, "key_heads": 1, "erase_max": 2.0, "conv_bias": True},
        {"d_value": 3, "d_conv": None},
    ],
    ids=["shared keys", "without convolution"],
)
def test_variants_keep_the_laws(law, options):
    check_property(law, partial(GDN2, **options))


@pytest.mark.unchecked
def test_errors():
    with pytest.raises(LinrnnError, match="GDN2: erase_max must be above 0 and at most 2, got 3"):
        GDN2(8, erase_max=3)
