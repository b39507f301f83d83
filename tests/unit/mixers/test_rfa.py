"""RFA: what its features estimate, other people's loop, the gate, and directions drawn anew."""

from functools import partial

import pytest
import torch

from linrnn.errors import ArgumentError
from linrnn.mixers import RFA
from linrnn.testing import check_property


def make(d_model=6, **options):
    torch.manual_seed(0)
    return RFA(d_model, **{"dtype": torch.float64, "n_features": 8, **options})


def features(layer, x):
    """Features of one vector a head, (..., H, d_key), written out head by head."""
    x = x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    heads = []
    for h, w in enumerate(layer.directions.weight):
        z = (w * layer.sigma[h] / layer.tau) @ x[..., h, :, None]
        heads.append(torch.cat([z.sin(), z.cos()], -2)[..., 0] / len(w) ** 0.5)
    return torch.stack(heads, -2)


def test_features_estimate_a_gaussian_of_the_difference():
    layer = make(n_features=20_000, n_heads=1, tau=1.5)
    with torch.no_grad():
        layer.sigma.uniform_(0.5, 2)
    a, b = torch.randn(2, 1, 6, dtype=torch.float64)
    terms = features(layer, a) * features(layer, b)
    got = terms.sum().item()
    n = [z / z.norm() for z in (a, b)]
    exact = torch.exp(-((layer.sigma * (n[0] - n[1])).square().sum()) / (2 * 1.5**2)).item()
    # cos(w . d) has a variance below 1/2
    assert got == pytest.approx(exact, abs=3 * (0.5 / 20_000) ** 0.5)


@pytest.mark.parametrize("gate", [False, True])
def test_equals_the_masked_product(gate):
    layer = make(n_heads=2, d_key=4, d_value=5, gate=gate, tau=1.5)
    x = torch.randn(1, 90, 6, dtype=torch.float64)
    q, k, v = layer.heads(x)
    q, k = (features(layer, z)[0].transpose(0, 1) for z in (q, k))
    weight = (q @ k.mT).tril()
    if gate:
        g = layer.gate_proj(x)[0].sigmoid().T
        total = g.log().cumsum(-1)
        weight = weight * (total[:, :, None] - total[:, None]).tril().exp() * (1 - g[:, None])
    total = weight.sum(-1, keepdim=True).abs().clamp(min=1e-3)
    expected = layer.out_proj((weight / total @ v[0].transpose(0, 1)).transpose(0, 1).flatten(1))
    torch.testing.assert_close(layer(x)[0][0], expected, rtol=1e-8, atol=1e-10)


def test_equals_the_loop_of_another_library():
    naive = pytest.importorskip("fla.ops.simple_gla.naive")
    layer = make(8, n_heads=2, dtype=torch.float32)
    x = torch.randn(2, 70, 8, requires_grad=True)
    q, k, v = layer.heads(x)
    gate = layer.gate_proj(x).sigmoid()
    o, S = naive.naive_recurrent_simple_gla(
        features(layer, q),
        (1 - gate)[..., None] * features(layer, k),
        torch.cat([v, torch.ones_like(v[..., :1])], -1),
        gate.log(),
        scale=1.0,
    )
    expected = layer.out_proj((o[..., :-1] / o[..., -1:].abs().clamp(min=1e-3)).flatten(2))
    first, state = layer(x[:, :30])
    rest, state = layer(x[:, 30:], state)
    y = torch.cat([first, rest], 1)
    torch.testing.assert_close(y, expected, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(state["memory"], S, rtol=1e-4, atol=1e-5)
    weight = torch.randn_like(y)
    wanted = [x, *layer.parameters()]
    grads, others = (torch.autograd.grad((out * weight).sum(), wanted) for out in (y, expected))
    for got, other in zip(grads, others, strict=True):
        torch.testing.assert_close(got, other, rtol=1e-2, atol=1e-3 * other.abs().max().item())


def test_the_gate_by_hand():
    layer = make(1, n_heads=1)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
        layer.heads.proj.weight[2] = 1  # of the values; queries and keys are zero, g is 1/2
        layer.out_proj.weight.fill_(1)
    x = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64).view(1, 3, 1)
    expected = x.new_tensor([1.0, 5 / 3, 17 / 7])
    torch.testing.assert_close(layer(x)[0].flatten(), expected)


def test_a_memory_written_with_other_directions_begins_anew():
    layer, x = make(), torch.randn(2, 9, 6, dtype=torch.float64)
    y, state = layer(x)
    layer.redraw()
    again, last = layer(x, state)
    fresh, expected = layer(x)
    assert not torch.allclose(again, y)
    assert torch.equal(again, fresh)
    assert last["draw"].tolist() == [1, 1]
    assert torch.equal(last["memory"], expected["memory"])
    torch.testing.assert_close(layer.step(x[:, 0], state)[0], fresh[:, 0])


def test_updates_draw_the_directions_anew():
    layer, other = make(redraw_every=3), make()
    for _ in range(7):
        layer.after_update()
        other.after_update()
    assert (layer.directions.draws, layer.updates) == (2, 1)
    assert (other.directions.draws, other.updates) == (0, 0)


def test_start():
    layer = make(64, n_heads=1)
    assert (layer.sigma == 1).all()
    q = layer.heads.proj.weight[:64]
    assert q.abs().max().item() == pytest.approx((0.5 * 6 / 128) ** 0.5, rel=0.01)
    torch.testing.assert_close(layer.gate_proj.bias.sigmoid(), q.new_tensor([0.9]))


def test_the_published_norm_leaves_vectors_a_little_short():
    layer = make(unit="published")
    x = torch.randn(1, 9, 6, dtype=torch.float64)
    q, k, _ = layer.heads(x)
    products = layer.directions(q / (q.norm(dim=-1, keepdim=True) + 1e-3) * layer.sigma)
    features = torch.cat([products.sin(), products.cos()], -1) / 8**0.5
    torch.testing.assert_close(layer._features(q, k, x, {}, None).q, features)
    assert torch.autograd.grad(layer(x * 0)[0].sum(), layer.heads.proj.weight)[0].isfinite().all()


@pytest.mark.parametrize("law", ["forms_agree", "reset_and_packing", "gradients", "low_precision"])
@pytest.mark.parametrize(
    "options",
    [
        {"unit": "published"},
    ],
    ids=["published"],
)
def test_variants_keep_the_laws(law, options):
    check_property(law, partial(RFA, **options))


@pytest.mark.unchecked
def test_bad_arguments():
    for name in ("n_features", "redraw_every"):
        with pytest.raises(ArgumentError, match=f"RFA: {name} .* got 0"):
            RFA(6, **{name: 0})
    with pytest.raises(ArgumentError, match="RFA: tau must be positive, got 0"):
        RFA(6, tau=0.0)
