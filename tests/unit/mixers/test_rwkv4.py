"""RWKV-4 against transformers, a quadratic softmax form, two SLRUs and numbers by hand."""

from math import log

import pytest
import torch
from scipy.stats import kstest
from torch import nn
from transformers import RwkvConfig
from transformers.models.rwkv.modeling_rwkv import RwkvSelfAttention, rwkv_linear_attention_cpu

from linrnn.errors import LinrnnError
from linrnn.mixers import RWKV4
from linrnn.mixers.rwkv4 import from_running_max, to_running_max
from linrnn.ops import linear_scan
from linrnn.testing import check_property
from linrnn.testing._mixer_laws import NUMERIC_LAWS
from published.rwkv4 import theirs_of


def lively(d_model, **options):
    """Weights at which every part matters: with the initial ones the output is zero."""
    layer = RWKV4(d_model, **options)
    for linear in (layer.key, layer.value, layer.receptance, layer.output):
        nn.init.normal_(linear.weight, std=d_model**-0.5)
    return layer


def bare(d_model, **options):
    return RWKV4(d_model, **options, token_shift=False)


def wkv_only(d_state=1, *, w, bonus):
    """The bare mean: key = value = identity-like columns of the input, gate and output 1."""
    layer = RWKV4(2 * d_state, d_state=d_state, token_shift=False, dtype=torch.float64)
    eye, zero = torch.eye(d_state), torch.zeros(d_state, d_state)
    with torch.no_grad():
        layer.key.weight.copy_(torch.cat([eye, zero], 1))
        layer.value.weight.copy_(torch.cat([zero, eye], 1))
        layer.receptance.weight.zero_()  # sigmoid(0) = 1 / 2
        layer.output.weight.copy_(2 * torch.cat([eye, zero], 0))
        layer.time_decay.copy_(torch.as_tensor(w, dtype=torch.float64).log())
        layer.time_first.copy_(torch.as_tensor(bonus))
    return lambda k, v, *state: (lambda y, last: (y[..., :d_state], last))(
        *layer(torch.cat([k, v], -1), *state)
    )


def random_kv(*shape, size=1.0):
    torch.manual_seed(0)
    k, v = torch.randn(2, *shape, dtype=torch.float64)
    return size * k, v


CASES = [(make, law) for make in (lively, bare) for law in NUMERIC_LAWS]


@pytest.mark.parametrize(("make", "law"), CASES)
def test_keeps_the_laws_where_its_output_is_not_zero(make, law):
    check_property(law, make)


def test_golden_values():
    t = torch.arange(1.0, 6, dtype=torch.float64)[None, :, None]
    y, _ = wkv_only(w=0.5, bonus=torch.tensor(0.3, dtype=torch.float64))(t.cos(), t.sin())
    expected = [0.8414709848, 0.8646362727, 0.7022772777, 0.1977003491, -0.4860892666]
    assert y.flatten().tolist() == pytest.approx(expected, abs=5e-11)


def test_constant_keys_by_hand():
    v = torch.tensor([1.0, 2, 3], dtype=torch.float64)[None, :, None]
    y, _ = wkv_only(w=log(2), bonus=log(2))(torch.zeros_like(v), v)
    assert y.flatten().tolist() == pytest.approx([1, 5 / 3, 17 / 7])


def test_equals_the_quadratic_softmax_form():
    k, v = random_kv(2, 20, 3, size=4.0)
    w, bonus = torch.tensor([[0.1, 0.5, 3.0], [0.5, -1.0, 2.0]], dtype=torch.float64)
    y, _ = wkv_only(3, w=w, bonus=bonus)(k, v)
    age = torch.arange(20)[:, None] - torch.arange(20)  # t - s
    score = k[:, None] - (age[..., None] - 1) * w
    score = torch.where((age == 0)[..., None], (k + bonus)[:, None], score)
    score = score.masked_fill((age < 0)[..., None], -torch.inf)
    expected = torch.einsum("btsn,bsn->btn", score.softmax(2), v)
    torch.testing.assert_close(y, expected)


def test_equals_two_slrus():
    k, v = random_kv(2, 30, 1)
    w, bonus = torch.tensor([0.7], dtype=torch.float64), torch.tensor([0.4], dtype=torch.float64)
    y, _ = wkv_only(1, w=w, bonus=bonus)(k, v)
    lam, gamma = (-w).exp(), bonus.exp()
    top, _ = linear_scan(lam, k.exp() * v)
    bottom, _ = linear_scan(lam, k.exp())
    extra = (gamma * lam - 1) * k.exp()
    # Y_t + (gamma lam - 1) e^k v = lam (Y_{t-1} + gamma e^k v): the two lam cancel in the ratio
    torch.testing.assert_close(y, (top + extra * v) / (bottom + extra))


@pytest.mark.parametrize("size", [1.0, 30.0, 300.0])
def test_equals_the_function_of_transformers_and_its_state(size):
    k, v = random_kv(2, 25, 4, size=size)
    w, bonus = torch.rand(4, dtype=torch.float64) + 0.01, torch.randn(4, dtype=torch.float64)
    k, v = k.float(), v.float()  # transformers casts keys to float32
    state = [z.float() for z in random_kv(2, 4)] + [torch.randn(2, 4)]
    state[1] = state[1].abs() + 0.1
    expected, last = rwkv_linear_attention_cpu(
        w.log().float(), bonus.float(), k, v, state=state, return_state=True
    )
    y, ours = wkv_only(4, w=w, bonus=bonus)(k.double(), v.double(), from_running_max(*state))
    torch.testing.assert_close(y, expected.double(), rtol=1e-4, atol=1e-4)
    theirs = from_running_max(*last)
    torch.testing.assert_close(ours["mean"], theirs["mean"].double(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours["log_norm"], theirs["log_norm"].double(), rtol=1e-5, atol=1e-4)


def test_equals_the_layer_of_transformers_with_its_weights_and_state():
    torch.manual_seed(0)
    layer = lively(6, d_state=10)
    config = RwkvConfig(hidden_size=6, attention_hidden_size=10, num_hidden_layers=1)
    peer = RwkvSelfAttention(config)
    peer.load_state_dict(theirs_of(layer.state_dict()))
    _, state = layer(torch.randn(2, 5, 6))
    state = {n: h.detach() for n, h in state.items()}
    peer_state = [torch.zeros(2, 6, 1), state["shift"].mT.clone()]
    peer_state += [z[..., None].clone() for z in to_running_max(state)]
    x = torch.randn(2, 12, 6)
    y, last = layer(x, state)
    expected, peer_last = peer(x, peer_state, use_cache=True)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(last["shift"], peer_last[1].mT)
    converted = from_running_max(*(z[..., 0] for z in peer_last[2:]))
    for name, value in converted.items():
        torch.testing.assert_close(last[name], value, rtol=1e-4, atol=1e-4)


def test_states_convert_both_ways_empty_ones_too():
    empty = RWKV4(3, token_shift=False).init_state(2)
    alpha, beta, p = to_running_max(empty)
    assert not alpha.any()
    assert not beta.any()
    assert (p == -1e38).all()
    back = from_running_max(alpha, beta, p)
    assert all(torch.equal(back[n], empty[n]) for n in empty)
    state = from_running_max(torch.tensor([3.0]), torch.tensor([2.0]), torch.tensor([5.0]))
    assert state["mean"].item() == 1.5
    assert state["log_norm"].item() == pytest.approx(5 + log(2))


def test_is_a_mean_however_large_the_keys():
    k, v = random_kv(2, 200, 3, size=1e4)
    y, _ = wkv_only(3, w=torch.full((3,), 0.01), bonus=torch.zeros(3))(k, v)
    assert y.abs().max() <= v.abs().max() * (1 + 1e-12)


@pytest.mark.parametrize("init", ["orthogonal", "published"])
@pytest.mark.parametrize("layer", [0, 2, 3])
def test_initial_values(layer, init):
    torch.manual_seed(0)
    rwkv = RWKV4(8, d_state=12, init=init, layer=layer, n_layers=4)
    z, o = layer / 3, 1 - layer / 4
    h, i = torch.arange(12) / 11, torch.arange(8) / 8
    torch.testing.assert_close(rwkv.time_decay.detach(), -5 + 8 * h ** (0.7 + 1.3 * z))
    zigzag = torch.tensor([0.0, 0.5, -0.5] * 4)
    torch.testing.assert_close(rwkv.time_first.detach(), log(0.3) + zigzag)
    torch.testing.assert_close(rwkv.mu_k.detach(), i**o)
    torch.testing.assert_close(rwkv.mu_v.detach(), i**o + 0.3 * z)
    torch.testing.assert_close(rwkv.mu_r.detach(), i ** (o / 2))
    start = 0.0 if init == "published" else 1.0
    for linear, size in (
        (rwkv.value, 1.5),
        (rwkv.key, 1.5 * start),
        (rwkv.receptance, 1.5 * start),
    ):
        gram = linear.weight.mT @ linear.weight
        torch.testing.assert_close(gram.detach(), size * torch.eye(8), atol=1e-5, rtol=0)
    gram = rwkv.output.weight @ rwkv.output.weight.mT
    torch.testing.assert_close(gram.detach(), start * torch.eye(8), atol=1e-5, rtol=0)
    torch.manual_seed(0)
    other = RWKV4(8, d_state=12, layer=layer, n_layers=4)
    assert torch.equal(rwkv.value.weight, other.value.weight)  # drawn first, whatever follows


def test_bare_initial_values():
    torch.manual_seed(0)
    layer = RWKV4(2, d_state=20_000, token_shift=False)
    lam = torch.exp(-layer.time_decay.double().exp()).detach().numpy()
    assert kstest((lam**2 - 0.81) / (0.999**2 - 0.81), "uniform").pvalue > 1e-3
    assert not layer.time_first.any()
    assert set(layer.init_state(1)) == {"mean", "log_norm"}
    assert not layer.init_state(1)["log_norm"].any()


BAD = [
    ({"d_state": 0}, "RWKV4: d_state must be an integer of at least 1, got 0"),
    ({"layer": 2, "n_layers": 2}, "RWKV4: layer must be an integer from 0 to n_layers-1=1, got 2"),
    ({"init": "publisht"}, "no RWKV4 init named 'publisht'. Did you mean 'published'?"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("options", "message"), BAD)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        RWKV4(4, **options)


@pytest.mark.unchecked
def test_state_of_the_other_kind_is_refused():
    with pytest.raises(TypeError, match=r"must be a dict with .*shift"):
        RWKV4(4)(torch.ones(1, 3, 4), bare(4).init_state(1))
