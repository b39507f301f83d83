"""The gated Oja rule against golden numbers and its plain loop, and its errors."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from fixture_f import BETA, DECAYS, K, Q, V, near

from linrnn.errors import LinrnnError
from linrnn.mixers import GatedOja
from linrnn.mixers.gated_oja import oja_scan
from linrnn.ops import delta_scan
from linrnn.testing import check_property


def test_the_rule_gives_the_golden_numbers():
    start = torch.zeros(1, 1, 2, 2, dtype=torch.float64)
    o, _ = oja_scan(Q, K, F.normalize(V, dim=-1), BETA, DECAYS.log(), start, 2**-0.5, None)
    near(o, 0.158114, 0.316228, 0.536656, -0.178885, 0.560860, 0.100456, 0.548406, 0.537728)


def test_the_rule_equals_a_plain_loop_with_resets():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 40, 3, 4, dtype=torch.float64)
    v, g = F.normalize(v, dim=-1), -torch.randn(2, 40, 3, 4, dtype=torch.float64).mul(3).exp()
    beta, S = 2 * torch.rand(2, 40, 3).double(), torch.randn(2, 3, 4, 4).double()
    reset = torch.rand(2, 40) < 0.1
    o, final = oja_scan(q, k, v, beta, g, S, 1.0, reset)
    for t in range(40):
        S = S * ~reset[:, t, None, None, None] * g[:, t, :, None].exp()
        u = beta[:, t, :, None] * (k[:, t] - torch.einsum("bhkv,bhv->bhk", S, v[:, t]))
        S = S + u[..., None] * v[:, t, :, None]
        expected = torch.einsum("bhkv,bhk->bhv", S, q[:, t])
        torch.testing.assert_close(o[:, t], expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(final, S, rtol=1e-10, atol=1e-10)


def test_it_is_the_delta_rule_of_the_transposed_memory():
    torch.manual_seed(0)
    k, v = torch.randn(2, 2, 30, 1, 4, dtype=torch.float64)
    v, beta = F.normalize(v, dim=-1), torch.rand(2, 30, 1).double()
    start, g = torch.zeros(2, 1, 4, 4).double(), -torch.rand(2, 30, 1, 4).double()
    _, final = oja_scan(k, k, v, beta, g, start, 1.0, None)
    _, transposed = delta_scan(v, v, k, beta, g, start)
    torch.testing.assert_close(final, transposed.mT)


@pytest.mark.parametrize("law", ["forms_agree", "reset_and_packing", "gradients", "low_precision"])
@pytest.mark.parametrize(
    "options",
    [
        {"n_heads": 2, "key_heads": 1, "beta_max": 2.0, "conv_bias": True},
        {"d_key": 5, "d_value": 3, "d_conv": None},
    ],
    ids=["shared keys", "without convolution"],
)
def test_variants_keep_the_laws(law, options):
    check_property(law, partial(GatedOja, **options))


@pytest.mark.unchecked
def test_errors():
    with pytest.raises(
        LinrnnError, match="GatedOja: beta_max must be above 0 and at most 2, got 3"
    ):
        GatedOja(8, beta_max=3)
