"""How a token is drawn from the probabilities of a model."""

import math
import numbers
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from linrnn.errors import ArgumentError, NonFiniteError, show
from linrnn.typing import Float

_LARGEST = 1 << 63  # of a number that PyTorch divides by
_MOST_SEED = 1 << 62  # the rows of a batch have seeds after one another

NOT_NUMBERS = (
    "generate: the model's outputs must be numbers, got NaN or infinity. Did its training diverge?"
)


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How a token is drawn from the model's probabilities.

    Raises:
        ArgumentError: a value outside the range named below.
    """

    temperature: float = 1.0
    """Divides the logits, at least 0; below 1 likely tokens get likelier, 0 takes the likeliest."""
    top_k: int = 0
    """Draw from that many likeliest tokens only; 0: from all."""
    top_p: float = 1.0
    """Draw from the fewest likeliest tokens whose probabilities sum to this, in (0, 1]; 1: all."""

    def __post_init__(self) -> None:
        for name in ("temperature", "top_k", "top_p"):
            object.__setattr__(self, name, as_plain(getattr(self, name)))
        if not _number(self.temperature) or not 0 <= self.temperature < math.inf:
            raise ArgumentError(
                f"generate: temperature must be at least 0 and below 2^63, got "
                f"{show(self.temperature)}. 0 always takes the likeliest token."
            )
        if isinstance(self.top_k, bool) or not isinstance(self.top_k, int) or self.top_k < 0:
            raise ArgumentError(
                f"generate: top_k must be an integer of at least 0, got {show(self.top_k)}."
            )
        if not _number(self.top_p) or not 0 < self.top_p <= 1:
            raise ArgumentError(f"generate: top_p must be in (0, 1], got {show(self.top_p)}.")

    def draw(self, logits: Float[Tensor, " vocabulary"], generator: torch.Generator) -> int:
        """One token; all randomness comes from ``generator``, of the CPU.

        Raises:
            NonFiniteError: a logit is NaN or infinite; minus infinity, which rules a token out,
                may stand anywhere but everywhere.
        """
        logits = logits.detach().double().cpu()
        if not logits.max() < math.inf or not logits.isfinite().any():
            raise NonFiniteError(NOT_NUMBERS)
        if self.temperature == 0:
            return int(logits.argmax())
        logits = logits - logits.max()  # however small the temperature, one of them stays finite
        if self.top_k == 0 and self.top_p == 1:  # sorting a large vocabulary would cost a step
            return _draw((logits / self.temperature).softmax(0).cumsum(0), generator)
        top = logits.sort(descending=True, stable=True)
        count = len(logits) if self.top_k == 0 else min(self.top_k, len(logits))
        summed = (top.values[:count] / self.temperature).softmax(0).cumsum(0)
        if self.top_p < 1:
            count = int((summed < self.top_p).sum()) + 1
            summed = summed[:count]
        return int(top.indices[_draw(summed, generator)])


def generator_of(seed: int | None) -> torch.Generator:
    """A generator of random numbers, a different one each time where there is no seed."""
    seed = as_plain(seed)
    integer = isinstance(seed, int) and not isinstance(seed, bool)
    if seed is not None and not (integer and abs(seed) <= _MOST_SEED):
        raise ArgumentError(
            f"generate: seed must be an integer from -2^62 to 2^62, got {show(seed)}."
        )
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    return generator


def as_plain(x: Any) -> Any:
    """The integer or the float that a number of NumPy is; anything else as it came.

    Example:
        >>> import numpy as np
        >>> as_plain(np.int64(3)), as_plain(np.float32(0.5)), as_plain("3")
        (3, 0.5, '3')
    """
    if isinstance(x, bool):
        return x
    if isinstance(x, numbers.Integral):
        return int(x)
    return float(x) if isinstance(x, numbers.Real) else x


def _number(x: object) -> bool:
    number = isinstance(x, (int, float)) and not isinstance(x, bool)
    return number and -_LARGEST < x < _LARGEST  # type: ignore[operator]


def _draw(summed: Tensor, generator: torch.Generator) -> int:
    """The place of a number drawn evenly up to the last of the sums."""
    share = torch.rand((), dtype=torch.float64, generator=generator, device=generator.device)
    point = share * summed[-1]
    return int(torch.searchsorted(summed, point, right=True).clamp(max=len(summed) - 1))
