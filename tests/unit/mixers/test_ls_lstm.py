"""LS-LSTM against a loop over its equation, and its start."""

import pytest
import torch
from plain_loop import check_equal, lead_out

from linrnn.mixers import LSLSTM


def transcription(layer, x):
    """One step after another; the gates see the surrogate of this step."""
    s = layer.s0 if layer.learn_initial else x.new_zeros(layer.d_state)
    c = layer.c0 if layer.learn_initial else x.new_zeros(layer.d_state)
    h = []
    for u in x:
        v, g = (layer.surrogate.weight @ u + layer.surrogate.bias).split(layer.d_state)
        s = g.sigmoid() * s + (1 - g.sigmoid()) * v.tanh()
        seen = torch.cat([s, u])
        z, f, o, i = (layer.in_proj.weight @ seen + layer.in_proj.bias).split(layer.d_state)
        f, i = f.sigmoid(), i.sigmoid()
        if layer.gates in ("refine", "ur"):
            f = 2 * i * f + (1 - 2 * i) * f**2
            i = 1 - f
        c = f * c + i * z.tanh()
        h.append(o.sigmoid() * c)
    return lead_out(layer, torch.stack(h))


@pytest.mark.parametrize(
    "options", [{}, {"d_state": 5, "gates": "ur"}, {"learn_initial": True}], ids=str
)
def test_equals_a_transcription_split_and_whole_gradients_too(options):
    check_equal(LSLSTM(3, dtype=torch.float64, **options), transcription)


def test_gates_that_are_open_count_and_those_that_are_shut_forget():
    layer, x = LSLSTM(2, dtype=torch.float64), torch.randn(1, 9, 2, dtype=torch.float64)
    with torch.no_grad():
        layer.in_proj.weight.zero_()
        layer.in_proj.bias.copy_(torch.tensor([100.0, 100.0, 100.0, 100.0]).repeat_interleave(2))
    steps = torch.arange(1.0, 10, dtype=torch.float64)
    torch.testing.assert_close(layer(x)[0][0, :, 0], steps)
    with torch.no_grad():
        layer.in_proj.bias[2:4] = -100
    torch.testing.assert_close(layer(x)[0][0, :, 0], torch.ones_like(steps))


def test_weights_start_glorot_uniform_block_by_block():
    layer = LSLSTM(100, d_state=300)
    for linear, fan in ((layer.surrogate, 400), (layer.in_proj, 700)):
        for rows in linear.weight.split(300):
            assert (6 / fan) ** 0.5 * 0.99 < rows.abs().max() <= (6 / fan) ** 0.5
        assert not linear.bias.any()
