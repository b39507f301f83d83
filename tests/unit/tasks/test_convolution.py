import cmath

import numpy as np
import pytest
import torch

from linrnn.errors import ArgumentError
from linrnn.tasks.convolution import Convolution, ConvolutionOptions


def three_modes(u):
    """The convolution as a linear recurrence: cos^2 is one constant mode and two that turn."""
    decays = np.array([cmath.exp(-0.015 + 0.08j * m) for m in (0, 1, -1)])
    weights = 0.1 * np.array([0.5, 0.25, 0.25])
    h, y = np.zeros((len(u), 3), complex), []
    for u_t in u.T:
        h = decays * h + u_t[:, None]
        y.append((h @ weights).real)
    return np.stack(y, 1)


@pytest.mark.parametrize("length", [1, 100, 333])
def test_a_recurrence_of_three_modes_solves_it(length):
    task = Convolution(ConvolutionOptions(length=length))
    x, target = task.datasets().test[range(200)]
    y = torch.from_numpy(three_modes(x[..., 0].double().numpy()))[..., None]
    assert task.scores(y, target).max() < 1e-12


def test_the_first_target_is_the_first_input_times_a_tenth():
    x, target = Convolution().datasets().train[range(32)]
    assert torch.allclose(target[:, 0], 0.1 * x[:, 0])
    assert (x[:, 0] == 0).all()
    assert x.abs().max() <= 1


def test_chance_is_the_error_of_answering_zero():
    task = Convolution()
    target = task.datasets().test[range(512)][1]
    zero = task.scores(torch.zeros_like(target), target)
    assert zero.mean() == pytest.approx(task.chance, rel=0.25)
    assert task.chance > 100 * 1e-4


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("option", "value", "rule"),
    [
        ("length", 0, "an integer of at least 1"),
        ("largest", 0.0, "above 0"),
        ("largest", float("inf"), "at most 16,777,216"),
    ],
)
def test_bad_options(option, value, rule):
    with pytest.raises(ArgumentError, match=f"Convolution: {option} must be {rule}, got {value}"):
        Convolution(ConvolutionOptions(**{option: value}))
