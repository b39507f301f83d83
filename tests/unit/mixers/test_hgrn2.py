"""HGRN2 against a loop over its equation, and as HGRN where heads have one channel."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from public_loops import naive

from linrnn.errors import LinrnnError
from linrnn.mixers import HGRN2
from linrnn.testing import check_property

DEEP = {"layer": 2, "n_layers": 3}


def transcription(layer, x):
    """One step after another, for all heads."""
    v, q, f = (x @ layer.heads.proj.weight.T + layer.heads.proj.bias).split(layer.d_model, -1)
    beta = 0 if layer.bound is None else layer.bound.sigmoid()
    f, v, q = beta + (1 - beta) * f.sigmoid(), F.silu(v), q.sigmoid()
    f, v, q = (z.view(len(x), layer.n_heads, -1) for z in (f, v, q))
    S, o = torch.zeros_like(f[0][..., None] * v[0][:, None]), []
    for t in range(len(x)):
        S = f[t][..., None] * S + (1 - f[t])[..., None] * v[t][:, None]
        o.append(torch.einsum("hkv,hk->hv", S, q[t]).flatten())
    o = torch.stack(o)
    o = o - (o.mean(-1, keepdim=True) if layer.norm == "layer" else 0)
    o = o / (o.square().mean(-1, keepdim=True) + layer.norm_eps).sqrt()
    return (layer.out_norm.weight * o) @ layer.out_proj.weight.T + layer.out_proj.bias


@pytest.mark.parametrize("options", [{}, DEEP, {"norm": "rms"}])
def test_equals_a_transcription_split_and_whole_gradients_too(options):
    layer = HGRN2(6, d_head=3, dtype=torch.float64, **options)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(1, 20, 6, dtype=torch.float64, requires_grad=True)
    expected = transcription(layer, x[0])[None]
    first, state = layer(x[:, :7])
    y = torch.cat([first, layer(x[:, 7:], state)[0]], 1)
    torch.testing.assert_close(y, expected, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(layer(x)[0], expected, rtol=1e-9, atol=1e-10)
    sources, weight = (x, *layer.parameters()), torch.randn_like(y)
    got, want = (torch.autograd.grad((z * weight).sum(), sources) for z in (y, expected))
    torch.testing.assert_close(got, want, rtol=1e-7, atol=1e-8)


def test_heads_of_one_channel_are_hgrn():
    """Against the loop of fla-core, which computes in float32."""
    layer, x = HGRN2(8, d_head=1), torch.randn(2, 15, 8)
    v, q, f = (z.squeeze(-1) for z in layer.heads(x))
    h, last = naive("hgrn/naive.py", "naive_recurrent_hgrn")(
        F.silu(v) * (1 - f.sigmoid()), F.logsigmoid(f), output_final_state=True
    )
    normed = F.layer_norm(q.sigmoid() * h, (8,), eps=1e-5)
    y, state = layer(x)
    torch.testing.assert_close(y, layer.out_proj(normed), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state["memory"].flatten(1), last, rtol=1e-5, atol=1e-6)


def test_deeper_layers_forget_less():
    assert HGRN2(8).bound is None
    for layer in (1, 3):
        bound = HGRN2(8, layer=layer, n_layers=4).bound
        torch.testing.assert_close(bound.sigmoid(), torch.full((8,), layer / 4))


def test_default_heads_are_as_wide_as_published():
    assert (HGRN2(256).n_heads, HGRN2(256).d_head) == (2, 128)
    assert HGRN2(6).n_heads == 1


@pytest.mark.parametrize("law", ["forms_agree", "reset_and_packing", "gradients", "low_precision"])
@pytest.mark.parametrize(
    "options",
    [
        {"q_activation": "silu", "v_activation": "identity", "bias": False, "norm": "rms"},
        {"d_conv": 3, "conv_bias": True},
    ],
    ids=["fla", "convolution"],
)
def test_variants_keep_the_laws(law, options):
    check_property(law, partial(HGRN2, **options))


BAD = [
    ({"d_head": 3}, "HGRN2: d_head must divide d_model=8, got d_head=3"),
    ({"layer": 1}, "HGRN2: layer must be an integer from 0 to n_layers-1=0, got 1"),
    ({"norm_eps": 0}, "HGRN2: norm_eps must be positive and finite, got 0"),
    ({"norm": "none"}, "no HeadNorm norm named 'none'"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("options", "message"), BAD)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        HGRN2(8, **options)
