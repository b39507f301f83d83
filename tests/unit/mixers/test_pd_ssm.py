"""PD-SSM against its equation with whole matrices, and what a permutation must do."""

from math import pi

import pytest
import torch
import torch.nn.functional as F
from plain_loop import check_equal

from linrnn.errors import LinrnnError
from linrnn.mixers import PDSSM

F64 = torch.float64


def transcription(layer, u):
    """The recurrence with matrices, whose one-hot columns or rows have a softmax's gradient."""
    N, columns = layer.d_state, layer.one_hot == "columns"
    B = torch.complex(layer.B[:, 0], layer.B[:, 1])
    h = torch.eye(N, dtype=torch.complex128)[0]
    outputs = []
    for row in u:
        weights = (layer.selector @ row).softmax(0)
        M = torch.einsum("k,kmn->mn", weights, layer.dictionary)
        soft = M.softmax(0 if columns else 1)
        hard = F.one_hot(M.argmax(0 if columns else 1), N).to(F64)
        hard = hard.T if columns else hard
        P = (hard - soft).detach() + soft
        scale = torch.polar(layer.magnitude(row).sigmoid(), 2 * pi * layer.phase(row).sigmoid())
        P = P.to(scale.dtype)
        moved = P @ (scale * h) if columns else scale * (P @ h)
        h = moved + B @ row.to(B.dtype)
        outputs.append(layer.readout(torch.cat([h.real, h.imag])) + layer.skip * row)
    return torch.stack(outputs)


@pytest.mark.parametrize("one_hot", ["columns", "rows"])
def test_equals_a_transcription_split_and_whole_gradients_too(one_hot):
    layer = PDSSM(4, d_state=6, dictionary_size=3, one_hot=one_hot, dtype=F64)
    check_equal(layer, transcription)


def test_columns_add_up_and_rows_copy():
    """Both columns go to the second row, or both rows read the second column, which is 0."""
    expected = {"columns": [[0, 0.5], [0, 0.125]], "rows": [[0, 0], [0, 0]]}
    for one_hot, states in expected.items():
        layer = PDSSM(1, d_state=2, dictionary_size=1, one_hot=one_hot, dtype=F64)
        with torch.no_grad():
            scale = torch.tensor([0.5, 0.25], dtype=F64)
            layer.magnitude[2].weight.zero_()
            layer.magnitude[2].bias.copy_(scale.logit())
            layer.phase[2].weight.zero_()
            layer.phase[2].bias.fill_(-1000.0)
            where = [[0.0, 0.0], [1.0, 1.0]] if one_hot == "columns" else [[0.0, 1.0], [0.0, 1.0]]
            layer.dictionary.copy_(torch.tensor(where)[None])
            layer.B.zero_()
        state = None
        for row in states:
            _, state = layer(torch.zeros(1, 1, 1, dtype=F64), state)
            torch.testing.assert_close(state["h"][0].real, torch.tensor(row, dtype=F64))


@pytest.mark.parametrize("one_hot", ["columns", "rows"])
def test_of_equal_numbers_the_first_is_taken_in_a_step_too(one_hot):
    layer = PDSSM(5, d_state=7, one_hot=one_hot)
    torch.nn.init.zeros_(layer.dictionary)
    x = torch.randn(2, 4, 5)
    with torch.no_grad():
        y, _ = layer(x)
        state = layer.init_state(2)
        for t in range(4):
            y_t, state = layer.step(x[:, t], state)
            torch.testing.assert_close(y_t, y[:, t])


def test_without_a_gradient_the_numbers_are_the_same():
    layer = PDSSM(5, d_state=7)
    x, reset = torch.randn(2, 20, 5), torch.rand(2, 20) < 0.2
    with torch.no_grad():
        alone, state = layer(x, reset=reset)
    y, last = layer(x, reset=reset)
    assert torch.equal(y, alone)
    assert torch.equal(last["h"], state["h"])
    later = torch.randn(2, 5)
    with torch.no_grad():
        alone, _ = layer.step(later, state)
    torch.testing.assert_close(layer.step(later, last)[0], alone)


def test_initial_variances():
    layer = PDSSM(64, d_state=128)
    assert layer.dictionary.std().item() == pytest.approx(128**-0.5, rel=0.02)
    assert layer.B.std().item() == pytest.approx(256**-0.5, rel=0.02)
    assert layer.dictionary_size == 8
    assert layer.magnitude[0].out_features == 256


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"one_hot": "both"}, "no PDSSM one_hot named 'both'"),
        ({"dictionary_size": 0}, "PDSSM: dictionary_size must be an integer of at least 1, got 0"),
        ({"hidden_factor": 0}, "PDSSM: hidden_factor must be an integer of at least 1, got 0"),
    ],
)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        PDSSM(8, **options)
