"""Permuted sequential MNIST: the pixels of a digit in a fixed random order."""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from linrnn.errors import check_in
from linrnn.tasks._kinds.base import Published
from linrnn.tasks._kinds.images import IdxTask, RowOptions
from linrnn.tasks._kinds.mnist import SOURCES

Order = Literal["exprnn", "lmu", "bit-reversal"]

_S4 = "Gu, Goel and Re 2022, arXiv:2111.00396, Table 12"


@dataclass(frozen=True, kw_only=True)
class PSMNISTOptions(RowOptions):
    """Options of the task `psmnist`."""

    permutation: Order = "exprnn"
    """Whose order of the pixels: of expRNN and its followers, of the LMU, of HiPPO and S4."""


class PSMNIST(IdxTask):
    """The task `smnist` with the pixels of every image in the same random order.

    Neighbours in the image are then far apart in the sequence. Papers differ in their permutation
    and not all name it: expRNN and its followers draw one, the LMU another, HiPPO and S4 take bit
    reversal. Results with different ones are not to be compared without saying so.

    Args:
        options: `PSMNISTOptions`.

    Raises:
        UnknownNameError: no such permutation.
    """

    Options: ClassVar[type] = PSMNISTOptions
    summary: ClassVar[str] = "MNIST digits, pixels in a fixed random order, 10 classes"
    published: ClassVar[tuple[Published, ...]] = (
        Published(model="LSTM", value=0.9511, source=_S4),
        Published(model="Transformer", value=0.979, source=_S4),
        Published(model="Dilated GRU", value=0.946, source=_S4),
        Published(model="IndRNN", value=0.960, source=_S4),
        Published(model="expRNN", value=0.966, source=_S4),
        Published(model="UR-LSTM", value=0.9696, source=_S4),
        Published(model="CKConv", value=0.9854, source=_S4),
        Published(model="LMU, its own permutation", value=0.9715, source=_S4),
        Published(model="HiPPO-RNN, bit reversal", value=0.983, source=_S4),
        Published(model="S4, bit reversal", value=0.9870, source=_S4),
    )

    data_set = "mnist"
    sources = SOURCES
    chance = 0.1135
    class_names = tuple("0123456789")

    def __init__(self, options: object = None) -> None:
        super().__init__(options)
        check_in("PSMNIST", "permutation", self.options.permutation, get_args(Order))
        self._order = torch.from_numpy(permutation(self.options.permutation))

    def order(self, pixels: Tensor) -> Tensor:
        """Pixels (images, 784) permuted."""
        return pixels[:, self._order]


def permutation(name: Order) -> np.ndarray:
    """Which pixel is read at each of the 784 steps.

    Example:
        >>> permutation("bit-reversal")[:4].tolist()
        [0, 512, 256, 768]
    """
    if name == "bit-reversal":
        bits = np.arange(1024)[:, None] >> np.arange(10) & 1
        reverse = bits @ (512 >> np.arange(10))
        order: np.ndarray = reverse[reverse < 784]
        return order
    return np.random.RandomState(92916 if name == "exprnn" else 0).permutation(784)
