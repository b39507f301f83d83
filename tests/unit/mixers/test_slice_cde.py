"""SLiCE against its equation with whole matrices, and its start."""

import pytest
import torch
from plain_loop import check_equal

from linrnn.errors import LinrnnError
from linrnn.mixers import SliceCDE

F64 = torch.float64


def matrix(layer, dX):
    """``A(dX)``, whole."""
    D, numbers = layer.d_model, dX @ layer.A
    if layer.kind == "block":
        side = layer.block_size
        return torch.block_diag(*numbers.view(D // side, side, side))
    if layer.kind == "diagonal":
        return torch.diag(numbers)
    U, V = ((dX @ factor).view(D, layer.rank) for factor in (layer.U, layer.V))
    return torch.diag(numbers) + U @ V.T


def transcription(layer, u):
    y = layer.first(u[0])
    outputs = [y]
    for row in u[1:]:
        dX = layer.step_size * torch.cat([torch.ones(1, dtype=F64), row])
        y = y + matrix(layer, dX) @ y
        outputs.append(y)
    return torch.stack(outputs)


OPTIONS = [
    {},
    {"block_size": 2},
    {"block_size": 8, "std": 0.5},
    {"kind": "diagonal"},
    {"kind": "low_rank", "rank": 3},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_equals_a_transcription_split_and_whole_gradients_too(options):
    check_equal(SliceCDE(8, dtype=F64, **options), transcription)


@pytest.mark.parametrize("kind", ["block", "diagonal", "low_rank"])
def test_the_first_token_sets_the_state_and_moves_it_no_more(kind):
    layer = SliceCDE(8, kind=kind)
    x = torch.randn(2, 3, 8)
    y, state = layer(x[:, :1])
    assert torch.equal(y, layer.first(x[:, :1]))
    assert state["begun"].tolist() == [1, 1]
    reset = torch.tensor([[False, False, True], [False, True, False]])
    y, _ = layer(x, reset=reset)
    torch.testing.assert_close(y[0, 2], layer.first(x[0, 2]))
    torch.testing.assert_close(y[1, 1], layer.first(x[1, 1]))


def test_a_time_is_an_increment_of_the_path():
    """Two steps of half the time and half the increment of a diagonal system nearly make one."""
    layer = SliceCDE(4, kind="diagonal", step_size=1e-3, dtype=F64)
    start = torch.randn(1, 1, 4, dtype=F64)
    _, state = layer(start)
    x = torch.randn(1, 1, 4, dtype=F64)
    one, _ = layer(x, state)
    halves, _ = layer(x.expand(1, 2, 4) / 2, state, dt=torch.full((1, 2), 0.5))
    torch.testing.assert_close(halves[:, -1:], one, rtol=1e-4, atol=1e-5)
    other, _ = layer(x, state, dt=torch.full((1, 1), 3.0))
    assert (other - one).abs().max() > 1e-4


def test_initial_deviations():
    layer = SliceCDE(64, std=0.5)
    assert layer.A.std().item() == pytest.approx(0.5 / 2, rel=0.03)
    assert layer.first.weight.std().item() == pytest.approx(0.5, rel=0.05)
    layer = SliceCDE(64, kind="low_rank", rank=4)
    assert layer.U.std().item() == pytest.approx(0.5, rel=0.03)
    assert layer.A.std().item() == pytest.approx(1.0, rel=0.05)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "sparse"}, "no SliceCDE kind named 'sparse'"),
        ({"block_size": 3}, "SliceCDE: block_size must divide d_model=8, got 3"),
        ({"rank": 0}, "SliceCDE: rank must be an integer of at least 1, got 0"),
        ({"step_size": 0.0}, "SliceCDE: step_size must be positive and finite, got 0.0"),
    ],
)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        SliceCDE(8, **options)
