"""Feature maps of queries and keys: longer ones than these, and learned ones."""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.compute.precision import wide
from linrnn.compute.product import Product
from linrnn.errors import ArgumentError, check_in
from linrnn.nn.linear import Linear

LEARNED_MAPS = ("hedgehog", "t2r", "product")
"""The kinds of `LearnedFeatures`."""


def dpfp(x: Tensor, nu: int = 1) -> Tensor:
    """Deterministic parameter-free projection: ``nu`` products of neighbours, 2 nu d channels.

    Equation::

        r = [relu(x); relu(-x)],   phi(x) = [r * roll(r, 1); ...; r * roll(r, nu)]

    For d numbers without a zero, d of r are positive, so most products are zero and the features of
    different keys have little in common.

    Args:
        x: (..., d).
        nu: shifts, 1 to 2 d - 1.

    Raises:
        ArgumentError: no such number of shifts.

    Example:
        >>> dpfp(torch.tensor([1.0, -2.0]))
        tensor([2., 0., 0., 0.])

    Reference:
        Schlag, Irie and Schmidhuber, "Linear Transformers Are Secretly Fast Weight Programmers",
        2021, arXiv:2102.11174.
    """
    if not 0 < nu < 2 * x.shape[-1]:
        raise ArgumentError(
            f"dpfp: nu must be from 1 to 2 d - 1 = {2 * x.shape[-1] - 1}, got {nu}."
        )
    r = torch.cat([x, -x], -1).relu()
    # turned by joining, for no recorded step knows torch.roll
    rolls = (torch.cat([r[..., -shift:], r[..., :-shift]], -1) for shift in range(1, nu + 1))
    return torch.cat([r * rolled for rolled in rolls], -1)


def second_powers(x: Tensor, scale: float = 1.0) -> Tensor:
    """All products of two channels, d (d + 1) / 2 of them: the features of a squared product.

    Equation::

        phi(x) = scale [x_i^2 and sqrt(2) x_i x_j for j > i],   phi(q) . phi(k) = scale^2 (q . k)^2

    Args:
        x: (..., d).
        scale: see above.

    Example:
        >>> second_powers(torch.tensor([1.0, 2.0]))
        tensor([1.0000, 2.8284, 4.0000])
    """
    (features,) = _POWERS(x, False, float(scale), 2**0.5 * scale)
    return features


def _powers(x: Tensor, linear: bool, diagonal: float, other: float) -> tuple[Tensor]:
    """Squares times ``diagonal`` and products times ``other``, behind 1 and x where ``linear``."""
    own, others = (x if weight == 1 else weight * x for weight in (diagonal, other))
    rows = [
        x[..., i : i + 1] * torch.cat([own[..., i : i + 1], others[..., i + 1 :]], -1)
        for i in range(x.shape[-1])
    ]  # (..., d - i) each
    return (torch.cat([torch.ones_like(x[..., :1]), x, *rows] if linear else rows, -1),)


_POWERS = Product(
    "second_powers", _powers, gradients=1, kernels={"triton": "linrnn.nn._powers_triton"}
)


class LearnedFeatures(nn.Module):
    """Features that are learned, the same of every head.

    Equation::

        "hedgehog"   softmax over 2 d channels of [2 (W x + b); -2 (W x + b)]
        "t2r"        relu(W x)
        "product"    (W x + b) * (V x + c)                   channel by channel

    Initially W = I and b = 0 for "hedgehog", and everything else as in `torch.nn.Linear`.

    Args:
        d: channels of a query or key.
        kind: which, see above. The first two are not negative.
        device, dtype: of the parameters, as in torch.nn.

    Raises:
        UnknownNameError: another kind.

    Example:
        >>> LearnedFeatures(3, "hedgehog")(torch.zeros(5, 2, 3)).shape
        torch.Size([5, 2, 6])

    Reference:
        Zhang et al., "The Hedgehog & the Porcupine: Expressive Linear Attentions with Softmax
        Mimicry", 2024, arXiv:2402.04347; Kasai et al., "Finetuning Pretrained Transformers into
        RNNs", 2021, arXiv:2103.13076. The third is that of flash-linear-attention.
    """

    def __init__(self, d: int, kind: Literal["hedgehog", "t2r", "product"], **factory: Any) -> None:
        super().__init__()
        check_in("LearnedFeatures", "kind", kind, LEARNED_MAPS)
        self.kind, self.d_features = kind, 2 * d if kind == "hedgehog" else d
        self.proj = Linear(d, d, bias=kind != "t2r", **factory)
        self.factor = Linear(d, d, **factory) if kind == "product" else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        self.proj.reset_parameters()
        if self.kind == "hedgehog":
            nn.init.eye_(self.proj.weight)
            nn.init.zeros_(self.proj.bias)
        if self.factor is not None:
            self.factor.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        """Features (..., d_features) of (..., d), in the dtype of ``x``, at least float32."""
        y = _mapped(self.proj, x)
        if self.kind == "hedgehog":
            return torch.cat([2 * y, -2 * y], -1).softmax(-1)
        return y.relu() if self.factor is None else y * _mapped(self.factor, x)


def _mapped(linear: nn.Linear, x: Tensor) -> Tensor:
    return F.linear(x, wide(linear.weight), None if linear.bias is None else wide(linear.bias))


def second_taylor(x: Tensor) -> Tensor:
    """Features of the second Taylor polynomial of exp, (d + 1) (d + 2) / 2 of them.

    Equation::

        phi(x) = [1, x, second_powers(x) / sqrt(2)],   phi(q) . phi(k) = 1 + q . k + (q . k)^2 / 2

    Args:
        x: (..., d).

    Example:
        >>> q, k = torch.tensor([1.0, 2.0]), torch.tensor([0.5, 0.5])
        >>> (second_taylor(q) * second_taylor(k)).sum()
        tensor(3.6250)
    """
    (features,) = _POWERS(x, True, 0.5**0.5, 1.0)
    return features
