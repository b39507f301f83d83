"""TTT-MLP against a loop in which autograd finds the inner gradients, and its start."""

import pytest
import torch
from inner_loop import transcription
from plain_loop import check_equal

from linrnn.errors import LinrnnError
from linrnn.mixers import TTTMLP

F64 = torch.float64


@pytest.mark.parametrize("options", [{}, {"gate": True}, {"mini_batch": 1}], ids=str)
def test_equals_a_transcription_split_and_whole_gradients_too(options):
    sizes = {"n_heads": 2, "d_head": 4, "expand": 2, "mini_batch": 4, "dtype": F64} | options
    check_equal(TTTMLP(6, **sizes), transcription)


def test_sizes_and_starts_are_the_published_ones():
    layer = TTTMLP(768, device="meta")
    assert (layer.n_heads, layer.d_head, layer.mini_batch) == (12, 64, 16)
    assert layer.memory.W1.shape == (12, 64, 256)
    layer = TTTMLP(256)
    for matrix in (layer.memory.W1, layer.memory.W2):
        assert matrix.std().item() == pytest.approx(0.02, rel=0.05)


@pytest.mark.unchecked
def test_constructor_words_its_errors():
    with pytest.raises(LinrnnError, match="TTTMLP: expand must be an integer of at least 1, got 0"):
        TTTMLP(8, expand=0)
