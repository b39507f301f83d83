import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from made_data import write_idx

from linrnn import recipes, train
from linrnn.errors import ArgumentError, DataError
from linrnn.tasks.generative_mnist import GenerativeMNIST, GenerativeMNISTOptions


def make(place, **options):
    return GenerativeMNIST(GenerativeMNISTOptions(data=str(place), **options))


@pytest.fixture
def files(tmp_path):
    write_idx(tmp_path, train=40, test=10)
    return tmp_path


def flat(array):
    return torch.from_numpy(array.reshape(len(array), -1))


def test_inputs_are_the_pixels_before_and_a_token_that_begins(files):
    arrays = write_idx(files, train=40, test=10)
    x, target = make(files).datasets().test[range(10)]
    assert x.shape == target.shape == (10, 784)
    assert x.dtype == target.dtype == torch.int64
    assert (x[:, 0] == 256).all()
    assert torch.equal(x[:, 1:], target[:, :-1])
    assert torch.equal(target, flat(arrays["t10k-images-idx3-ubyte"]))


def test_splits_share_no_image(files):
    splits = make(files).datasets()
    assert [len(part) for part in splits] == [36, 4, 10]
    rows = {x.numpy().tobytes() for part in splits for x in part[range(len(part))][1]}
    assert len(rows) == 50
    assert [len(part) for part in make(files, train_images=20).datasets()] == [18, 2, 10]


def test_binarised_pixels_are_those_above_127(files):
    grey, binary = (make(files, binarised=b).datasets().train[range(36)][1] for b in (False, True))
    assert torch.equal(binary, (grey > 127).long())


def test_the_metric_is_bits_a_pixel_or_nats_an_image(files):
    for binarised, chance in ((False, 8.0), (True, 784 * math.log(2))):
        task = make(files, binarised=binarised)
        _, target = task.datasets().test[range(10)]
        y = torch.zeros(10, 784, task.d_output)
        assert task.chance == pytest.approx(chance)
        assert task.scores(y, target).tolist() == pytest.approx([chance] * 10, rel=1e-5)
        y.scatter_(2, target[..., None], 1000.0)
        assert task.scores(y, target).max() == 0


def test_baselines_are_the_likelihood_of_counts(files):
    task = make(files, binarised=True)
    splits = task.datasets()
    seen, unseen = (part[range(len(part))][1].numpy() for part in (splits.train, splits.test))
    ones = (seen.sum(0) + 1) / (len(seen) + 2)
    chosen = np.where(unseen == 1, ones, 1 - ones)
    found = task.baselines()
    assert found["marginal"] == pytest.approx(-np.log(chosen).sum(1).mean())
    before = np.pad(seen[:, :-1], ((0, 0), (1, 0)), constant_values=2)
    unseen_before = np.pad(unseen[:, :-1], ((0, 0), (1, 0)), constant_values=2)
    table = np.array([[(seen[before == c] == v).sum() + 1.0 for v in (0, 1)] for c in (0, 1, 2)])
    table /= table.sum(1, keepdims=True)
    assert found["previous pixel"] == pytest.approx(
        -np.log(table[unseen_before, unseen]).sum(1).mean()
    )


def test_baselines_of_mnist(shared_data):
    found = make(shared_data / "mnist").baselines()
    assert found["marginal"] == pytest.approx(1.690, abs=0.002)
    assert found["previous pixel"] == pytest.approx(1.418, abs=0.002)
    assert make(shared_data / "mnist", binarised=True).baselines()["marginal"] == pytest.approx(
        205.8, abs=0.2
    )


def test_an_example_shows_the_image_and_the_baselines(files):
    assert "baselines, bits per pixel: marginal" in make(files).example()
    (files / "train-images-idx3-ubyte.gz").unlink()
    assert make(files).example().endswith("target: each next pixel")


def test_images_from_a_file_and_their_picture(files, tmp_path):
    task = make(files)
    image = np.arange(784) % 256
    (tmp_path / "x.csv").write_text(",".join(map(str, image)))
    x = task.read(tmp_path / "x.csv")
    assert x.tolist() == [[256, *image[:-1].tolist()]]
    assert (task.picture(x[0]).flatten()[:-1] * 255).round().tolist() == image[:-1].tolist()


@pytest.mark.unchecked
def test_numbers_of_images(files):
    with pytest.raises(ArgumentError, match="train_images must be at least 0, got -1"):
        make(files, train_images=-1)
    with pytest.raises(DataError, match="must hold train_images=41 images, got 40"):
        make(files, train_images=41).datasets()


@pytest.mark.slow
def test_a_small_model_beats_the_previous_pixel(shared_data, tmp_path):
    config = recipes.load("generative_mnist").config
    options = replace(config.task_options, data=str(shared_data / "mnist"))
    result = train.run(replace(config, task_options=options), out=tmp_path / "run")
    assert result.test_metric < 1.35
