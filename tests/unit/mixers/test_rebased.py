"""ReBased against the parallel form of fla, golden numbers and its weights written out."""

import pytest
import torch
import torch.nn.functional as F
from fixture_f import K, Q, V, near
from fla_naive import naive

from linrnn.errors import LinrnnError
from linrnn.mixers import ReBased
from linrnn.nn import second_powers
from linrnn.ops import outer_scan


def test_weights_give_the_golden_numbers():
    """Without the norm, on which the numbers do not depend here."""
    layer = ReBased(2, n_heads=1, d_key=2, eps=1e-6, dtype=torch.float64)
    layer._squares = lambda x: second_powers(x) * 2**-0.5
    q, k, *_ = layer._features(Q, K, Q, {}, None)
    o = layer._read_out(outer_scan(q, k, V, normalizer=True)[0])
    near(o, 0.999998, 1.999996, 2.999991, -0.999997, 1.232323, 0.262626, 0.270000, 1.229999)


def test_equals_the_parallel_form_of_fla_behind_a_layer_norm():
    parallel = naive("rebased/naive.py").naive_parallel_rebased
    layer = ReBased(8, n_heads=2, d_key=4, eps=1e-6, dtype=torch.float64)
    with torch.no_grad():
        layer.gamma.add_(torch.randn_like(layer.gamma))
        layer.beta.add_(torch.randn_like(layer.beta))
    x = torch.randn(2, 30, 8, dtype=torch.float64)
    q, k, v = (z.transpose(1, 2) for z in layer.heads(x))
    q, k = (F.layer_norm(z, (4,), layer.gamma, layer.beta, layer.norm_eps) for z in (q, k))
    o = parallel(q, k, v).transpose(1, 2)  # (B, T, H, V)
    torch.testing.assert_close(layer(x)[0], layer.out_proj(o.flatten(2)))


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d_key": 1}, "ReBased: d_key must be at least 2, for the norm takes the mean away"),
        ({"eps": -1.0}, "ReBased: eps must be at least 0 and finite, got -1.0"),
    ],
)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        ReBased(8, **options)
