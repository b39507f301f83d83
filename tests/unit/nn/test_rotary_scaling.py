"""Slower turns against those of transformers."""

import pytest
import torch

from linrnn.mixers import Attention
from linrnn.nn import RotaryScaling

PLAIN = 500_000.0 ** -(torch.arange(0, 64, 2, dtype=torch.float64) / 64)
THEIRS = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048},
    "llama3": {
        "rope_type": "llama3",
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 2048,
    },
}


@pytest.mark.parametrize("kind", sorted(THEIRS))
def test_turns_equal_those_of_transformers(kind):
    transformers = pytest.importorskip("transformers")
    rope = pytest.importorskip("transformers.modeling_rope_utils")
    parameters = {"rope_theta": 500_000.0, **THEIRS[kind]}
    config = transformers.LlamaConfig(
        hidden_size=64, num_attention_heads=1, max_position_embeddings=2048 * 4
    )
    config.rope_parameters = parameters
    turns, length = rope.ROPE_INIT_FUNCTIONS[kind](config, "cpu")
    ours = RotaryScaling(kind, 4.0, 2048, 500_000.0)
    torch.testing.assert_close(ours.turns(PLAIN).float(), turns.float(), rtol=1e-5, atol=1e-9)
    assert ours.length == pytest.approx(length)


def test_ntk_slows_the_slowest_by_the_factor_and_the_fastest_not_at_all():
    turns = RotaryScaling("ntk", 8.0, base=500_000.0).turns(PLAIN)
    other_base = 500_000.0 * 8 ** (64 / 62)
    expected = other_base ** -(torch.arange(0, 64, 2, dtype=torch.float64) / 64)
    torch.testing.assert_close(turns, expected)
    torch.testing.assert_close(turns[-1] * 8, PLAIN[-1])
    torch.testing.assert_close(RotaryScaling("ntk", 8.0).turns(torch.ones(1)), torch.ones(1))


def test_a_factor_of_one_changes_nothing():
    for kind in ("none", *THEIRS, "ntk"):
        torch.testing.assert_close(RotaryScaling(kind, 1.0).turns(PLAIN), PLAIN)


@torch.no_grad()
def test_attention_with_linear_turns_reads_places_in_between():
    torch.manual_seed(0)
    plain = Attention(8, dtype=torch.float64)
    slow = Attention(8, dtype=torch.float64, scaling="linear", factor=2.0)
    slow.load_state_dict(plain.state_dict())
    x = torch.randn(1, 2, 8, dtype=torch.float64)
    far = slow(x, slow.init_state(1))[1]["k"][:, 1]
    place = torch.tensor([[0.5]], dtype=torch.float64)
    k = plain.k_proj(x[:, 1:]).unflatten(-1, (1, -1))
    torch.testing.assert_close(far, plain._turned(k, place)[:, 0])
