"""Log-linear Gated DeltaNet: golden numbers, its plain limit, its sizes and errors."""

import pytest
import torch
from fixture_f import BETA, DECAY, K, Q, V, near

from linrnn.errors import LinrnnError
from linrnn.mixers import GatedDeltaNet, LogLinearGatedDeltaNet
from linrnn.ops import fenwick_scan

SCALES = torch.tensor(
    [(1, 0.5, 0.25), (0.9, 0.6, 0.3), (0.8, 0.7, 0.2), (0.7, 0.4, 0.1)], dtype=torch.float64
).view(1, 4, 1, 3)


def test_levels_give_the_golden_numbers():
    o, _, _ = fenwick_scan(Q, K, V, DECAY.log(), SCALES, beta=BETA)
    near(o, 0.5, 1, 2.088, -0.864, 0.1872, 0.0304, 0.778625, 0.719254)


def test_equal_weights_of_levels_are_gated_delta_net():
    layer = LogLinearGatedDeltaNet(8, n_heads=2, levels=6, norm_eps=1e-30).double()
    plain = GatedDeltaNet(8, n_heads=2, norm_eps=1e-30).double()
    with torch.no_grad():
        layer.scales.L.zero_()  # softplus(0) = log 2 each, which the norm takes out
    weights = layer.state_dict()
    del weights["scales.L"], weights["level_proj.weight"]
    plain.load_state_dict(weights)
    x = torch.randn(2, 90, 8, dtype=torch.float64)
    torch.testing.assert_close(layer(x)[0], plain(x)[0])


def test_weights_of_levels_are_chosen_by_the_input():
    layer = LogLinearGatedDeltaNet(8, n_heads=2, levels=4)
    x = torch.randn(2, 30, 8)
    before = layer(x)[0]
    with torch.no_grad():
        layer.scales.L[:, 2:] += 1
    after = layer(x)[0]
    torch.testing.assert_close(before[:, :2], after[:, :2])  # which have two levels
    assert not torch.allclose(before[:, 2:], after[:, 2:])


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"levels": 0}, "LogLinearGatedDeltaNet: levels must be an integer of at least 1, got 0"),
        ({"levels": 63}, "LogLinearGatedDeltaNet: levels must be at most 62, got 63"),
        ({"beta_max": 3.0}, "LogLinearGatedDeltaNet: beta_max must be above 0 and at most 2"),
    ],
)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        LogLinearGatedDeltaNet(8, **options)
