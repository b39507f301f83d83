"""Gradients inside of autocast: those of float32, but for what rounding to half precision moves."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from linrnn.mixers import Mixer
from linrnn.testing._tolerance import check_true, difference, epsilon

#: How many times what rounding moves: 5.1 of 143 mixers was the most, of a bias of `mlstm`.
TIMES = 10.0
_SEEDS = (2, 3, 4)  # one draw may move a sum that cancels by too little
_SMALL = 1e-3  # a gradient below this part of the largest is compared with that part


def check_autocast_gradients(mixer: Mixer, x: Tensor) -> None:
    """Compare all gradients with those of float32, beside how much these move by a rounding.

    Raises:
        BrokenPropertyError: one is not finite, is not of its parameter's dtype, or is farther away.
    """
    exact = _gradients(mixer, x, autocast=False)
    besides = [_moved_gradients(mixer, x, seed) for seed in _SEEDS]
    least = _SMALL * max(float(g.norm()) for g in exact.values())
    for name, got in _gradients(mixer, x, autocast=True).items():
        true = exact[name]
        check_true(f"autocast: {name} is {got.dtype}", got.dtype == true.dtype)
        check_true(f"autocast: {name} is not finite", bool(got.isfinite().all()))
        size = float(true.norm()) + least
        error, *moves = (
            float((g - true).norm()) / size for g in (got, *(each[name] for each in besides))
        )
        allowed = TIMES * max(*moves, epsilon(torch.bfloat16) / 2)
        check_true(
            f"autocast: {name} differs by {error:.3g}, allowed {allowed:.3g}", error <= allowed
        )


def moved_by_rounding(mixer: Mixer, x: Tensor) -> float:
    """How far outputs move at most where weights and inputs move as far as bfloat16 rounds them.

    Parameters of single precision stay, for nothing rounds them.
    """
    stay = mixer.single_precision
    with torch.no_grad():
        y, _ = mixer(x)
        return max(difference(m(z)[0], y) for m, z in (_moved(mixer, x, s, stay) for s in _SEEDS))


def _moved(mixer: Mixer, x: Tensor, seed: int, stay: Sequence[str] = ()) -> tuple[Mixer, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    moved = copy.deepcopy(mixer)
    with torch.no_grad():
        for name, p in moved.named_parameters():
            if p.is_floating_point() and name not in stay:
                p.copy_(_rounded(p, generator))
    return moved, _rounded(x, generator)


def _moved_gradients(mixer: Mixer, x: Tensor, seed: int) -> dict[str, Tensor]:
    """Gradients at numbers that are moved as far as roundings move them."""
    return _gradients(*_moved(mixer, x, seed), autocast=False)


def _rounded(x: Tensor, generator: torch.Generator) -> Tensor:
    """Numbers as far from ``x`` as its bfloat16 roundings may be."""
    noise = torch.randn(x.shape, generator=generator).to(x.dtype)
    return x * (1 + epsilon(torch.bfloat16) / 4 * noise)


def _gradients(mixer: Mixer, x: Tensor, *, autocast: bool) -> dict[str, Tensor]:
    """Gradients of the input and the parameters in use; backward is outside of autocast."""
    x = x.detach().clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        y, _ = mixer(x)
    into = torch.randn(y.shape, generator=torch.Generator().manual_seed(3))
    sources = {"grad x": x, **{f"grad {n}": p for n, p in mixer.named_parameters()}}
    sources = {n: p for n, p in sources.items() if p.requires_grad}
    grads = torch.autograd.grad(y, [*sources.values()], into.to(y.dtype), allow_unused=True)
    return {n: g for n, g in zip(sources, grads, strict=True) if g is not None}
