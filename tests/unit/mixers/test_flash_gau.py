"""FlashGAU against its equation pair by pair and a public implementation; laws of short chunks."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from linrnn.errors import LinrnnError
from linrnn.mixers import FlashGAU
from linrnn.testing import check_property

DOUBLE = {"dtype": torch.float64}


def livelier(layer):
    """Parameters of order one, biases too: with the initial ones, scores are hardly negative."""
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    if layer.b is not None:  # or their product may keep all scores below 0
        with torch.no_grad():
            layer.b[1] = layer.b[0]
    return layer


def transcription(layer, x):
    """One query and one key at a time, rotations as complex numbers."""
    e, s, C = layer.d_inner, layer.d_key, layer.chunk
    speed = layer.base ** -(torch.arange(s // 2, **DOUBLE) / (s // 2))

    def turned(z, t):
        return torch.complex(z[0::2], z[1::2]) * torch.exp(1j * t * speed)

    def dot(q, k):
        return (q * k.conj()).real.sum()

    r, v, z = (F.silu(x @ W.T) for W in layer.W_in.split([e, e, s]))
    made = layer.gamma[:, None] * z + layer.beta[:, None]
    y = []
    for t in range(len(x)):
        mixed = torch.zeros(e, **DOUBLE)
        for u in range(t + 1):
            there, here = (u, t) if layer.rotary else (0, 0)
            if u // C < t // C:
                weight = dot(turned(made[2, t], here), turned(made[3, u], there)) / C
            else:
                weight = dot(turned(made[0, t], here), turned(made[1, u], there)) / C
                if layer.b is not None:
                    weight = weight + dot(turned(layer.b[0], t), turned(layer.b[1], u))
                weight = weight.clamp(min=0) ** 2
            mixed = mixed + weight * v[u]
        y.append(layer.W_out @ (r[t] * mixed))
    return torch.stack(y)


@pytest.mark.parametrize("rotary", [True, False])
@pytest.mark.parametrize("relative_bias", [True, False])
def test_equals_a_transcription_split_and_whole_gradients_too(rotary, relative_bias):
    options = {"rotary": rotary, "relative_bias": relative_bias, "base": 30.0}
    layer = livelier(FlashGAU(3, d_inner=4, d_key=6, chunk=5, **options, **DOUBLE))
    x = torch.randn(1, 13, 3, **DOUBLE, requires_grad=True)
    expected = transcription(layer, x[0])[None]
    first, state = layer(x[:, :7])
    y = torch.cat([first, layer(x[:, 7:], state)[0]], 1)
    torch.testing.assert_close(y, expected, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(layer(x)[0], expected, rtol=1e-9, atol=1e-10)
    sources, weight = (x, *layer.parameters()), torch.randn_like(y)
    got, want = (torch.autograd.grad((z * weight).sum(), sources) for z in (y, expected))
    torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-9)


@torch.no_grad()
def test_equals_flash_pytorch():
    """Without positions, and with its norm, residual and biases removed."""
    flash = pytest.importorskip("flash_pytorch.flash_pytorch")
    theirs = flash.FLASH(dim=5, query_key_dim=8, group_size=4, causal=True).double()
    theirs.norm = torch.nn.Identity()
    torch.nn.init.zeros_(theirs.rel_pos_bias.relative_attention_bias.weight)
    ours = livelier(FlashGAU(5, d_key=8, chunk=4, rotary=False, relative_bias=False, **DOUBLE))
    r, v, z = ours.W_in.split([10, 10, 8])
    theirs.to_hidden[0].weight.copy_(torch.cat([v, r]))
    theirs.to_qk[0].weight.copy_(z)
    theirs.to_out.weight.copy_(ours.W_out)
    for linear in (theirs.to_hidden[0], theirs.to_qk[0], theirs.to_out):
        linear.bias.zero_()
    order = [0, 2, 1, 3]  # local query, earlier query, local key, earlier key
    theirs.qk_offset_scale.gamma.copy_(ours.gamma[order])
    theirs.qk_offset_scale.beta.copy_(ours.beta[order])
    x = torch.randn(2, 18, 5, **DOUBLE)
    torch.testing.assert_close(ours(x)[0], theirs(x) - x, rtol=1e-11, atol=1e-11)


LAWS = ("forms_agree", "causal", "reset_and_packing", "gradients", "constant_memory", "edges")


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("chunk", [1, 3])
def test_short_chunks_keep_the_laws(chunk, law):
    check_property(law, partial(FlashGAU, chunk=chunk, d_key=4))


def test_first_chunk_is_a_gated_attention_unit():
    """Nothing of the sums is left over: not even a rounding of their difference."""
    layer = livelier(FlashGAU(4, d_key=6, chunk=30))
    x = torch.randn(1, 60, 4)
    y, _ = layer(x)
    with torch.no_grad():
        layer.gamma[2:] = layer.beta[2:] = 0
    without, _ = layer(x)
    assert torch.equal(y[:, :30], without[:, :30])
    assert not torch.equal(y[:, 30:], without[:, 30:])


def test_starts_scaled_or_as_published():
    layer = FlashGAU(64, d_key=32)
    assert (layer.chunk, layer.gamma.shape) == (256, (4, 32))
    assert layer.gamma[2:].eq((1 / 0.36 / 32) ** 0.5).all()
    published = FlashGAU(64, init="published")
    assert published.gamma.std().item() == pytest.approx(0.02, rel=0.15)


@pytest.mark.parametrize("law", ["forms_agree", "reset_and_packing", "gradients", "low_precision"])
@pytest.mark.parametrize(
    "options",
    [
        {"attention": "laplace", "buckets": 8, "chunk": 5},
        {"bias": True, "buckets": 32, "rotary": False, "relative_bias": False},
        {"table": 5, "chunk": 4, "init": "published"},
    ],
    ids=["laplace", "as FLASH-pytorch", "table"],
)
def test_variants_keep_the_laws(law, options):
    check_property(law, partial(FlashGAU, **options))


BAD = [
    ({"attention": "softmax"}, "no FlashGAU attention named 'softmax'"),
    ({"buckets": 2}, "FlashGAU: buckets must be an integer from 4 to 64, got 2"),
    ({"chunk": 0}, "FlashGAU: chunk must be an integer of at least 1, got 0"),
    ({"d_key": 3}, "FlashGAU: d_key must be even, got 3"),
    ({"d_inner": 0}, "FlashGAU: d_inner must be an integer of at least 1, got 0"),
    ({"init": "scale"}, "no FlashGAU init named 'scale'. Did you mean 'scaled'?"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("options", "message"), BAD)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        FlashGAU(4, **options)
