import numpy as np
import pytest
import torch
from scipy.interpolate import CubicSpline

from linrnn.errors import ArgumentError
from linrnn.tasks.mackey_glass import MackeyGlass, MackeyGlassOptions, series


def euler(history, steps):
    """The equation, one Euler step after the other."""
    queue, x, found = list(history), 1.2, []
    for _ in range(steps):
        for _ in range(10):
            delayed = queue.pop(0)
            queue.append(x)
            x = x + (0.2 * delayed / (1 + delayed**10) - 0.1 * x) / 10
        found.append(np.tanh(x - 1))
    return np.array(found)


def history(examples=1):
    """The initial history of the published code with the seed 0."""
    return 1.2 + 0.2 * (np.random.RandomState(0).rand(examples, 170) - 0.5)


def test_series_has_the_published_codes_values():
    values = series(history(), 5115)[0, 100:]
    assert values[:4] == pytest.approx([-0.13371, -0.18319, -0.23000, -0.27425], abs=1e-5)
    assert values.mean() == pytest.approx(-0.0657, abs=1e-4)
    assert values.std() == pytest.approx(0.2161, abs=1e-4)


@pytest.mark.parametrize("steps", [1, 17, 18, 300])
def test_series_is_eulers_method(steps):
    assert series(history(), steps)[0] == pytest.approx(euler(history()[0], steps), abs=1e-9)


def test_an_example_does_not_depend_on_its_batch_though_the_series_is_chaotic():
    data = MackeyGlass().datasets().train
    assert torch.equal(data[[0, 1, 2]][0][1], data[1][0])


def test_target_lies_ahead_of_the_input():
    x, target = MackeyGlass(MackeyGlassOptions(length=50, ahead=7)).datasets().test[range(3)]
    assert x.shape == target.shape == (3, 50, 1)
    assert torch.equal(x[:, 7:], target[:, :-7])


def test_continuing_the_equation_from_what_was_read_solves_it():
    x, target = (v[:, 0].double().numpy() for v in MackeyGlass().datasets().test[0])
    values = 1 + np.arctanh(x - 0.0662)
    errors = []
    for t in range(30, 5000, 250):
        read = CubicSpline(np.arange(t - 29, t + 1), values[t - 29 : t + 1])
        y = values[t]
        for k in range(150):  # 15 steps: what is delayed by 17 has been read
            delayed = read(t - 17 + k / 10)
            y += (0.2 * delayed / (1 + delayed**10) - 0.1 * y) / 10
        errors.append(np.tanh(y - 1) + 0.0662 - target[t])
    assert np.square(errors).mean() < 1e-8


def test_chance_is_the_error_of_the_mean_and_copying_is_worse():
    task = MackeyGlass()
    x, target = task.datasets().train[range(64)]
    zero = task.scores(torch.zeros_like(target), target).mean()
    assert zero == pytest.approx(task.chance, rel=0.01)
    copied = task.scores(x, target).mean()
    assert (copied / zero).sqrt() == pytest.approx(1.62, abs=0.01)


@pytest.mark.unchecked
@pytest.mark.parametrize("option", ["length", "ahead"])
def test_bad_options(option):
    with pytest.raises(ArgumentError, match=f"MackeyGlass: {option} must be an integer of at lea"):
        MackeyGlass(MackeyGlassOptions(**{option: 0}))
