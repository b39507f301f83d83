import hashlib
from itertools import pairwise

import numpy as np
import pytest
import sklearn.datasets
import torch

from linrnn.errors import ArgumentError, DataError
from linrnn.tasks.digits import Digits, DigitsOptions

STILL = {"shift": 0, "turn": 0.0, "stretch": 0.0, "noise": 0.0}


def augment(x, seed=0, **options):
    """Augment with what ``options`` name and nothing else."""
    task = Digits(DigitsOptions(**(STILL | options)))
    return task.augment(x, torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def splits():
    return Digits().datasets()


def test_split_sizes_and_shapes(splits):
    assert [len(part) for part in splits] == [1257, 180, 360]
    x, target = splits.train[:]
    assert x.shape == (1257, 64, 1)
    assert x.dtype == torch.float32
    assert target.dtype == torch.int64
    assert x.min() == 0
    assert x.max() == 1


def test_split_uses_every_image_once(splits):
    ours = torch.cat([part[:][0].flatten(1) for part in splits])
    pixels = torch.from_numpy(sklearn.datasets.load_digits().data.astype("float32")) / 16
    assert sorted(map(tuple, ours.tolist())) == sorted(map(tuple, pixels.tolist()))


def test_split_parts_share_no_image(splits):
    parts = [set(map(tuple, part[:][0].flatten(1).tolist())) for part in splits]
    assert not parts[0] & parts[1]
    assert not parts[0] & parts[2]
    assert not parts[1] & parts[2]


def test_split_is_stratified(splits):
    for part, share in zip(splits, (0.7, 0.1, 0.2), strict=True):
        counts = torch.bincount(part[:][1], minlength=10)
        expected = share * np.bincount(sklearn.datasets.load_digits().target)
        assert np.abs(counts.numpy() - expected).max() <= 2


def test_split_never_changes(splits):
    torch.manual_seed(99)
    np.random.seed(99)
    again = Digits().datasets()
    for part, other in zip(splits, again, strict=True):
        assert torch.equal(part[:][0], other[:][0])
    targets = splits.test[:][1].numpy().astype("<i8").tobytes()
    pixels = (splits.test[:][0] * 16).numpy().astype("u1").tobytes()
    digest = hashlib.sha256(pixels + targets).hexdigest()
    assert digest.startswith("93acf338fa857081")


def test_permuted_pixels_are_the_same_image_in_another_order(splits):
    task = Digits(DigitsOptions(order="permuted"))
    x, y = (part.test[:][0] for part in (splits, task.datasets()))
    assert not torch.equal(x, y)
    order = [int((y[:, step] == x.movedim(1, 0)).all(1).nonzero()[0, 0]) for step in range(64)]
    bright = (x.std(0) > 0)[:, 0].tolist()
    assert len({place for place in order if bright[place]}) == sum(bright)
    assert sum(abs(a - b) == 1 for a, b in pairwise(order)) < 12
    assert torch.equal(task.picture(y[5]), Digits().picture(x[5]))


def test_permuted_images_are_varied_as_images(splits):
    x, permuted = splits.train[:][0][:9], Digits(DigitsOptions(order="permuted"))
    y = permuted.datasets().train[:][0][:9]
    plain, other = (
        task.augment(images, torch.Generator().manual_seed(3))
        for task, images in (
            (Digits(DigitsOptions(noise=0.0)), x),
            (Digits(DigitsOptions(noise=0.0, order="permuted")), y),
        )
    )
    for a, b in zip(plain, other, strict=True):
        torch.testing.assert_close(Digits().picture(a), permuted.picture(b))


def test_a_file_of_pixels_is_permuted_too(tmp_path):
    file = tmp_path / "x.csv"
    np.savetxt(file, sklearn.datasets.load_digits().data[:3], delimiter=",", fmt="%d")
    task = Digits(DigitsOptions(order="permuted"))
    found = [task.picture(x) for x in task.read(file)]
    expected = [Digits().picture(x) for x in Digits().read(file)]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_augment_shifts_by_whole_pixels():
    x = torch.zeros(200, 64, 1)
    x[:, 3 * 8 + 4] = 1.0
    y = augment(x, shift=1)
    place = y[..., 0].argmax(1)
    rows, columns = place // 8, place % 8
    assert {*rows.tolist()} == {2, 3, 4}
    assert {*columns.tolist()} == {3, 4, 5}
    assert torch.equal(y.sum((1, 2)), torch.ones(200))


def test_augment_fills_with_background_and_loses_what_leaves():
    y = augment(torch.ones(100, 64, 1), shift=7)
    assert set(y.unique().tolist()) == {0.0, 1.0}
    assert y.sum((1, 2)).min() < 32


def test_augment_depends_on_its_generator_alone():
    x = torch.rand(16, 64, 1)
    task = Digits()
    first, same, other = (task.augment(x, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    torch.testing.assert_close(augment(x), x)


def test_augment_turns_about_the_centre():
    bar = torch.zeros(1, 8, 8)
    bar[:, 3:5] = 1.0
    turned = torch.cat([augment(bar.view(1, 64, 1), s, turn=90.0).view(1, 8, 8) for s in range(40)])
    assert (turned[:, 3:5, 3:5].mean((1, 2)) > 0.85).all()
    upright = turned[:, :, 3:5].mean((1, 2)) > turned[:, 3:5].mean((1, 2))
    assert 5 < upright.sum() < 35


def test_augment_stretches_width_and_height_apart():
    block = torch.zeros(200, 8, 8)
    block[:, 2:6, 2:6] = 1.0
    y = augment(block.view(200, 64, 1), stretch=0.4).view(200, 8, 8)
    width, height = y.amax(1).sum(1), y.amax(2).sum(1)
    assert 1.9 < width.min() < 3
    assert 5 < width.max() < 6
    assert torch.corrcoef(torch.stack([width, height]))[0, 1].abs() < 0.3


def test_augment_adds_noise_of_the_stated_size():
    x = torch.rand(500, 64, 1)
    noise = augment(x, noise=0.3) - x
    assert noise.mean().abs() < 0.01
    assert noise.std() == pytest.approx(0.3, rel=0.02)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("noise", -0.1, "at least 0"),
        ("turn", float("nan"), "at most 16,777,216"),
        ("stretch", 1.0, r"in \[0, 1\)"),
    ],
)
def test_digits_bad_options(name, value, rule):
    with pytest.raises(ArgumentError, match=rf"Digits: {name} must be {rule}, got {value}"):
        Digits(DigitsOptions(**{name: value}))


@pytest.mark.unchecked
@pytest.mark.parametrize("shift", [-1, 8])
def test_digits_bad_shift(shift):
    with pytest.raises(ArgumentError, match=rf"Digits: shift must be in 0\.\.7, got {shift}"):
        Digits(DigitsOptions(shift=shift))


@pytest.mark.unchecked
def test_digits_nan_in_the_data(monkeypatch):
    pixels, labels = sklearn.datasets.load_digits(return_X_y=True)
    pixels = pixels.copy()
    pixels[5, 7] = np.nan
    monkeypatch.setattr(sklearn.datasets, "load_digits", lambda return_X_y: (pixels, labels))
    with pytest.raises(DataError, match=r"digits: values must be finite, got nan in row \d+, col"):
        Digits().datasets()
