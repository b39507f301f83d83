"""Based against the parallel form of fla, golden numbers and its weights written out."""

import pytest
import torch
from fixture_f import K, Q, V, near
from fla_naive import naive

from linrnn.errors import LinrnnError
from linrnn.mixers import Based
from linrnn.ops import outer_scan


def test_weights_give_the_golden_numbers():
    layer = Based(2, n_heads=1, d_key=2, dtype=torch.float64)
    q, k, *_ = layer._features(Q, K, Q, {}, None)
    torch.testing.assert_close(
        q[0, 1, 0] @ k[0, 2, 0], torch.tensor(1 + 2**-0.5 + 0.25, dtype=torch.float64)
    )
    o, _ = outer_scan(q, k, V, normalizer=True)
    o = layer._read_out(o)
    near(o, 0.999999, 1.999999, 2.266239, 0.100641, 0.857460, 0.530385, 1.018548, 1.037607)


def test_equals_the_parallel_form_of_fla():
    parallel = naive("based/naive.py").naive_parallel_based
    layer, x = Based(8, n_heads=2, dtype=torch.float64), torch.randn(2, 30, 8).double()
    q, k, v = (z.transpose(1, 2) for z in layer.heads(x))
    o = parallel(q, k, v).transpose(1, 2)  # (B, T, H, V)
    torch.testing.assert_close(layer(x)[0], layer.out_proj(o.flatten(2)))


def test_has_as_many_features_as_there_are_products():
    layer = Based(256)
    assert (layer.n_heads, layer.d_key, layer.d_features) == (4, 16, 1 + 16 + 16 * 17 // 2)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d_key": 0}, "Based: d_key must be an integer of at least 1, got 0"),
        ({"eps": -1.0}, "Based: eps must be at least 0 and finite, got -1.0"),
    ],
)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        Based(8, **options)
