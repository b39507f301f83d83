"""The tasks about a continuous signal: its spectrum, and what is asked of it."""

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from linrnn.errors import ArgumentError
from linrnn.tasks._kinds.generated import uniforms
from linrnn.tasks._kinds.white_signal import white_signal
from linrnn.tasks.capacity import Capacity, CapacityOptions
from linrnn.tasks.delay import Delay, DelayOptions
from linrnn.tasks.reconstruct import Reconstruct, ReconstructOptions

FEW = {"train_size": 4, "validation_size": 4, "test_size": 4}


def signal(length, frequency, count=500, **options):
    calls, index = iter(range(10)), np.arange(count)
    return white_signal(lambda n: uniforms(0, index, next(calls), n), length, frequency, **options)


@pytest.mark.parametrize("length", [100, 101])
@pytest.mark.parametrize("frequency", [0.05, 0.25, 0.5])
def test_signal_has_its_band_and_size(length, frequency):
    u = signal(length, frequency)
    assert u.shape == (500, length)
    assert (u[:, 0] == 0).all()
    # its value without the first taken away has the size 0.5, so the difference of two has more
    half = u[:, : 2 * (length // 2)]
    assert 2**0.5 * 0.5 * 0.85 < np.sqrt((half[:, 10:] ** 2).mean()) < 2**0.5 * 0.5 * 1.15
    if length % 2 == 0:
        power = np.abs(np.fft.rfft(u)) ** 2
        above = np.fft.rfftfreq(length) > frequency
        assert power[:, above].sum() < 1e-20 * power.sum()
        inside = power[:, 1:][:, ~above[1:]].mean(0)
        assert inside[:-1].min() > 0.8 * inside[:-1].max() * 0.8


@pytest.mark.parametrize("length", [100, 101])
def test_a_rolled_signal_is_the_same_one_from_its_value_closest_to_zero(length):
    u, shifted = signal(length, 0.1, rolled=True), signal(length, 0.1)
    assert np.sqrt((u**2).mean()) == pytest.approx(0.5, rel=0.02)
    assert (np.abs(u[:, 0]) == np.abs(u).min(1)).all()
    assert np.abs(u[:, 0]).max() > 0
    if length % 2 == 0:
        assert np.abs(u.mean(1)).max() < 1e-12
        spectra = (np.abs(np.fft.rfft(x)[:, 1:]) for x in (u, shifted))
        np.testing.assert_allclose(*spectra, atol=1e-10)


def test_values_are_normal():
    u = signal(1000, 0.25)
    later = u[:, 400] - u[:, 600]
    assert kstest(later / later.std(), "norm").pvalue > 1e-3


def test_delay_gives_back_what_was():
    task = Delay(DelayOptions(length=60, lag=13, **FEW))
    x, y = task.datasets().train[range(4)]
    assert torch.equal(y[:, 13:], x[:, :-13])
    assert not y[:, :13].any()


def test_reconstruct_asks_for_the_end():
    task = Reconstruct(ReconstructOptions(length=60, window=20, **FEW))
    x, y = task.datasets().train[range(4)]
    assert torch.equal(y, x[:, -20:, 0])
    assert Reconstruct(ReconstructOptions(length=60, window=60, **FEW)).d_output == 60


def test_capacity_asks_for_five_delays():
    task = Capacity(CapacityOptions(length=60, window=20, frequency=0.2, **FEW))
    x, y = task.datasets().train[range(4)]
    for i, lag in enumerate((0, 5, 10, 15, 20)):
        assert torch.equal(y[:, lag:, i], x[:, : 60 - lag, 0])
        assert not y[:, :lag, i].any()


@pytest.mark.parametrize(
    "task",
    [
        Delay(DelayOptions(length=200, lag=50, **FEW)),
        Reconstruct(ReconstructOptions(length=200, window=50, **FEW)),
        Capacity(CapacityOptions(length=200, window=50, frequency=0.1, **FEW)),
    ],
    ids=lambda task: type(task).__name__,
)
def test_chance_is_the_error_of_answering_zero(task):
    _, y = task.at_length(200).datasets().test[range(4)]
    assert task.scores(torch.zeros_like(y), y).mean() == pytest.approx(task.chance, rel=0.5)
    assert task.chance == pytest.approx(0.5 * task_part(task), rel=0.15)


def task_part(task):
    """How much of what is asked for is not 0 by rule, over twice the variance of the signal.

    A shifted signal has twice its variance; that of `Capacity` is rolled.
    """
    return {"Delay": 0.75, "Reconstruct": 1.0, "Capacity": 0.875 / 2}[type(task).__name__]


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("cls", "options", "text"),
    [
        (Delay, {"lag": 4000}, "Delay: lag must be less than length=4000, got 4000"),
        (Delay, {"lag": 0}, "Delay: lag must be an integer of at least 1, got 0"),
        (
            Delay,
            {"frequency": 0.6},
            r"frequency must lie between 1/length = 0.00025 and 0.5 .* 0.6",
        ),
        (Capacity, {"window": 2500}, "Capacity: window must be less than length=2500, got 2500"),
        (Reconstruct, {"window": 4001}, "window must be at most length=4000, got 4001"),
        (Reconstruct, {"frequency": 1e-5}, "frequency must lie between"),
    ],
)
def test_bad_options(cls, options, text):
    with pytest.raises(ArgumentError, match=text):
        cls(cls.Options(**options))
