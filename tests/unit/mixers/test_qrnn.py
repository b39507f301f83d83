"""QRNN against PyTorch's convolution and a loop over its pooling; zoneout; its errors."""

import pytest
import torch
import torch.nn.functional as F
from plain_loop import check_equal, lead_out

from linrnn.errors import LinrnnError
from linrnn.mixers import QRNN


def transcription(layer, x):
    """Masked convolutions of the whole sequence, then one step after another."""
    H, k = layer.d_state, layer.window
    kernel = layer.in_proj.weight.view(-1, k, layer.d_model).transpose(1, 2)
    padded = F.pad(x.T[None], (k - 1, 0))
    z, f, *rest = F.conv1d(padded, kernel, layer.in_proj.bias)[0].T.split(H, -1)
    z, f, rest = z.tanh(), f.sigmoid(), [g.sigmoid() for g in rest]
    if layer.gates in ("refine", "ur"):
        r = rest.pop()
        f = 2 * r * f + (1 - 2 * r) * f**2
    o = rest[0] if rest else torch.ones_like(f)
    i = rest[1] if len(rest) > 1 else 1 - f
    c, h = layer.c0 if layer.learn_initial else torch.zeros_like(z[0]), []
    for t in range(len(x)):
        c = f[t] * c + i[t] * z[t]
        h.append(o[t] * c)
    return lead_out(layer, torch.stack(h))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pooling": "f", "window": 1},
        {"pooling": "ifo", "window": 4, "d_state": 5},
        {"pooling": "ifo", "gates": "ur", "learn_initial": True},
    ],
    ids=str,
)
def test_equals_a_transcription_split_and_whole_gradients_too(options):
    check_equal(QRNN(3, dtype=torch.float64, **options), transcription)


def test_zoneout_keeps_a_share_of_the_state_while_it_trains_and_only_then():
    torch.manual_seed(0)
    layer = QRNN(8, pooling="f", zoneout=0.25)
    x = torch.randn(4, 500, 8, requires_grad=True)
    y, _ = layer(x)
    kept = (y.diff(dim=1).abs() < 1e-6).double().mean().item()
    assert kept == pytest.approx(0.25, abs=0.02)
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert grad.isfinite().all()
    layer.eval()
    torch.testing.assert_close(layer(x)[0], layer(x)[0], rtol=0, atol=0)
    plain = QRNN(8, pooling="f").eval()
    plain.load_state_dict(layer.state_dict())
    assert torch.equal(layer(x)[0], plain(x)[0])  # and nothing is rescaled


def test_starts_as_a_linear_layer():
    torch.manual_seed(0)
    layer = QRNN(50, window=3, d_state=200)
    bound = 150**-0.5
    assert bound * 0.99 < layer.in_proj.weight.abs().max() <= bound
    assert bound * 0.9 < layer.in_proj.bias.abs().max() <= bound


BAD = [
    ({"window": 0}, "QRNN: window must be an integer of at least 1, got 0"),
    ({"pooling": "if"}, "no QRNN pooling named 'if'"),
    ({"zoneout": 1.0}, r"QRNN: zoneout must be in \[0, 1\), got 1.0"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("options", "message"), BAD)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        QRNN(4, **options)
