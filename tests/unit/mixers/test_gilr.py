"""GILR against a loop over its equation, as the linear case of others, its start, its errors."""

import pytest
import torch
import torch.nn.functional as F
from plain_loop import check_equal, lead_out

from linrnn.errors import LinrnnError
from linrnn.mixers import GILR, QRNN

PHI = {"tanh": torch.tanh, "elu": F.elu}


def transcription(layer, x):
    """One step after another, with the forget gate itself and not its logit."""
    z, f, *r = (x @ layer.in_proj.weight.T + layer.in_proj.bias).split(layer.d_state, -1)
    f, z = f.sigmoid(), PHI[layer.nonlinearity](z)
    if r:
        r = r[0].sigmoid()
        f = r * (1 - (1 - f) ** 2) + (1 - r) * f**2
    c = layer.c0 if layer.learn_initial else torch.zeros_like(z[0])
    h = []
    for t in range(len(x)):
        c = f[t] * c + (1 - f[t]) * z[t]
        h.append(c)
    return lead_out(layer, torch.stack(h))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"nonlinearity": "elu", "d_state": 5},
        {"gates": "refine"},
        {"gates": "ur", "learn_initial": True},
    ],
    ids=str,
)
def test_equals_a_transcription_split_and_whole_gradients_too(options):
    check_equal(GILR(3, dtype=torch.float64, **options), transcription)


def test_is_a_qrnn_of_one_tap():
    layer = GILR(4, dtype=torch.float64)
    other = QRNN(4, window=1, pooling="f", dtype=torch.float64)
    other.load_state_dict(layer.state_dict())
    x = torch.randn(2, 30, 4, dtype=torch.float64)
    torch.testing.assert_close(layer(x)[0], other(x)[0])


def test_golden_numbers():
    """c = 0.5 c + 0.5 tanh(cos t), by hand."""
    layer = GILR(1, dtype=torch.float64)
    with torch.no_grad():
        layer.in_proj.weight.copy_(torch.tensor([[1.0], [0.0]]))
    t = torch.arange(1.0, 6, dtype=torch.float64)
    c, want = 0.0, []
    for z in torch.tanh(t.cos()).tolist():
        c = (c + z) / 2
        want.append(c)
    got = layer(t.cos().view(1, 5, 1))[0].flatten()
    torch.testing.assert_close(got, torch.tensor(want, dtype=torch.float64))


def test_weights_start_glorot_uniform_block_by_block():
    layer = GILR(100, d_state=300)
    bound = (6 / 400) ** 0.5
    for rows in layer.in_proj.weight.split(300):
        assert bound * 0.99 < rows.abs().max() <= bound
    assert not layer.in_proj.bias.any()


BAD = [
    ({"d_state": 0}, "GILR: d_state must be an integer of at least 1, got 0"),
    ({"nonlinearity": "relu"}, "no GILR nonlinearity named 'relu'"),
    ({"gates": "master"}, "no GILR gates named 'master'"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("options", "message"), BAD)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        GILR(4, **options)
