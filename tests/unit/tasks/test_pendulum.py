from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from linrnn import recipes, train
from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.tasks._kinds.generated import uniforms
from linrnn.tasks.pendulum import (
    Pendulum,
    PendulumOptions,
    advanced,
    by_correlation,
    rod,
    shares,
    swing,
)


def source(examples=500, key=3):
    """Random numbers as a generated task gets them."""
    calls = iter(range(1, 100))
    return lambda n: uniforms(key, np.arange(examples), next(calls), n)


def drawn(times, rows=200, **options):
    return Pendulum(PendulumOptions(times=times, **options)).datasets().train[list(range(rows))]


def energy(angle, velocity):
    """The energy of a rod of mass and length 1, with the angle from the upright."""
    return velocity**2 / 6 + 9.81 * np.cos(angle)


def test_targets_are_on_the_unit_circle():
    _, target = drawn("none")
    torch.testing.assert_close(target.square().sum(-1), torch.ones(200, 50))


def test_without_noise_energy_falls_by_friction_alone():
    angle, velocity = np.linspace(0.1, 6.0, 50), np.zeros(50)
    last = energy(angle, velocity)
    for _ in range(300):
        angle, velocity = advanced(angle, velocity, 0.01)
        now = energy(angle, velocity)
        assert (now <= last + 1e-9).all()
        last = now
    assert (last < energy(np.linspace(0.1, 6.0, 50), 0) - 1e-3).all()


def test_a_step_is_a_thousand_of_eulers():
    angle, velocity = np.linspace(0, 6, 20), np.linspace(-5, 5, 20)
    fast = advanced(angle, velocity, 0.01)
    for _ in range(1_000):
        velocity = velocity + 1e-5 * (29.43 * np.sin(angle) - 0.1 * velocity)
        angle = angle + 1e-5 * velocity
    np.testing.assert_allclose(fast, (angle, velocity), atol=2e-5)


def test_pendulums_start_anywhere_and_at_rest():
    angles = swing(source(), 100)
    assert angles.shape == (500, 100)
    starts = np.sort(angles[:, 0])
    assert np.abs(starts - np.linspace(-np.pi, np.pi, 500)).max() < 0.5
    assert np.abs(np.diff(angles[:, :2])).max() < 0.5 * 29.43 * 1e-4 + 1e-6
    rest = np.abs(angles[:, 0]) < 0.3
    assert np.abs(angles[rest, :20]).max() < 0.8  # they hang, and swing a little


def test_a_rod_is_as_long_and_wide_as_it_is_said_to_be_and_points_at_its_angle():
    images = rod(np.arange(0, 2 * np.pi, 0.1))
    assert images.min() == 0
    assert images.max() == 1
    area = images.sum(1) * (128 / 24) ** 2
    assert np.abs(area / (55 * 8) - 1).max() < 0.05
    down, right = rod(np.array([0.0, np.pi / 2])).reshape(2, 24, 24)
    assert down[12:22, 11:13].min() > 0.6
    assert down[:11].max() == 0
    np.testing.assert_allclose(right, down.T, atol=1e-5)


def test_the_angle_of_a_clean_image_can_be_read():
    angles = np.linspace(-3, 3, 40)
    read, correlation = by_correlation(torch.from_numpy(rod(angles)))
    assert np.abs(np.sin(read - angles)).max() < np.pi / 180
    assert correlation.min() > 0.99


def test_shares_are_cut_walks_and_the_first_five_are_clean():
    share = shares(source(), 100)
    assert (share[:, :5] == 1).all()
    assert share.min() == 0
    assert share.max() == 1
    assert np.abs(np.diff(share[:, 5:])).max() <= 0.2 / 0.5 + 1e-9
    assert 0.05 < (share[:, 5:] == 0).mean() < 0.4


def test_times_rise_and_are_given_in_three_ways():
    (x, target), (images, same, dt), (alone, again) = map(drawn, ("column", "dt", "none"))
    assert x.shape == (200, 50, 577)
    assert torch.equal(x[..., :576], images)
    assert torch.equal(x[..., 576], dt)
    assert torch.equal(images, alone)
    assert torch.equal(target, same)
    assert torch.equal(target, again)
    assert dt.min() >= 1
    assert torch.equal(dt, dt.round())
    assert dt.sum(1).max() <= 100
    assert dt.mean().item() == pytest.approx(100 / 50, abs=0.1)


def test_all_steps_can_be_observed():
    _, _, dt = drawn("dt", 5, length=100)
    assert (dt == 1).all()


def test_splits_share_no_sequence():
    options = PendulumOptions(train_size=30, validation_size=20, test_size=20)
    splits = Pendulum(options).datasets()
    targets = [part[list(range(len(part)))][1] for part in splits]
    rows = {row.numpy().tobytes() for part in targets for row in part}
    assert len(rows) == 70


def test_the_mean_has_chance_and_interpolation_is_much_better():
    found = Pendulum(PendulumOptions(train_size=1_000, test_size=1_000)).baselines()
    assert found["mean"] == pytest.approx(Pendulum.chance, abs=0.02)
    assert found["interpolation"] == pytest.approx(0.02, abs=0.006)


def test_picture():
    x, _ = drawn("column", 1)
    assert Pendulum().picture(x[0]).shape == (24, 192)


@pytest.mark.unchecked
def test_bad_options():
    with pytest.raises(ArgumentError, match="steps must be at least length = 50, got 40"):
        Pendulum(PendulumOptions(steps=40))
    with pytest.raises(ArgumentError, match="Pendulum: times must be 'column' or 'none' to read"):
        Pendulum(PendulumOptions(times="dt")).read(Path("x.csv"))
    with pytest.raises(UnknownNameError, match="times"):
        Pendulum(PendulumOptions(times="row"))


@pytest.mark.slow
def test_a_small_model_beats_the_mean(tmp_path):
    config = recipes.load("pendulum").config
    config = replace(config, train=replace(config.train, epochs=5))
    assert train.run(config, out=tmp_path / "run").test_metric < 0.1
