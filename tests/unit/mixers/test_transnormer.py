"""TransNormer: both kinds of layer against other code, laws in blocks, the stack, the start."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from linrnn import SequenceModel
from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.mixers import TransNormer
from linrnn.testing import check_property


def make(d_model=6, **options):
    torch.manual_seed(0)
    return TransNormer(d_model, **{"dtype": torch.float64, **options})


def heads(layer, x):
    return (z.transpose(1, 2) for z in layer.heads(x))


def normed(layer, o):
    o = o.transpose(1, 2).flatten(2)
    if layer.norm == "layer":
        o = (o - o.mean(-1, keepdim=True)) / (o.var(-1, keepdim=True, correction=0) + 1e-6).sqrt()
        return layer.out_proj(o * layer.gain + layer.shift)
    return layer.out_proj(o / (o.square().mean(-1, keepdim=True) + 1e-6).sqrt() * layer.gain)


def same(layer, x, expected):
    """In one call and in two, with the gradients of input and parameters."""
    first, state = layer(x[:, :37])
    y = torch.cat([first, layer(x[:, 37:], state)[0]], 1)
    for got in (y, layer(x)[0]):
        torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-9)
    wanted = [x, *layer.parameters()]
    grads, others = (torch.autograd.grad(z.square().sum(), wanted) for z in (y, expected))
    for got, other in zip(grads, others, strict=True):
        torch.testing.assert_close(got, other, rtol=1e-6, atol=1e-8 * other.abs().max().item())


@pytest.mark.parametrize("norm", ["rms", "layer"])
@pytest.mark.parametrize("variant", ["T1", "T2"])
def test_late_layers_are_a_normed_masked_product(variant, norm):
    layer = make(n_heads=2, d_key=4, d_value=5, variant=variant, norm=norm)
    x = torch.randn(2, 90, 6, dtype=torch.float64, requires_grad=True)
    q, k, v = heads(layer, x)
    q, k = (F.elu(z) + (variant == "T2") for z in (q, k))
    same(layer, x, normed(layer, (q @ k.mT).tril() @ v))


def test_late_layers_are_the_loop_of_another_library():
    naive = pytest.importorskip("fla.ops.simple_gla.naive")
    layer = make(8, n_heads=2, dtype=torch.float32)
    x = torch.randn(2, 40, 8)
    q, k, v = layer.heads(x)
    q, k = F.elu(q) + 1, F.elu(k) + 1
    o, S = naive.naive_recurrent_simple_gla(q, k, v, torch.zeros(2, 40, 2), scale=1.0)
    y, state = layer(x)
    torch.testing.assert_close(y, normed(layer, o.transpose(1, 2)), rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(state["memory"], S, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("variant", ["T1", "T2"])
def test_early_layers_see_their_block_and_nothing_later(variant):
    layer = make(n_heads=2, d_key=4, d_value=5, variant=variant, attention="block", block_size=16)
    x = torch.randn(2, 90, 6, dtype=torch.float64, requires_grad=True)
    q, k, v = heads(layer, x)
    block = torch.arange(90) // 16
    mask = (block[:, None] == block).tril()
    if variant == "T2":
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        same(layer, x, layer.out_proj(o.transpose(1, 2).flatten(2)))
    else:
        same(layer, x, normed(layer, ((q @ k.mT / 2).relu() * mask) @ v))


LAWS = ["forms_agree", "causal", "reset_and_packing", "batch_independence", "constant_memory"]


@pytest.mark.parametrize("variant", ["T1", "T2"])
@pytest.mark.parametrize("law", LAWS)
def test_blocks_keep_laws(law, variant):
    check_property(law, partial(TransNormer, attention="block", block_size=4, variant=variant))


@pytest.mark.parametrize("bad", [2, 3])
@pytest.mark.parametrize("variant", ["T1", "T2"])
def test_a_block_holds_nothing_of_the_one_before(variant, bad):
    layer = make(variant=variant, attention="block", block_size=4)
    x = torch.randn(1, 8, 6, dtype=torch.float64)
    x[0, bad] = float("nan")
    state, ys = layer.init_state(1), []
    for x_t in x.unbind(1):
        y_t, state = layer.step(x_t, state)
        ys.append(y_t)
    for y in (layer(x)[0], torch.stack(ys, 1)):
        assert y.isfinite().all(-1).tolist() == [[True] * bad + [False] * (4 - bad) + [True] * 4]
    assert all(part.isfinite().all() for part in state.values())


def test_the_first_half_of_a_stack_looks_at_blocks():
    for count, expected in ((1, [False]), (2, [True, False]), (5, [True] * 3 + [False] * 2)):
        model = SequenceModel(1, 1, mixer="transnormer", d_model=4, n_layers=count)
        found = [m.in_blocks for m in model.modules() if isinstance(m, TransNormer)]
        assert found == expected
    model = SequenceModel(1, 1, mixer=TransNormer(4), d_model=4, n_layers=2)
    _, state = model(torch.randn(2, 5, 1))
    assert [sorted(part) for part in state["layers"]] == [["k", "position", "v"], ["memory"]]


def test_start():
    layer = TransNormer(64, n_heads=1, norm="layer")
    assert (layer.gain == 1).all()
    assert not layer.shift.any()
    for weight in (*layer.heads.proj.weight.split(64), layer.out_proj.weight):
        assert weight.abs().max().item() == pytest.approx((0.5 * 6 / 128) ** 0.5, rel=0.01)
    assert not layer.heads.proj.bias.any()
    assert TransNormer(64, attention="block").gain is None


@pytest.mark.unchecked
def test_bad_arguments():
    for name in ("attention", "variant", "norm"):
        with pytest.raises(UnknownNameError, match=f"TransNormer {name} named 'T3'"):
            TransNormer(6, **{name: "T3"})
    with pytest.raises(ArgumentError, match=r"TransNormer: block_size .* got 0"):
        TransNormer(6, block_size=0)
    with pytest.raises(ArgumentError, match=r"norm_eps must be positive, got 0"):
        TransNormer(6, norm_eps=0.0)
    with pytest.raises(ArgumentError, match=r"layer .* got .*5"):
        TransNormer(6, layer=5, n_layers=2)
