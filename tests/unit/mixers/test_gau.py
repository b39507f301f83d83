"""The GAU against a transcription of its equation and a public implementation."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from linrnn.errors import LinrnnError
from linrnn.mixers import GAU
from linrnn.testing import check_property


def livelier(layer):
    """Parameters of order one, biases too: with the initial ones, scores are hardly negative."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=0.7)
    return layer


def transcription(layer, x):
    """One query and one key at a time, rotations as complex numbers."""
    e, s, (B, T, _) = layer.d_inner, layer.d_key, x.shape
    speed = layer.base ** -(torch.arange(s // 2, dtype=torch.float64) / (s // 2))

    def turned(z, t):
        return torch.complex(z[0::2], z[1::2]) * torch.exp(1j * t * speed)

    def dot(q, k):
        return (q * k.conj()).real.sum()

    W_r, W_v, W_z = layer.W_in.split([e, e, s])
    y = torch.zeros(B, T, layer.d_model, dtype=torch.float64)
    for i in range(B):
        r, v, z = (F.silu(x[i] @ W.T) for W in (W_r, W_v, W_z))
        q, k = (layer.gamma[j] * z + layer.beta[j] for j in (0, 1))
        for t in range(T):
            mixed = torch.zeros(e, dtype=torch.float64)
            for u in range(t + 1):
                there, here = (u, t) if layer.rotary else (0, 0)
                score = dot(turned(q[t], here), turned(k[u], there)) / layer.n
                if layer.relative_bias:
                    score = score + dot(turned(layer.b[0], t), turned(layer.b[1], u))
                mixed = mixed + score.clamp(min=0) ** 2 * v[u]
            y[i, t] = layer.W_out @ (r[t] * mixed)
    return y


@pytest.mark.parametrize("rotary", [True, False])
@pytest.mark.parametrize("relative_bias", [True, False])
@torch.no_grad()
def test_forward_equals_a_transcription(rotary, relative_bias):
    torch.manual_seed(0)
    options = {"rotary": rotary, "relative_bias": relative_bias, "base": 30.0}
    layer = livelier(GAU(3, d_inner=4, d_key=6, n=5, **options, dtype=torch.float64))
    x = torch.randn(2, 9, 3, dtype=torch.float64)
    y, _ = layer(x)
    torch.testing.assert_close(y, transcription(layer, x), rtol=1e-11, atol=1e-11)
    first, state = layer(x[:, :4])
    torch.testing.assert_close(first, y[:, :4], rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(layer(x[:, 4:], state)[0], y[:, 4:], rtol=1e-11, atol=1e-11)


@torch.no_grad()
def test_equals_flash_pytorch():
    """Without positions, at its own length, and with its norm, residual and biases removed."""
    flash = pytest.importorskip("flash_pytorch.flash_pytorch")
    torch.manual_seed(0)
    theirs = flash.GAU(dim=5, query_key_dim=8, causal=True, add_residual=False).double()
    theirs.norm = torch.nn.Identity()
    theirs.rel_pos_bias = None
    ours = GAU(5, d_key=8, n=12, rotary=False, relative_bias=False, dtype=torch.float64)
    livelier(ours)
    r, v, z = ours.W_in.split([10, 10, 8])
    theirs.to_hidden[0].weight.copy_(torch.cat([v, r]))
    theirs.to_qk[0].weight.copy_(z)
    theirs.to_out[0].weight.copy_(ours.W_out)
    for linear in (theirs.to_hidden[0], theirs.to_qk[0], theirs.to_out[0]):
        linear.bias.zero_()
    theirs.offsetscale.gamma.copy_(ours.gamma)
    theirs.offsetscale.beta.copy_(ours.beta)
    x = torch.randn(2, 12, 5, dtype=torch.float64)
    torch.testing.assert_close(ours(x)[0], theirs(x), rtol=1e-12, atol=1e-12)


def test_gradients_of_order_one():
    """The law starts from the initial parameters, whose scores are small."""
    torch.manual_seed(0)
    layer = livelier(GAU(3, d_inner=4, d_key=6, n=3, dtype=torch.float64))
    state = layer(torch.randn(2, 3, 3, dtype=torch.float64))[1]
    k, v = (state[key].detach().requires_grad_() for key in ("k", "v"))
    x = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    parameters = dict(layer.named_parameters())

    def run(x, k, v, *values):
        given = dict(zip(parameters, values, strict=True))
        start = {"k": k, "v": v, "position": state["position"]}
        return torch.func.functional_call(layer, given, (x, start))[0]

    torch.autograd.gradcheck(run, (x, k, v, *parameters.values()), fast_mode=True)


def test_scores_are_divided_by_a_constant_whatever_the_length():
    torch.manual_seed(0)
    short, long = (GAU(4, d_key=6, n=n, relative_bias=False, dtype=torch.float64) for n in (10, 30))
    long.load_state_dict(livelier(short).state_dict())
    x = torch.randn(1, 7, 4, dtype=torch.float64)
    torch.testing.assert_close(short(x)[0], long(x)[0] * 9)


@pytest.mark.parametrize("relative_bias", [True, False])
@pytest.mark.parametrize("n", [64, 1024])
def test_scaled_start_keeps_the_size_and_sees_itself(n, relative_bias):
    torch.manual_seed(0)
    layer = GAU(64, n=n, relative_bias=relative_bias, dtype=torch.float64)
    assert layer.W_in.std().item() == pytest.approx(1 / 8, rel=0.03)
    assert layer.W_out.std().item() == pytest.approx(128**-0.5, rel=0.03)
    assert torch.equal(layer.gamma[0], layer.gamma[1])
    assert not layer.beta.any()
    # with W_o out of the way, the weight of a single step on itself
    x = torch.randn(500, 1, 64, dtype=torch.float64)
    r, v, _ = (F.silu(x @ w.T) for w in layer.W_in.split([128, 128, 128]))
    own = (layer(x)[0] / F.linear(r * v, layer.W_out)).detach().median().item()
    content = 0.36 if relative_bias else 1.0
    bias = layer.b[0].square().sum().item() if relative_bias else 0.0
    assert bias == pytest.approx(n**-0.25 if relative_bias else 0.0, rel=0.3)
    assert own == pytest.approx((content * n**-0.25 + bias) ** 2, rel=0.2)
    assert 0.02 < layer(torch.randn(2, n, 64, dtype=torch.float64))[0].std().item() < 1


def test_published_start_is_normal():
    torch.manual_seed(0)
    layer = GAU(64, init="published")
    assert layer.W_in.shape == (2 * 128 + 128, 64)
    for weight in (layer.W_in, layer.W_out):
        assert weight.std().item() == pytest.approx(0.02, rel=0.03)
    for weight in (layer.gamma, layer.b):
        assert weight.std().item() == pytest.approx(0.02, rel=0.2)
        assert abs(weight.mean().item()) < 0.006
    assert not layer.beta.any()
    assert GAU(4, relative_bias=False, init="published").b is None


@pytest.mark.parametrize("law", ["constant_memory", "reset_and_packing"])
def test_windowed_unit_keeps_the_laws(law):
    check_property(law, partial(GAU, window=4))


@pytest.mark.parametrize("law", ["forms_agree", "reset_and_packing", "gradients", "low_precision"])
@pytest.mark.parametrize(
    "options",
    [
        {"attention": "laplace", "buckets": 8, "window": 5},
        {"bias": True, "buckets": 32, "rotary": False, "relative_bias": False},
        {"table": 5, "relative_bias": False},
    ],
    ids=["laplace", "as FLASH-pytorch", "table"],
)
def test_variants_keep_the_laws(law, options):
    check_property(law, partial(GAU, **options))


def test_far_steps_share_a_bucket():
    """The same weights for all distances from 128 on, others below."""
    layer = livelier(GAU(4, buckets=8, rotary=False, relative_bias=False, dtype=torch.float64))
    torch.nn.init.normal_(layer.distances)
    far = layer._of_distances()
    assert far.shape == (129,)
    assert torch.equal(far[:4], layer.distances[:4])
    assert far[-1] == layer.distances[7]
    assert len(far.unique()) == 8


@torch.no_grad()
def test_a_table_has_a_number_for_each_distance():
    """Scores of two keys alike differ by what the table says of their distances."""
    layer = livelier(GAU(4, table=3, rotary=False, relative_bias=False, dtype=torch.float64))
    layer.distances.copy_(torch.tensor([0.1, 0.3, 0.7]))
    q = k = torch.zeros(1, 5, 128, dtype=torch.float64)
    v = torch.eye(5, dtype=torch.float64)[None]
    weights = layer._attend(q, k, v, torch.arange(5)[None])[0]
    expected = layer.distances[[2, 2, 2, 1, 0]].square()
    torch.testing.assert_close(weights[-1], expected, rtol=1e-12, atol=0)


def test_numbers_of_distances_are_trained_on_long_sequences():
    """Scores are made in several pieces there."""
    for options in ({"buckets": 8}, {"table": 5}):
        layer = livelier(GAU(4, **options, dtype=torch.float64))
        x = torch.randn(1, 1100, 4, dtype=torch.float64)
        (grad,) = torch.autograd.grad(layer(x)[0].sum(), [layer.distances])
        with torch.no_grad():
            moved = []
            for by in (1e-6, -1e-6):
                layer.distances[1] += by
                moved.append(layer(x)[0].sum().item())
                layer.distances[1] -= by
        assert grad[1].item() == pytest.approx((moved[0] - moved[1]) / 2e-6, rel=1e-5)


BAD = [
    ({"table": 0}, "GAU: table must be an integer of at least 1, got 0"),
    ({"table": 9, "buckets": 8}, "GAU: table must be None with buckets, got 9"),
    ({"attention": "softmax"}, "no GAU attention named 'softmax'"),
    ({"buckets": 2}, "GAU: buckets must be an integer from 4 to 64, got 2"),
    ({"d_inner": 0}, "GAU: d_inner must be an integer of at least 1, got 0"),
    ({"d_key": 3}, "GAU: d_key must be even, got 3"),
    ({"n": 0}, "GAU: n must be an integer of at least 1, got 0"),
    ({"window": 2.5}, "GAU: window must be an integer of at least 1, got 2.5"),
    ({"base": -1.0}, "GAU: base must be positive and finite, got -1.0"),
    ({"init": "scale"}, "no GAU init named 'scale'. Did you mean 'scaled'?"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("options", "message"), BAD)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        GAU(4, **options)
