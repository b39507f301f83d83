"""Mixture of memories against a plain loop and golden numbers, and its errors."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from fixture_f import BETA, DECAY, K, Q, V, near

from linrnn.errors import LinrnnError
from linrnn.mixers import MoM
from linrnn.mixers._families.routes import Route
from linrnn.nn import l2_normalise
from linrnn.ops import delta_scan
from linrnn.testing import check_property


def test_two_memories_give_the_golden_numbers():
    even = torch.tensor([True, False, True, False])
    route = Route(torch.stack([even, ~even])[None], None)
    q, k, v = (route.gather(z.transpose(1, 2).expand(1, 2, 4, 2)) for z in (Q, K, V))
    beta, g = (
        route.gather(z.transpose(1, 2).mT.expand(1, 4, 2).mT[..., None])
        for z in (BETA, DECAY.log())
    )
    o, _ = delta_scan(q[:, :, None], k[:, :, None], v[:, :, None], beta, g, scale=2**-0.5)
    near(
        route.scatter(o[:, :, 0]).sum(1),
        *(0.353553, 0.707107, 1.697056, -0.565685, -0.070711, 0.742462, 0.360624, 0.869741),
    )


def test_rows_are_as_many_as_the_memory_with_most_is_sent():
    sent = torch.tensor([[True, False, True, True, False], [False, True, False, False, False]])
    route, z = Route(sent[None], None), torch.arange(10.0).view(1, 2, 5, 1)
    rows = route.gather(z)
    assert rows[..., 0].tolist() == [[0, 2, 3], [6, 0, 0]]
    torch.testing.assert_close(route.scatter(rows), torch.where(sent[None, ..., None], z, 0))
    nothing = Route(torch.zeros(1, 2, 3, dtype=torch.bool), None)
    assert not nothing.scatter(nothing.gather(z[:, :, :3] + 1)).any()


def plain_loop(layer, x):
    """One row, step after step, each memory with the inputs that it was sent."""
    (H, K), V = (layer.n_heads, layer.d_key), layer.d_value
    weights, g = layer._weights(x)[0], layer.decay(x)[0]
    q, k, v, beta = (z[0] for z in layer.heads(x))
    past = [[] for _ in range(layer.count)]
    S, outputs = x.new_zeros(layer.count, H, K, V), []
    for t in range(x.shape[1]):
        o = 0
        for m in weights[t].nonzero().flatten().tolist():
            own = slice(m * H, m * H + H) if layer.own_maps else slice(0, H)
            past[m].append(torch.cat([q[t].flatten(), k[t, own].flatten(), v[t, own].flatten()]))
            last = torch.stack(past[m][-layer.d_conv :], -1)
            c = F.silu((last * layer.conv1d.weight[:, layer.d_conv - last.shape[1] :]).sum(-1))
            a, b, value = c.split([H * K, H * K, H * V])
            a, b = l2_normalise(a.view(H, K)), l2_normalise(b.view(H, K))
            decayed = S[m] * g[t, m if layer.own_maps else 0].exp()[:, None, None]
            short = value.view(H, V) - torch.einsum("hkv,hk->hv", decayed, b)
            rate = beta[t, own].sigmoid()[..., None]
            S[m] = decayed + rate * b[..., None] * short[:, None]
            o = o + weights[t, m] * torch.einsum("hkv,hk->hv", S[m], a) * K**-0.5
        outputs.append(o)
    return layer.out(torch.stack(outputs)[None], x), S


@pytest.mark.parametrize(
    "options",
    [{}, {"shared": True}, {"own_maps": False, "top": 3}, {"top": 1, "d_conv": 2}],
    ids=["default", "shared", "one map", "one memory"],
)
@torch.no_grad()
def test_equals_a_plain_loop(options):
    torch.manual_seed(0)
    layer = MoM(8, memories=4, n_heads=2, **options, dtype=torch.float64)
    x = torch.randn(1, 40, 8, dtype=torch.float64)
    y, S = plain_loop(layer, x)
    found, state = layer(x)
    torch.testing.assert_close(found, y)
    torch.testing.assert_close(state["memory"][0], S)


def test_a_memory_that_is_not_sent_anything_stays_but_for_resets():
    layer = MoM(8, memories=3, top=1, dtype=torch.float64)
    with torch.no_grad():
        layer.router.zero_()
        layer.router[0, 0], layer.router[1, 0] = 1, -1
    x = torch.randn(1, 6, 8, dtype=torch.float64)
    x[:, :3, 0], x[:, 3:, 0] = 5, -5  # the first memory, then the second
    _, before = layer(x[:, :3])
    _, after = layer(x[:, 3:], before)
    assert torch.equal(before["memory"][:, 0], after["memory"][:, 0])
    assert not after["memory"][:, 2].any()
    reset = torch.tensor([[False, True, False]])
    _, cut = layer(x[:, 3:], before, reset=reset)
    assert not cut["memory"][:, 0].any()
    assert not cut["conv"][:, 0].any()
    _, begun = layer(x[:, 4:])
    torch.testing.assert_close(cut, begun)


@pytest.mark.parametrize("law", ["forms_agree", "reset_and_packing", "gradients", "low_precision"])
@pytest.mark.parametrize(
    "options",
    [
        {"memories": 3, "shared": True, "conv_bias": True},
        {"memories": 3, "own_maps": False, "gate": "none", "d_conv": 1},
    ],
    ids=["shared", "one map"],
)
def test_variants_keep_the_laws(law, options):
    check_property(law, partial(MoM, **options))


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memories": 3, "top": 4}, "MoM: top must be at most memories=3, got 4"),
        ({"memories": 2, "own_maps": False}, "MoM: top must be below memories=2 without own_maps"),
    ],
)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        MoM(8, **options)
