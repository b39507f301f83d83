import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from made_data import write_idx

from linrnn import recipes, train
from linrnn.errors import ArgumentError
from linrnn.tasks.bouncing_mnist import (
    FREE,
    BouncingMNIST,
    BouncingMNISTOptions,
    film,
    paths,
)

SMALL = {"train_size": 20, "validation_size": 10, "test_size": 10}


def make(place, **options):
    return BouncingMNIST(BouncingMNISTOptions(data=str(place), **(SMALL | options)))


@pytest.fixture
def files(tmp_path):
    write_idx(tmp_path, train=40, test=10)
    return tmp_path


def drawn(films=300, frames=50, speed=0.1):
    rng = np.random.RandomState(0)
    return paths(rng.rand(films, 2, 2), 2 * np.pi * rng.rand(films, 2), speed, frames)


def test_digits_stay_inside_the_frame_and_reach_its_borders():
    corners = drawn()
    assert corners.min() == 0
    assert corners.max() == FREE == 36


def test_a_digit_moves_by_its_speed_but_where_it_is_reflected():
    corners = drawn().astype(float)
    steps = np.hypot(*np.moveaxis(np.diff(corners, axis=2), -1, 0))
    inside = ((corners > 4) & (corners < FREE - 4)).all(-1)
    away = inside[:, :, 1:] & inside[:, :, :-1]
    assert np.abs(steps[away] - 3.6).max() < math.sqrt(2)  # rounding to pixels
    assert steps[away].mean() == pytest.approx(3.6, abs=0.1)
    assert steps.max() < 3.6 + math.sqrt(2)


def test_a_path_between_borders_is_straight():
    (corners,) = paths(np.array([[[0.5, 0.0]]]), np.array([[0.0]]), 0.25, 6)
    assert corners[0, :, 0].tolist() == [18] * 6
    assert corners[0, :, 1].tolist() == [0, 9, 18, 27, 36, 27]


def test_where_digits_overlap_the_brighter_pixel_is_seen():
    digits = np.zeros((1, 2, 28, 28), np.uint8)
    digits[0, 0], digits[0, 1] = 100, 200
    corners = np.array([[[[0, 0]], [[10, 20]]]])
    frame = film(digits, corners)[0, 0]
    assert frame[5, 5] == 100
    assert frame[15, 25] == 200
    assert frame[37, 47] == 200
    assert frame[38:].max() == 0
    assert frame.astype(int).sum() == 100 * (784 - 18 * 8) + 200 * 784


def test_a_frame_holds_whole_digits_of_its_own_split(files):
    arrays = write_idx(files, train=40, test=10)
    for split, name in ((0, "train"), (2, "t10k")):
        x, _ = make(files, digits=1).datasets()[split][range(10)]
        known = {image.tobytes() for image in arrays[f"{name}-images-idx3-ubyte"].astype("u1")}
        for frame in (x[:, 0].reshape(-1, 64, 64) * 255).round().byte().numpy():
            cut = frame[np.ix_(frame.any(1), frame.any(0))]
            assert cut.shape == (28, 28)
            assert cut.tobytes() in known


def test_splits_have_different_digits_and_films_and_targets_are_the_next_frames(files):
    splits = make(files).datasets()
    assert [len(part) for part in splits] == [20, 10, 10]
    digits = [{image.tobytes() for image in part.draw.args[0]} for part in splits]
    assert [len(d) for d in digits] == [36, 4, 10]
    assert len(set.union(*digits)) == 50
    x, target = splits.train[range(20)]
    assert x.shape == target.shape == (20, 19, 4096)
    assert x.dtype == torch.float32
    assert torch.equal(x[:, 1:], target[:, :-1])
    assert x.min() == 0
    assert x.max() <= 1
    again = make(files).datasets().train
    assert torch.equal(again[7][0], x[7])
    assert not torch.equal(make(files, data_seed=1).datasets().train[7][0], x[7])


def test_the_metric_counts_the_frames_after_the_context(files):
    task = make(files, length=6, context=4)
    _, target = task.datasets().test[range(10)]
    y = torch.zeros_like(target)
    assert task.scores(y, target).tolist() == pytest.approx([task.chance] * 10, rel=1e-5)
    assert task.loss(y, target).item() == pytest.approx(math.log(2))
    y[:, :3] = 50.0  # predictions of frames 2 to 4 are not scored
    assert task.scores(y, target).tolist() == pytest.approx([task.chance] * 10, rel=1e-5)


@pytest.mark.slow
def test_baselines_of_mnist(shared_data):
    found = make(shared_data / "mnist", train_size=1_000, test_size=300).baselines()
    assert found["mean frame"] == pytest.approx(657.4, abs=1)
    assert found["last frame"] == pytest.approx(644.1, abs=1)
    assert found["entropy"] == pytest.approx(85.5, abs=0.5)


def test_example_and_picture(files):
    task = make(files)
    assert task.example().endswith("target: each next frame")
    assert task.picture(task.datasets().test[0][0]).shape == (64, 320)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 1}, "length must be at least 2, got 1"),
        ({"context": 20}, "context must be from 1 to length - 1 = 19, got 20"),
        ({"context": 0}, "got 0"),
        ({"speed": 1.5}, r"speed must be in \[0, 1\], got 1.5"),
        ({"digits": 0}, "digits must be an integer of at least 1, got 0"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ArgumentError, match=message):
        make("", **options)


@pytest.mark.slow
def test_a_small_model_beats_the_last_frame(shared_data, tmp_path):
    config = recipes.load("bouncing_mnist").config
    options = replace(config.task_options, data=str(shared_data / "mnist"))
    result = train.run(replace(config, task_options=options), out=tmp_path / "run")
    assert result.test_metric < 500
