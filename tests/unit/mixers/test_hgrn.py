"""HGRN against a complex loop, the real one of fla-core where nothing turns, its start."""

import pytest
import torch
import torch.nn.functional as F
from plain_loop import check_equal
from public_loops import naive

from linrnn.errors import LinrnnError
from linrnn.mixers import HGRN

DEEP = {"layer": 2, "n_layers": 3}


def transcription(layer, x):
    """One step after another in complex numbers."""
    re, im, f = (x @ layer.in_proj.weight.T + layer.in_proj.bias).split(layer.d_state, -1)
    beta = 0 if layer.bound is None else layer.bound.sigmoid()
    lam = beta + (1 - beta) * f.sigmoid()
    c, turn = torch.complex(F.silu(re), F.silu(im)), torch.exp(1j * layer.theta)
    h = torch.complex(layer.h0_re, layer.h0_im) if layer.learn_initial else torch.zeros_like(c[0])
    hs = []
    for t in range(len(x)):
        h = lam[t] * turn * h + (1 - lam[t]) * c[t]
        hs.append(torch.cat([h.real, h.imag]))
    o, g = torch.stack(hs), x @ layer.gate_proj.weight.T + layer.gate_proj.bias
    o = g.sigmoid() * o if layer.gate == "sigmoid" else o
    o = o - (o.mean(-1, keepdim=True) if layer.norm == "layer" else 0)
    o = layer.out_norm.weight * o / (o.square().mean(-1, keepdim=True) + layer.norm_eps).sqrt()
    o = F.silu(g) * o if layer.gate == "silu" else o
    return o @ layer.out_proj.weight.T + layer.out_proj.bias


@pytest.mark.parametrize(
    "options",
    [{}, DEEP, {"gate": "silu", "norm": "rms", "d_state": 5}, {"learn_initial": True, **DEEP}],
    ids=str,
)
def test_equals_a_transcription_split_and_whole_gradients_too(options):
    check_equal(HGRN(3, dtype=torch.float64, **options), transcription)


def test_parts_are_real_hgrn_where_nothing_turns():
    """Against the loop of fla-core, which computes in float32."""
    layer, x = HGRN(8), torch.randn(2, 15, 8)
    with torch.no_grad():
        layer.theta.zero_()
    re, im, f = layer.in_proj(x).chunk(3, -1)
    _, state = layer(x)
    loop = naive("hgrn/naive.py", "naive_recurrent_hgrn")
    for c, got in ((re, state.real), (im, state.imag)):
        _, last = loop(F.silu(c) * (1 - f.sigmoid()), F.logsigmoid(f), output_final_state=True)
        torch.testing.assert_close(got, last, rtol=1e-4, atol=1e-5)


def test_deeper_layers_forget_less_and_angles_start_as_published():
    assert HGRN(8).bound is None
    for layer in (1, 3):
        bound = HGRN(8, layer=layer, n_layers=4).bound
        torch.testing.assert_close(bound.sigmoid(), torch.full((8,), layer / 4))
    torch.testing.assert_close(HGRN(2).theta, torch.tensor([1.0, 1e-4]))


def test_a_bound_keeps_what_the_gate_would_forget():
    layer = HGRN(2, layer=3, n_layers=4, dtype=torch.float64)
    with torch.no_grad():
        layer.in_proj.weight.zero_()
        layer.in_proj.bias.copy_(torch.tensor([0.0, 0, 0, 0, -50, -50]))
    start = torch.ones(1, 2, dtype=torch.complex128)
    _, last = layer(torch.zeros(1, 4, 2, dtype=torch.float64), start)
    torch.testing.assert_close(last.abs(), torch.full((1, 2), 0.75**4, dtype=torch.float64))


BAD = [
    ({"layer": 1}, "HGRN: layer must be an integer from 0 to n_layers-1=0, got 1"),
    ({"norm_eps": 0}, "HGRN: norm_eps must be positive and finite, got 0"),
    ({"gate": "tanh"}, "no HGRN gate named 'tanh'"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("options", "message"), BAD)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        HGRN(8, **options)
