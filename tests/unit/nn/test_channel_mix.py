"""RWKV channel mixing against transformers, in pieces and with resets."""

import pytest
import torch
from torch import nn
from transformers import RwkvConfig
from transformers.models.rwkv.modeling_rwkv import RwkvFeedForward

from linrnn.errors import ArgumentError
from linrnn.nn import ChannelMix
from rwkv_package import load


def make(d_model=6, **options):
    """With weights at which every part matters: the published ones give zero."""
    torch.manual_seed(0)
    mix = ChannelMix(d_model, **{"dtype": torch.float64, **options})
    for linear in (mix.key, mix.value, mix.receptance):
        nn.init.normal_(linear.weight, std=0.5)
    return mix


def test_equals_transformers_with_its_state():
    mix = make()
    config = RwkvConfig(hidden_size=6, num_hidden_layers=1, attention_hidden_size=6)
    peer = RwkvFeedForward(config).double()
    with torch.no_grad():
        peer.time_mix_key.copy_(mix.mu_k)
        peer.time_mix_receptance.copy_(mix.mu_r)
        for name in ("key", "value", "receptance"):
            getattr(peer, name).weight.copy_(getattr(mix, name).weight)
    x, past = torch.randn(2, 9, 6, dtype=torch.float64), torch.randn(2, 1, 6, dtype=torch.float64)
    with torch.no_grad():
        expected, (last,) = peer(x, [past.mT.clone()])
        y, after = mix(x, past)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(after, last.mT)


@pytest.mark.parametrize("cut", [0, 1, 4, 9])
def test_pieces_and_steps_equal_one_call(cut):
    mix, x = make(), torch.randn(2, 9, 6, dtype=torch.float64)
    past = torch.randn(2, 1, 6, dtype=torch.float64)
    whole, end = mix(x, past)
    first, middle = mix(x[:, :cut], past)
    second, last = mix(x[:, cut:], middle)
    torch.testing.assert_close(torch.cat([first, second], 1), whole)
    torch.testing.assert_close(last, end)
    for t in range(9):
        y, past = mix.step(x[:, t], past)
        torch.testing.assert_close(y, whole[:, t])


def test_packed_sequences_equal_separate_ones():
    mix, x = make(), torch.randn(1, 7, 6, dtype=torch.float64)
    x[:, 2] = float("nan")
    reset = torch.zeros(1, 7, dtype=torch.bool)
    reset[:, [3, 4]] = True
    y, last = mix(x, mix.init_state(1), reset)
    alone = [mix(part, mix.init_state(1))[0] for part in x[:, 3:].split([1, 3], 1)]
    torch.testing.assert_close(y[:, 3:], torch.cat(alone, 1))
    torch.testing.assert_close(last, x[:, -1:])


def test_published_start_is_nothing():
    mix = ChannelMix(8, init="published")
    y, _ = mix(torch.randn(2, 5, 8), mix.init_state(2))
    assert not y.any()
    assert mix.key.weight.any()


def test_starts_orthogonal_and_looks_back_most_in_the_first_channels():
    mix = ChannelMix(8, layer=1, n_layers=4)
    assert mix.d_inner == 32
    for linear in (mix.value, mix.receptance):
        gram = linear.weight @ linear.weight.mT
        torch.testing.assert_close(gram.detach(), torch.eye(8), atol=1e-5, rtol=0)
    torch.testing.assert_close(mix.mu_k.detach(), (torch.arange(8) / 8) ** 0.75)
    gram = mix.key.weight.mT @ mix.key.weight
    torch.testing.assert_close(gram.detach(), 4 * torch.eye(8), atol=1e-5, rtol=0)


def test_half_precision_keeps_a_float32_state():
    mix = make(dtype=torch.bfloat16)
    y, past = mix(torch.randn(2, 5, 6, dtype=torch.bfloat16), mix.init_state(2))
    assert y.dtype == torch.bfloat16
    assert past.dtype == torch.float32


def test_without_a_receptance_as_in_rwkv7(monkeypatch):
    step = load(monkeypatch, seven=True).RWKV_x070_CMix_one
    mix, x = ChannelMix(6, d_inner=9, receptance=False, layer=1, n_layers=3), torch.randn(1, 7, 6)
    expected = 1 - (torch.arange(6.0) / 6) ** ((2 / 3) ** 4)
    torch.testing.assert_close(1 - mix.mu_k.detach(), expected)
    assert {name for name, _ in mix.named_parameters()} == {"mu_k", "key.weight", "value.weight"}
    past, outputs = torch.zeros(6), []
    for x_t in x[0]:
        y, past = step(x_t, past, 1 - mix.mu_k, mix.key.weight.T, mix.value.weight.T)
        outputs.append(y)
    y, last = mix(x, mix.init_state(1))
    torch.testing.assert_close(y[0], torch.stack(outputs))
    assert torch.equal(last[0, 0], x[0, -1])


BAD = [
    ({"d_inner": 0}, "ChannelMix: d_inner must be an integer of at least 1, got 0"),
    ({"layer": 1}, r"layer must be an integer from 0 to n_layers-1=0, got 1. Pass n_layers="),
    ({"layer": -1, "n_layers": 2}, "got -1"),
    ({"n_layers": 0}, "n_layers must be an integer of at least 1, got 0"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("options", "message"), BAD)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(ArgumentError, match=message):
        ChannelMix(4, **options)
