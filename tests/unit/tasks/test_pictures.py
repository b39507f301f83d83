"""Inputs as images: `Task.picture`."""

import numpy as np
import pytest
import torch
from made_data import options

from linrnn import tasks

pytestmark = pytest.mark.usefixtures("use_made_data")


def make(name, root, **more):
    cls = tasks.load(name)
    return cls(cls.Options(**(options(name, root) | more)))


@pytest.mark.parametrize("name", tasks.names())
def test_pictures_are_images_with_values_from_0_to_1(name, made_data):
    task = make(name, made_data)
    image = task.picture(task.datasets().test[0][0])
    if image is not None:
        assert image.ndim == 2 or image.shape[2:] == (3,)
        assert 0 <= image.min() < image.max() <= 1


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("smnist", {}),
        ("smnist", {"rows": True}),
        ("fashion_mnist", {}),
        ("psmnist", {"permutation": "lmu"}),
        ("psmnist", {"permutation": "bit-reversal", "rows": True}),
        ("scifar", {}),
    ],
)
def test_picture_is_the_image_in_the_file(name, option, made_data):
    task = make(name, made_data, **option)
    images, _ = task.images("test")
    for index in (0, 3):
        shown = task.picture(task.datasets().test[index][0]).numpy() * 255
        assert np.abs(shown - images[index]).max() < 1e-3


def test_picture_of_a_grey_photograph_is_its_brightness(made_data):
    task = make("scifar", made_data, grey=True)
    images, _ = task.images("test")
    shown = task.picture(task.datasets().test[2][0]).numpy() * 255
    assert np.abs(shown - images[2] @ [0.299, 0.587, 0.114]).max() < 1e-3


def test_picture_of_a_digit_cuts_off_what_augmenting_added():
    task = tasks.load("digits")(tasks.load("digits").Options(noise=2.0))
    x, _ = task.datasets().train[0]
    assert torch.equal(task.picture(x).flatten(), x.flatten())
    image = task.picture(task.augment(x[None], torch.Generator().manual_seed(0))[0])
    assert (image.min(), image.max()) == (0, 1)


def test_a_task_without_images_has_no_picture():
    assert tasks.load("adding")().picture(torch.zeros(50, 2)) is None
