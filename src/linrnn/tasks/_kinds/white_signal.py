"""Random signals that are smooth to a known degree, for tasks of memory."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from linrnn.errors import ArgumentError
from linrnn.tasks._kinds.base import Task
from linrnn.tasks._kinds.drawing import GeneratedOptions, Regression, check_options
from linrnn.tasks._kinds.generated import Generated, Uniform

RMS = 0.5
_CHANCE_STEPS = 1 << 20  # steps at most that chance is measured on


@dataclass(frozen=True, kw_only=True)
class SignalOptions(GeneratedOptions):
    """Options of every task about such a signal."""

    length: int = 4000
    """Steps of a sequence."""
    frequency: float = 0.1
    """The highest in the signal, in cycles per step; 0.5 is white noise."""
    train_size: int = 16_384
    """Training sequences; an epoch is one pass through them."""
    validation_size: int = 1024
    """Validation sequences."""
    test_size: int = 1024
    """Test sequences."""


class SignalTask(Regression, Task):
    """A regression whose input is `white_signal`.

    Its chance level is the error of always answering 0, over at most 256 sequences.

    Args:
        options: of the subclass's ``Options``.
        sizes: names of those that must be positive integers.
    """

    d_input = 1
    rolled = False
    """Whether signals begin at their value closest to 0: see `white_signal`."""

    def __init__(self, options: Any, *sizes: str) -> None:
        super().__init__(options)
        where = type(self).__name__
        check_options(where, self.options, "length", *sizes)
        lowest, got = 1 / self.options.length, self.options.frequency
        if not lowest <= got <= 0.5:
            raise ArgumentError(
                f"{where}: frequency must lie between 1/length = {lowest:.6g} and 0.5 cycles per "
                f"step, got {got}."
            )
        self.sequence_length = self.options.length

    def _measure_chance(self, draw: Any) -> float:
        count = max(1, min(256, _CHANCE_STEPS // self.options.length))
        target = Generated(count, "train", draw, self.options.data_seed)[range(count)][1]
        mean: float = target.square().mean().item()
        return mean

    def _signal(self, uniform: Uniform) -> np.ndarray:
        options = self.options
        return white_signal(uniform, options.length, options.frequency, rolled=self.rolled)


def check_below_length(where: str, options: Any, name: str) -> None:
    """Raise `ArgumentError` unless that many steps back still lie inside a sequence."""
    if getattr(options, name) >= options.length:
        raise ArgumentError(
            f"{where}: {name} must be less than length={options.length}, got "
            f"{getattr(options, name)}."
        )


def white_signal(
    uniform: Uniform, length: int, frequency: float, *, rolled: bool = False
) -> np.ndarray:
    """Normal numbers up to a frequency in cycles per step: (examples, length), beginning at 0.

    The signal has a root mean square of 0.5, no constant, and nothing above the frequency. Its
    first value is then taken away from all, as the code of HiPPO does (Gu et al., 2020,
    arXiv:2008.07669). The difference is a constant for a memory to hold, and twice the power.

    Args:
        uniform: draws n numbers of [0, 1) for each example.
        length: in steps.
        frequency: the highest, from 1 / length to 0.5.
        rolled: nothing is taken away. The signal, which is periodic, is rolled in time until it
            begins with its value closest to 0, as that of Nengo, which the paper of the Legendre
            memory unit uses.
    """
    half = -(-length // 2)
    modulus = np.sqrt(-2 * np.log1p(-uniform(half + 1))) * RMS * 0.5**0.5
    angle = 2 * np.pi * uniform(half + 1)
    spectrum = modulus * np.exp(1j * angle)  # Box and Muller: two normal numbers
    above = np.fft.rfftfreq(2 * half) > frequency
    spectrum[:, above] = 0
    spectrum[:, 0] = 0
    spectrum[:, -1] = spectrum[:, -1].real
    spectrum *= np.sqrt(2 * half / (1 - above.sum() / half))
    signal = np.fft.irfft(spectrum, axis=1)  # (examples, 2 half)
    if rolled:
        first = np.abs(signal).argmin(1)[:, None]
        steps = (first + np.arange(length)) % (2 * half)
        from_closest: np.ndarray = np.take_along_axis(signal, steps, 1)
        return from_closest
    from_zero: np.ndarray = signal[:, :length] - signal[:, :1]
    return from_zero
