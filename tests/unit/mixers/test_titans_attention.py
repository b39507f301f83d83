"""Titans with attention is made of the two layers, whole and in pieces."""

import pytest
import torch
import torch.nn.functional as F
from plain_loop import check_equal

from linrnn.errors import LinrnnError
from linrnn.mixers import TitansAttention


def transcription(layer, x):
    """The two layers, each as it is alone."""
    memory, attention = (part(x[None])[0][0] for part in (layer.memory, layer.attention))
    if layer.arrangement == "layer":
        return layer.attention(memory[None])[0][0]
    norms = layer.attention_norm.weight, layer.memory_norm.weight
    near, gate = (
        F.rms_norm(z, z.shape[-1:], w, layer.norm_eps)
        for z, w in zip((attention, memory), norms, strict=True)
    )
    return near * gate.sigmoid()


@pytest.mark.parametrize("arrangement", ["gate", "layer"])
def test_equals_its_layers_split_and_whole_gradients_too(arrangement):
    options = {"arrangement": arrangement, "window": 3, "mini_batch": 4}
    check_equal(TitansAttention(8, n_heads=2, dtype=torch.float64, **options), transcription)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arrangement": "context"}, "no TitansAttention arrangement named 'context'"),
        ({"window": 0}, "TitansAttention: window must be an integer of at least 1, got 0"),
        ({"depth": 0}, "Titans: depth must be an integer of at least 1, got 0"),
    ],
)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        TitansAttention(8, **options)
