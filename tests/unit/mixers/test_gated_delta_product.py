"""Gated DeltaProduct against the plain loop of fla, golden numbers and reflections."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from fixture_f import BETA, DECAY, K, Q, V, near
from fla_naive import naive

from linrnn.errors import LinrnnError
from linrnn.mixers import DeltaNet, GatedDeltaNet, GatedDeltaProduct
from linrnn.ops import delta_scan
from linrnn.testing import check_property


def pairs(first, second):
    """Two writes of every step."""
    return torch.stack([first, second], 2)


def test_the_rule_gives_the_golden_numbers():
    start = torch.zeros(1, 1, 2, 2, dtype=torch.float64)
    k, v, beta = pairs(K, K.flip(-1)), pairs(V, -V), pairs(BETA, 2 * BETA)
    o, _ = delta_scan(Q, k, v, beta, DECAY.log(), start, scale=2**-0.5)
    near(o, 0.353553, 0.707107, -3.623215, 0.435578, -3.922463, 0.901420, 0.104377, 1.362769)


@pytest.mark.parametrize("forget", [True, False])
def test_the_rule_equals_the_loop_of_fla(forget):
    torch.manual_seed(0)
    loop = naive("gated_delta_product/naive.py").naive_recurrent_gated_delta_product
    q, (k, v) = torch.randn(2, 20, 2, 4), torch.randn(2, 2, 20, 3, 2, 4)
    k, beta = F.normalize(k, dim=-1), 2 * torch.rand(2, 20, 3, 2)
    g = -torch.rand(2, 20, 2) if forget else None
    start = torch.randn(2, 2, 4, 4)
    flat = (z.flatten(1, 2) for z in (k, v))
    theirs, last = loop(
        *(q, *flat, g, beta.flatten(1, 2), 1.0), initial_state=start, num_householder=3
    )
    o, final = delta_scan(q, k, v, beta, g, start)
    torch.testing.assert_close(o, theirs, rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(final, last, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("forget", [True, False])
def test_with_one_write_it_is_the_layer_that_it_extends(forget):
    layer = GatedDeltaProduct(6, writes=1, forget=forget)
    plain = (
        GatedDeltaNet(6, beta_max=2.0)
        if forget
        else DeltaNet(6, d_key=5, d_value=10, gate=True, beta_max=2.0)
    )
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(2, 30, 6)
    torch.testing.assert_close(layer(x)[0], plain(x)[0])


def test_two_reflections_turn_a_memory():
    start = torch.eye(2, dtype=torch.float64)[None, None]
    angle = torch.tensor(0.3, dtype=torch.float64)
    one, two = torch.tensor([1.0, 0.0]).double(), torch.stack([angle.cos(), angle.sin()])
    k = torch.stack([one, two]).view(1, 1, 2, 1, 2)
    beta, v = torch.full((1, 1, 2, 1), 2.0).double(), torch.zeros(1, 1, 2, 1, 2).double()
    _, final = delta_scan(k[:, :, 0], k, v, beta, None, start)
    turn = torch.stack(
        [(2 * angle).cos(), -(2 * angle).sin(), (2 * angle).sin(), (2 * angle).cos()]
    )
    torch.testing.assert_close(final[0, 0], turn.view(2, 2))


@pytest.mark.parametrize("law", ["forms_agree", "reset_and_packing", "gradients", "low_precision"])
@pytest.mark.parametrize(
    "options",
    [
        {"writes": 3, "n_heads": 2, "key_heads": 1, "conv_bias": True},
        {"forget": False, "gate": "none", "d_conv": None},
    ],
    ids=["three", "ungated"],
)
def test_variants_keep_the_laws(law, options):
    check_property(law, partial(GatedDeltaProduct, **options))


@pytest.mark.unchecked
def test_errors():
    with pytest.raises(LinrnnError, match="writes must be an integer of at least 1, got 0"):
        GatedDeltaProduct(8, writes=0)
