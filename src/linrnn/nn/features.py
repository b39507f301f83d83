"""Feature maps of queries and keys that are longer than these."""

import torch
from torch import Tensor

from linrnn.errors import ArgumentError


def dpfp(x: Tensor, nu: int = 1) -> Tensor:
    """Deterministic parameter-free projection: ``nu`` products of neighbours, 2 nu d channels.

    Equation::

        r = [relu(x); relu(-x)],   phi(x) = [r * roll(r, 1); ...; r * roll(r, nu)]

    Of d numbers without a zero, d of r are positive, so most products are zero and the features of
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


def second_powers(x: Tensor) -> Tensor:
    """All products of two channels, d (d + 1) / 2 of them: the features of a squared product.

    Equation::

        phi(x) = [x_i^2 and sqrt(2) x_i x_j for j > i],   phi(q) . phi(k) = (q . k)^2

    Args:
        x: (..., d).

    Example:
        >>> second_powers(torch.tensor([1.0, 2.0]))
        tensor([1.0000, 2.8284, 4.0000])
    """
    d = x.shape[-1]
    rows = [x[..., i : i + 1] * x[..., i:] for i in range(d)]  # (..., d - i) each
    products = torch.cat(rows, -1)
    diagonal = torch.tensor([i == j for i in range(d) for j in range(i, d)], device=x.device)
    return torch.where(diagonal, products, 2**0.5 * products)
