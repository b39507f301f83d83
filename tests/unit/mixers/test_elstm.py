"""eLSTM against a loop over its equation, its published traces, its start and its errors."""

import pytest
import torch
from plain_loop import check_equal, lead_out

from linrnn.errors import LinrnnError
from linrnn.mixers import ELSTM


def transcription(layer, x):
    """One step after another, with its own matrix for each gate."""
    u = x @ layer.in_proj.weight.T + layer.in_proj.bias
    z, f, *o = u.split(layer.d_state, -1)
    c, h = layer.c0 if layer.learn_initial else torch.zeros_like(z[0]), []
    for t in range(len(x)):
        keep = torch.sigmoid(f[t] + layer.w[1] * c)
        c = keep * c + (1 - keep) * torch.tanh(z[t] + layer.w[0] * c)
        h.append(torch.sigmoid(o[0][t] + layer.W_o @ c) * c if o else c)
    return lead_out(layer, torch.stack(h))


@pytest.mark.parametrize(
    "options", [{}, {"d_state": 5}, {"output_gate": False}, {"learn_initial": True}], ids=str
)
def test_equals_a_transcription_split_and_whole_gradients_too(options):
    check_equal(ELSTM(3, dtype=torch.float64, **options), transcription)


def test_gradient_is_that_of_the_published_traces():
    """The length, batch, width and input of the authors' own test, their rule written out."""
    torch.manual_seed(0)
    layer = ELSTM(3, d_state=5, output_gate=False, dtype=torch.float64)
    layer.out_proj = torch.nn.Identity()
    x, delta = (torch.randn(10, 70, n, dtype=torch.float64) for n in (3, 5))
    (layer(x)[0] * delta).sum().backward()
    Z, F = layer.in_proj.weight.detach().split(5)
    w_z, w_f = layer.w.detach()
    c, e = torch.zeros(10, 5, dtype=torch.float64), {}
    total = dict.fromkeys(("Z", "F", "b_z", "b_f", "w_z", "w_f"), 0.0)
    for t in range(70):
        u = x[:, t]
        z, f = torch.tanh(u @ Z.T + w_z * c), torch.sigmoid(u @ F.T + w_f * c)
        alpha, beta = (1 - f) * (1 - z**2), (c - z) * f * (1 - f)
        kappa = f + alpha * w_z + beta * w_f
        own = {"Z": alpha[..., None] * u[:, None], "F": beta[..., None] * u[:, None]}
        own |= {"b_z": alpha, "b_f": beta, "w_z": alpha * c, "w_f": beta * c}
        for name, m in own.items():
            k, d = (v[..., None] if m.ndim == 3 else v for v in (kappa, delta[:, t]))
            e[name] = k * e[name] + m if t else m
            total[name] = total[name] + (d * e[name]).sum(0)
        c = f * c + (1 - f) * z
    found = [torch.cat([total["Z"], total["F"]]), torch.cat([total["b_z"], total["b_f"]])]
    found.append(torch.stack([total["w_z"], total["w_f"]]))
    for ours, theirs in zip(
        (layer.in_proj.weight, layer.in_proj.bias, layer.w), found, strict=True
    ):
        torch.testing.assert_close(ours.grad, theirs, rtol=1e-10, atol=1e-12)


def test_the_state_stays_within_one():
    torch.manual_seed(0)
    layer = ELSTM(4, d_state=6)
    _, c = layer(100 * torch.randn(2, 50, 4))
    assert 0.5 < c.abs().max() <= 1


@pytest.mark.unchecked
def test_constructor_words_its_errors():
    with pytest.raises(LinrnnError, match="no ELSTM gates named 'us'"):
        ELSTM(4, gates="us")
    with pytest.raises(LinrnnError, match="ELSTM: d_state must be an integer of at least 1, got 0"):
        ELSTM(4, d_state=0)
