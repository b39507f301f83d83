from dataclasses import replace

import pytest
import torch
from made_data import write_cifar

from linrnn import recipes, train
from linrnn.errors import ArgumentError
from linrnn.tasks.noise_padded_cifar import NoisePaddedCIFAR, NoisePaddedCIFAROptions


def make(place="", **options):
    return NoisePaddedCIFAR(NoisePaddedCIFAROptions(data=str(place), **options))


@pytest.fixture
def archive(tmp_path):
    path = tmp_path / "cifar-10-binary.tar.gz"
    write_cifar(path, train=50)
    return path


def test_the_noise_is_the_same_for_all_images_of_all_splits(archive):
    splits = make(archive).datasets()
    assert [len(part) for part in splits] == [45, 5, 5]
    tails = torch.cat([part[range(len(part))][0][:, 32:] for part in splits])
    assert tails.shape == (55, 968, 96)
    assert (tails == tails[:1]).all()
    assert torch.equal(make(archive).noise, make().noise)
    assert not torch.equal(make(noise_seed=1).noise, make().noise)


def test_the_noise_is_standard_normal():
    noise = make().noise
    assert noise.mean().item() == pytest.approx(0, abs=0.015)
    assert noise.std().item() == pytest.approx(1, abs=0.015)
    assert (noise.abs() < 1).float().mean().item() == pytest.approx(0.683, abs=0.01)
    beside = (noise[1:] * noise[:-1]).mean()
    assert beside.abs() < 0.015


def test_a_row_is_its_red_then_its_green_then_its_blue_values(archive):
    task = make(archive)
    images = torch.from_numpy(task.images("test")[0])
    x = task.sequences(images)
    assert x.shape == (5, 1000, 96)
    for colour in range(3):
        expected = images[2, 7, :, colour].float() / 255
        torch.testing.assert_close(x[2, 7, 32 * colour : 32 * colour + 32], expected)
    torch.testing.assert_close(task.picture(x[3]), images[3].float() / 255)


def test_a_length_of_32_has_no_noise(archive):
    x, target = make(archive, length=32).datasets().test[1]
    assert x.shape == (32, 96)
    assert target == 1


def test_always_the_same_class_has_chance(shared_data):
    task = make(shared_data / "cifar10")
    target = torch.from_numpy(task.images("train")[1])
    assert len(target) == 9_000
    y = torch.zeros(9_000, 10)
    y[:, 3] = 1
    assert task.scores(y, target).mean().item() == pytest.approx(task.chance, abs=0.01)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 31}, "length must be at least 32, the rows of an image, got 31"),
        ({"noise_seed": -1}, "noise_seed must be at least 0, got -1"),
        ({"train_images": -1}, "train_images must be at least 0, got -1"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ArgumentError, match=message):
        make(**options)


@pytest.mark.slow
def test_a_small_model_beats_chance(shared_data, tmp_path):
    config = recipes.load("noise_padded_cifar").config
    options = replace(config.task_options, data=str(shared_data / "cifar10"))
    result = train.run(replace(config, task_options=options), out=tmp_path / "run")
    assert result.test_metric > 0.2
