"""Sequential MNIST: handwritten digits, read one pixel at a time."""

from typing import ClassVar

from linrnn.tasks._kinds.base import Published
from linrnn.tasks._kinds.images import IdxTask
from linrnn.tasks._kinds.mnist import SOURCES

_S4 = "Gu, Goel and Re 2022, arXiv:2111.00396, Table 12"


class SMNIST(IdxTask):
    """The handwritten digits of MNIST: 28x28 grey pixels, row by row, as 784 steps.

    Pixels are divided by 255 and nothing else. 6,000 of the 60,000 training images, always the
    same, are for validation; 10,000 are for testing. Always answering 1 is right for 11.35 %.
    With the option `rows` a step is a row of 28 pixels; published numbers are for single pixels.

    Args:
        options: `linrnn.tasks._kinds.images.RowOptions`.
    """

    summary: ClassVar[str] = "MNIST digits, 28x28 pixels read one at a time, 10 classes"
    published: ClassVar[tuple[Published, ...]] = (
        Published(model="LSTM", value=0.989, source=_S4),
        Published(model="Transformer", value=0.989, source=_S4),
        Published(model="Dilated GRU", value=0.990, source=_S4),
        Published(model="IndRNN", value=0.990, source=_S4),
        Published(model="expRNN", value=0.987, source=_S4),
        Published(model="UR-LSTM", value=0.9928, source=_S4),
        Published(model="CKConv", value=0.9932, source=_S4),
        Published(model="LipschitzRNN", value=0.994, source=_S4),
        Published(model="S4", value=0.9963, source=_S4),
        Published(
            model="coRNN", value=0.994, source="Rusch and Mishra 2021, arXiv:2010.00951, its code"
        ),
    )

    data_set = "mnist"
    sources = SOURCES
    chance = 0.1135
    class_names = tuple("0123456789")
