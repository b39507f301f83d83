"""GateLoop against a complex loop over its equation; long sums of phases; its errors."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from linrnn.errors import LinrnnError
from linrnn.mixers import GateLoop
from linrnn.ops import linear_scan


def transcription(layer, x):
    """One step after another, with complex numbers and no sum of phases."""
    H, d = layer.n_heads, layer.d_head
    q, k, v = (z.view(-1, H, d) for z in (x @ layer.heads.proj.weight.T).chunk(3, -1))
    alpha, beta = (layer.a_proj(x)).chunk(2, -1)
    if layer.transition == "split":
        a = alpha.sigmoid() * torch.exp(1j * beta)
    else:
        z = torch.complex(alpha, beta)
        a = z.abs().sigmoid() * z / z.abs()
    a, S, o = a.view(len(x), H, -1), torch.zeros(H, d, d, dtype=torch.complex128), []
    for t in range(len(x)):
        S = a[t][..., None] * S + k[t][..., None] * v[t][:, None]
        o.append(torch.einsum("hkv,hk->hv", S, q[t].to(S.dtype)).real.flatten())
    o = torch.stack(o)
    o = F.layer_norm(o, o.shape[-1:]) if layer.norm == "layer" else o
    return layer.out.out_proj(F.silu(layer.out.gate_proj(x)) * o), S


@pytest.mark.parametrize("d_head", [1, 3])
@pytest.mark.parametrize(
    ("transition", "of"), list(itertools.product(("split", "polar"), ("channel", "head")))
)
def test_equals_a_transcription_split_and_whole_gradients_too(d_head, transition, of):
    options = {"d_head": d_head, "transition": transition, "transition_of": of}
    norm = "layer" if d_head == 3 else "none"
    layer = GateLoop(4, d_inner=6, norm=norm, dtype=torch.float64, **options)
    torch.nn.init.normal_(layer.a_proj.weight, std=2)
    x = torch.randn(1, 20, 4, dtype=torch.float64, requires_grad=True)
    expected, S = transcription(layer, x[0])
    expected = expected[None]
    first, state = layer(x[:, :7])
    second, last = layer(x[:, 7:], state)
    y = torch.cat([first, second], 1)
    torch.testing.assert_close(y, expected, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(layer(x)[0], expected, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(last["memory"][0], torch.cat([S.real, S.imag], 1))
    sources, weight = (x, *layer.parameters()), torch.randn_like(y)
    got, want = (torch.autograd.grad((z * weight).sum(), sources) for z in (y, expected))
    torch.testing.assert_close(got, want, rtol=1e-7, atol=1e-8)


def test_phases_keep_their_precision_over_many_steps():
    """20,000 steps of 2.1 radians: sums in float32 are 0.002 wrong in the end."""
    layer = GateLoop(2, d_head=2)
    with torch.no_grad():
        layer.a_proj.weight.zero_()
        layer.a_proj.bias.copy_(torch.tensor([6.0, 6.0, 2.1, 2.1]))
    x = torch.randn(1, 20_000, 2)
    q, k, v = (z.squeeze(2).double() for z in layer.heads(x))
    writes = (k[..., None] * v[..., None, :]).to(torch.complex128)
    a = torch.polar(torch.tensor(6.0).double().sigmoid(), torch.tensor(2.1).double())
    S, _ = linear_scan(a.expand(2, 2), writes)
    o = torch.einsum("btkv,btk->btv", S.real, q)[..., None, :]
    want, y = layer.out(o.float(), x), layer(x)[0]
    assert (y - want).abs().max() < 1e-5 * want.abs().max()


@pytest.mark.parametrize("size", [0.0, 1e-25])
def test_a_polar_transition_of_zero_has_finite_slopes(size):
    """z / |z| has none at 0: they are those of z = 1, which move the weights away from there."""
    torch.manual_seed(0)
    layer = GateLoop(4, transition="polar")
    torch.nn.init.constant_(layer.a_proj.weight, size)
    x = torch.randn(2, 9, 4, requires_grad=True)
    log_a, phase = layer._transition(x)
    torch.testing.assert_close(log_a, torch.full_like(log_a, 0.5).log())
    assert phase.abs().max() < 1e-20
    layer(x)[0].square().sum().backward()
    assert all(z.grad.isfinite().all() for z in (x, *layer.parameters()))
    assert layer.a_proj.bias.grad.any()


def test_weights_keep_the_size_of_their_input():
    layer = GateLoop(256)
    for linear in (layer.heads.proj, layer.a_proj, layer.out.gate_proj, layer.out.out_proj):
        assert linear.weight.std().item() == pytest.approx(1 / 16, rel=0.02)
    assert not layer.a_proj.bias.any()


BAD = [
    ({"d_head": 3}, "GateLoop: d_head must divide d_inner=8, got d_head=3"),
    ({"transition": "complex"}, "no GateLoop transition named 'complex'"),
    ({"transition_of": "value"}, "no GateLoop transition_of named 'value'"),
    ({"norm": "rms"}, "no GateLoop norm named 'rms'"),
    ({"d_inner": 0}, "GateLoop: d_inner must be an integer of at least 1, got 0"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("options", "message"), BAD)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        GateLoop(8, **options)
