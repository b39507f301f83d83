"""Start forget gates and refine them: the same few options for every gated layer.

``gates`` is one of

* ``plain``: biases as the layer says;
* ``chrono``: memories of random lengths up to ``t_max`` steps (Tallec and Ollivier 2018);
* ``uniform``: gates spread evenly over (0, 1) (Gu et al. 2020, "U-");
* ``refine``: a second gate r moves the forget gate f towards ``f^2`` or ``1 - (1 - f)^2``, so that
  it learns fast where f is almost shut or open (the same, "-R");
* ``ur``: ``uniform`` and ``refine``.
"""

from math import inf, log, pi
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.errors import ArgumentError, check_in, check_positive_int
from linrnn.nn.ring import uniform

GATES = ("plain", "chrono", "uniform", "refine", "ur")


def check_gates(
    where: str, gates: str, t_max: int | None, choices: tuple[str, ...] = GATES
) -> None:
    """Raise unless ``gates`` is known, and ``t_max`` there where chrono needs it and only there.

    Raises:
        UnknownNameError: another word.
        ArgumentError: no ``t_max`` of at least 2 for ``chrono``, or one for others.
    """
    check_in(where, "gates", gates, choices)
    if gates != "chrono":
        if t_max is not None:
            raise ArgumentError(
                f"{where}: t_max must be None for gates={gates!r}, got {t_max}. Use gates='chrono'."
            )
        return
    if t_max is not None:
        check_positive_int(where, t_max=t_max)
    if t_max is None or t_max < 2:
        raise ArgumentError(
            f"{where}: t_max must be at least 2 for gates='chrono', got {t_max}. "
            "It is the longest dependency expected, in steps: the length of a sequence, say."
        )


def refines(gates: str) -> bool:
    """Whether there is a refine gate."""
    return gates in ("refine", "ur")


def starts(gates: str) -> bool:
    """Whether it says how biases start."""
    return gates in ("chrono", "uniform", "ur")


@torch.no_grad()
def start_gates(gates: str, t_max: int | None, forget: Tensor, *against: Tensor) -> None:
    """Fill the biases of a forget gate, and with their negatives those of what works against it.

    ``plain`` and ``refine`` change nothing. A channel with bias b forgets in
    ``1 + exp(b)`` steps: of chrono that is uniform on [2, t_max].

    Args:
        gates, t_max: as `check_gates` lets through.
        forget: biases of a gate that keeps at 1, one a channel.
        against: those of an input gate or of the refine gate.

    Example:
        >>> b = torch.empty(1000)
        >>> start_gates("chrono", 50, b)
        >>> 2 <= float(1 + b.exp().min()), float(1 + b.exp().max()) <= 50.01
        (True, True)

    Reference:
        Tallec and Ollivier, "Can Recurrent Neural Networks Warp Time?", 2018, arXiv:1804.11188;
        Gu et al., "Improving the Gating Mechanism of Recurrent Neural Networks", 2020,
        arXiv:1910.09890.
    """
    if gates == "chrono":
        assert t_max is not None
        b = torch.log(1 + (t_max - 2) * uniform(len(forget)))
    elif gates in ("uniform", "ur"):
        # as published on [1 / n, 1 - 1 / n], of a single channel in the middle
        low = min(0.5, 1 / len(forget))
        b = torch.logit(low + (1 - 2 * low) * uniform(len(forget)))
    else:
        return
    forget.copy_(b)
    for bias in against:
        bias.copy_(-b)


@torch.no_grad()
def start_bound(bound: Tensor, layer: int, n_layers: int) -> None:
    """Fill the logits of a forget gate's least value: ``layer / n_layers`` of all channels.

    HGRN's cumulative softmax over layers starts there, with layers counted from 0.
    """
    bound.fill_(log(layer / (n_layers - layer)))


def refined(f: Any, r: Any) -> Any:
    """The logit of ``g = 2 r f + (1 - 2 r) f^2``, given the logits of f and r.

    g lies between ``f^2`` (r = 0) and ``1 - (1 - f)^2`` (r = 1); at r = 1/2 it is f. With
    ``1 - g = (1 - f) ((1 - f) + 2 f (1 - r))`` nothing cancels. In a cell too.

    Example:
        >>> f, r = torch.tensor(0.3), torch.tensor(0.9)
        >>> refined(f.logit(), r.logit()).sigmoid() - (2 * r * f + (1 - 2 * r) * f**2) < 1e-6
        tensor(True)
    """
    # log(f + 2 r (1 - f)) by logarithms, for both terms may be as small as exp(-100)
    two = 0.6931471805599453
    log_kept = torch.logaddexp(F.logsigmoid(f), two + F.logsigmoid(r) + F.logsigmoid(-f))
    log_lost = torch.logaddexp(F.logsigmoid(-f), two + F.logsigmoid(-r) + F.logsigmoid(f))
    return f + log_kept - log_lost


def check_periods(where: str, min_period: float, max_period: float) -> None:
    """Raise `ArgumentError` unless they are a range of periods, in steps, above 2."""
    if not 2 < min_period <= max_period < inf:
        raise ArgumentError(
            f"{where}: min_period and max_period must satisfy 2 < min_period <= max_period, got "
            f"min_period={min_period}, max_period={max_period}."
        )


@torch.no_grad()
def start_rotations(A: Tensor, gain: float, min_period: float, max_period: float) -> None:
    """Fill a square matrix with rotations of two channels each, scaled; what is left is 0.

    Logarithms of the periods are uniform. Under tanh such channels run around a stable limit cycle
    where the gain is above 1.

    Args:
        A: (channels, channels).
        gain: of every rotation.
        min_period, max_period: as `check_periods` lets through.

    Example:
        >>> A = torch.empty(3, 3)
        >>> start_rotations(A, 2.0, 4.0, 4.0)
        >>> A.round().int().tolist()
        [[0, -2, 0], [2, 0, 0], [0, 0, 0]]

    Reference:
        Park, Ságodi and Sokół, "Persistent learning signals and working memory without continuous
        attractors", 2023, arXiv:2308.12585.
    """
    pairs = len(A) // 2
    low, high = log(min_period), log(max_period)
    angles = 2 * pi / torch.exp(low + (high - low) * uniform(pairs))
    A.zero_()
    even = 2 * torch.arange(pairs)
    cos, sin = (gain * f(angles).to(A) for f in (torch.cos, torch.sin))
    A[even, even], A[even, even + 1] = cos, -sin
    A[even + 1, even], A[even + 1, even + 1] = sin, cos
