"""AFT against its equation with one weight for each pair of steps and channel; golden numbers."""

import itertools
from functools import partial

import pytest
import torch

from linrnn.errors import LinrnnError
from linrnn.mixers import AFT
from linrnn.ops import attention
from linrnn.testing import check_property

OPTIONS = {
    "simple": {},
    "local": {"window": 4, "rank": 3, "max_length": 15},
    "conv": {"window": 4, "n_heads": 2},
    "full": {"rank": 3, "max_length": 15},
}
each_kind = pytest.mark.parametrize("kind", OPTIONS)


def make(kind):
    """Weights of positions of order one, as the initial ones are next to none."""
    layer = AFT(4, kind=kind, d_inner=6, dtype=torch.float64, **OPTIONS[kind])
    for name, parameter in layer.named_parameters():
        if not name.endswith("weight"):
            torch.nn.init.normal_(parameter)
    return layer


def position_weights(layer, time):
    """``w_ts``, (T, T) or (T, T, d_inner)."""
    t = torch.arange(time)
    age = t[:, None] - t
    if layer.kind == "simple":
        return torch.zeros(time, time, 1)
    if layer.kind == "conv":
        u = layer.u
        u = (u - u.mean(1, keepdim=True)) / (u.std(1, correction=0, keepdim=True) + 1e-5)
        w = (layer.gain[:, None] * u + layer.shift[:, None]).repeat_interleave(3, 0)  # (6, 4)
        near = w[:, age.clamp(0, 3)].movedim(0, -1)
        return torch.where((age < 4)[..., None], near, 0)
    place = t.clamp(max=14)
    w = (layer.a[place] @ layer.b[place].T)[..., None]
    return w if layer.kind == "full" else torch.where((age < 4)[..., None], w, 0)


def explicit(layer, x):
    q, k, v = (x @ proj.weight.T for proj in (layer.q_proj, layer.k_proj, layer.v_proj))
    scores = k + position_weights(layer, len(x))  # (T, T, d_inner)
    visible = torch.ones(len(x), len(x)).tril().bool()[..., None]
    weight = torch.where(visible, scores, float("-inf")).softmax(1)
    return (q.sigmoid() * (weight * v).sum(1)) @ layer.out_proj.weight.T


@each_kind
def test_equals_one_weight_for_each_pair_split_and_whole_gradients_too(kind):
    """20 steps, 5 of them beyond the positions there are."""
    layer = make(kind)
    x = torch.randn(1, 20, 4, dtype=torch.float64, requires_grad=True)
    expected = explicit(layer, x[0])[None]
    first, state = layer(x[:, :7])
    y = torch.cat([first, layer(x[:, 7:], state)[0]], 1)
    torch.testing.assert_close(y, expected, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(layer(x)[0], expected, rtol=1e-9, atol=1e-11)
    sources, weight = (x, *layer.parameters()), torch.randn_like(y)
    got, want = (torch.autograd.grad((z * weight).sum(), sources) for z in (y, expected))
    torch.testing.assert_close(got, want, rtol=1e-7, atol=1e-9)


@each_kind
def test_keys_of_any_size_are_weights(kind):
    """Float32 has no exp(100): sums of weights must not be made."""
    layer = make(kind).float()
    torch.nn.init.normal_(layer.k_proj.weight, std=1000)
    x = torch.randn(1, 20, 4, requires_grad=True)
    y, _ = layer(x)
    expected = explicit(layer.double(), x[0].double())
    torch.testing.assert_close(y[0].double(), expected, rtol=1e-3, atol=1e-4)
    assert torch.autograd.grad(y.sum(), x)[0].isfinite().all()


def test_mean_of_three_numbers():
    layer = AFT(1, dtype=torch.float64)
    with torch.no_grad():
        layer.k_proj.weight.zero_()
        for linear, weight in ((layer.q_proj, 1e3), (layer.v_proj, 1), (layer.out_proj, 1)):
            linear.weight.fill_(weight)
    y, _ = layer(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64).view(1, 3, 1))
    assert y.flatten().tolist() == pytest.approx([1, 1.5, 2])


LAWS = ("forms_agree", "causal", "reset_and_packing", "gradients", "low_precision")


@pytest.mark.parametrize(
    ("kind", "law"),
    [*itertools.product(("local", "conv", "full"), LAWS), ("full", "higher_derivatives")],
)
def test_kinds_keep_the_laws(kind, law):
    options = {"window": 2, "rank": 2, "max_length": 6}
    check_property(law, partial(AFT, kind=kind, **options))


@each_kind
def test_nan_before_a_reset_stays_there(kind):
    layer, x = make(kind), torch.randn(1, 9, 4, dtype=torch.float64)
    alone, _ = layer(x[:, 3:])
    x[:, 2] = float("nan")
    y, _ = layer(x, reset=(torch.arange(9) == 3)[None])
    torch.testing.assert_close(y[:, 3:], alone)


def test_full_weights_are_computed_a_few_rows_at_a_time(monkeypatch):
    layer, x = make("full"), torch.randn(2, 40, 4, dtype=torch.float64, requires_grad=True)
    few = torch.autograd.grad(layer(x)[0].square().sum(), x)[0]
    monkeypatch.setitem(attention.MOST, "per_channel", 1000)
    torch.testing.assert_close(torch.autograd.grad(layer(x)[0].square().sum(), x)[0], few)


def test_state_is_what_the_kind_needs():
    sizes = {}
    for kind in OPTIONS:
        _, state = make(kind)(torch.zeros(1, 9, 4, dtype=torch.float64))
        sizes[kind] = {name: tuple(part.shape[1:]) for name, part in state.items()}
    mean = {"mean": (6,), "log_norm": (6,)}
    window = {**mean, "k": (4, 6), "v": (4, 6), "position": ()}
    full = {"k": (9, 3 + 6), "v": (9, 6), "position": ()}
    assert sizes == {"simple": mean, "local": window, "conv": window, "full": full}


def test_starts_as_published():
    local, conv = AFT(64, kind="local"), AFT(64, kind="conv", n_heads=4, window=500)
    assert local.a.std().item() == pytest.approx(0.01, rel=0.02)
    assert conv.u.std().item() == pytest.approx(1, rel=0.05)
    assert not conv.gain.any()
    assert not conv.shift.any()


def test_only_keys_have_no_bias_which_would_cancel():
    layer = AFT(6, bias=True)
    biased = {n.split(".")[0] for n, _ in layer.named_parameters() if n.endswith("bias")}
    assert biased == {"q_proj", "v_proj", "out_proj"}
    assert not any(n.endswith("bias") for n, _ in AFT(6).named_parameters())


BAD = [
    ({"kind": "global"}, "no AFT kind named 'global'"),
    ({"n_heads": 3}, "AFT: n_heads must divide d_inner=8, got n_heads=3"),
    ({"window": 0}, "AFT: window must be an integer of at least 1, got 0"),
    ({"rank": 0}, "AFT: rank must be an integer of at least 1, got 0"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("options", "message"), BAD)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        AFT(8, **options)
