"""Noise-padded CIFAR-10: photographs read by the row, then noise up to 1,000 steps."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from linrnn.errors import ArgumentError
from linrnn.tasks._kinds.base import Published
from linrnn.tasks._kinds.images import PixelOptions, PixelTask
from linrnn.tasks.scifar import SCIFAR, SCIFAROptions

ROWS, CHANNELS = 32, 96


@dataclass(frozen=True, kw_only=True)
class NoisePaddedCIFAROptions(PixelOptions):
    """Options of the task `noise_padded_cifar`."""

    length: int = 1000
    """Steps of a sequence: 32 rows of the image, then noise."""
    noise_seed: int = 0
    """Seed of the noise, the same for all images and splits."""
    train_images: int = 0
    """Number of training images, a tenth of them for validation; 0 takes all."""


class NoisePaddedCIFAR(PixelTask):
    """Say what a photograph shows whose rows came hundreds of steps of noise ago.

    The first 32 steps are the rows of a CIFAR-10 image: 32 red, 32 green and 32 blue values of
    0..255 over 255, nothing else. The steps after them, 968 of 1,000, are 96 numbers drawn from a
    normal distribution with mean 0 and variance 1. They are drawn once by ``noise_seed`` and are
    the same for every image of every split; so they tell nothing, and the class must be carried
    over all of them. The public codes draw the noise so, where a survey describes it as uniform.
    A tenth of the training images is for validation, where those codes have 3,000 (coRNN) and 2,000
    (LEM). Guessing is right for a tenth.

    The files are those of the task `scifar`.

    Args:
        options: `NoisePaddedCIFAROptions`. Published numbers are for all images and 1,000 steps.

    Raises:
        ArgumentError: a length below 32, a negative seed or train_images.

    Reference:
        Rusch and Mishra, "Coupled Oscillatory Recurrent Neural Network (coRNN)", ICLR 2021,
        arXiv:2010.00951, after Chang et al., "AntisymmetricRNN", ICLR 2019, arXiv:1902.09689.
    """

    Options: ClassVar[type] = NoisePaddedCIFAROptions
    summary: ClassVar[str] = "CIFAR-10 photographs by the row, then noise for 968 steps, 10 classes"
    published: ClassVar[tuple[Published, ...]] = (
        Published(
            model="coRNN of 128 units",
            value=0.590,
            source="Rusch and Mishra 2021, arXiv:2010.00951",
        ),
        Published(
            model="UnICORNN",
            value=0.624,
            source="Rusch and Mishra 2021, arXiv:2103.05487",
        ),
        Published(
            model="LEM of 128 units", value=0.605, source="Rusch et al. 2022, arXiv:2110.04744"
        ),
    )

    d_input = CHANNELS
    image_shape = SCIFAR.image_shape
    class_names = SCIFAR.class_names

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        options = self.options
        if options.length < ROWS:
            raise ArgumentError(
                f"NoisePaddedCIFAR: length must be at least {ROWS}, the rows of an image, got "
                f"{options.length}."
            )
        if options.noise_seed < 0:
            raise ArgumentError(
                f"NoisePaddedCIFAR: noise_seed must be at least 0, got {options.noise_seed}."
            )
        self.sequence_length = options.length
        self._photographs = SCIFAR(
            SCIFAROptions(data=options.data, rows=True, train_images=options.train_images)
        )
        # RandomState's stream is frozen by NumPy's compatibility promise; Generator's is not
        draw = np.random.RandomState(options.noise_seed)
        noise = draw.standard_normal((options.length - ROWS, CHANNELS))
        self.noise = torch.from_numpy(noise).float()  # (steps, 96)

    def images(self, split: str, download: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """Read a part of the archive: see `PixelTask.images`."""
        return self._photographs.images(split, download)

    def sequences(self, pixels: Tensor) -> Tensor:
        """Rows of pixels in [0, 1] by the colour, then the noise: (images, length, 96)."""
        images = pixels.reshape(len(pixels), *self.image_shape)
        rows = images.transpose(2, 3).reshape(len(pixels), ROWS, CHANNELS).float() / 255
        noise = self.noise.to(rows.device).expand(len(pixels), -1, -1)
        return torch.cat([rows, noise], 1)

    def picture(self, x: Tensor) -> Tensor:
        """The image (32, 32, 3) at the beginning of a sequence: see `Task.picture`."""
        return x[:ROWS].reshape(32, 3, 32).transpose(1, 2)
