"""How the state of a layer moves: Jacobians of its steps, and Lyapunov exponents."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import MappingKey, tree_flatten_with_path, tree_unflatten

from linrnn.errors import ArgumentError, check_shape
from linrnn.mixers import Mixer
from linrnn.typing import Complex, Float, State

MOST = 2048
"""Numbers of a state whose Jacobians are computed; a larger one takes gigabytes and hours."""


def step_jacobians(
    mixer: Mixer, x: Float[Tensor, "time d_model"], state: State | None = None
) -> Iterator[Float[Tensor, "numbers numbers"]]:
    """The derivative of the state after each step with respect to that before it.

    Equation:
        J_t = ds_t / ds_{t-1} along s_t = step(x_t, s_{t-1})

    where ``s`` holds every number of the state side by side, in the order of the tree; a complex
    number counts as two. Left out is what no gradient flows through: counters, and what the mixer
    says is `Mixer.constant_state`.

    Args:
        mixer: a layer that can be stepped; give it parameters of float64 for many digits.
        x: one sequence.
        state: of a batch of one, before the sequence; None: `Mixer.init_state`.

    Raises:
        ArgumentError: a layer that cannot be stepped, whose state grows, or has more than 2,048
            numbers.
        ShapeError: ``x`` is not (time, d_model).

    Example:
        >>> from linrnn.mixers import LRU
        >>> layer = LRU(2, d_state=1)
        >>> J = next(step_jacobians(layer, torch.randn(5, 2)))
        >>> torch.allclose(J[0, 0], layer.eigenvalues().real[0])
        True
    """
    check_shape("step_jacobians", "x", x.shape, {"time": None, "d_model": mixer.d_model})
    if "constant_memory" in mixer.declared:
        raise ArgumentError(
            f"step_jacobians: the state must have a constant size, got a {type(mixer).__name__}, "
            "whose state grows with what was read."
        )
    now: Any = mixer.init_state(1, device=x.device) if state is None else state
    for x_t in x:
        J, now = _jacobian(mixer, x_t, now)
        yield J


def _jacobian(mixer: Mixer, x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
    """``(J, state after)``: row i of a batch of copies is asked for the gradient of number i."""
    leaves, tree = tree_flatten_with_path(state)
    free = [_moves(mixer, path, h) for path, h in leaves]
    parts = [_real(h.detach()) for _, h in leaves]
    n = sum(part.numel() for part, moves in zip(parts, free, strict=True) if moves)
    if not 0 < n <= MOST:
        raise ArgumentError(
            f"step_jacobians: the state must have from 1 to {MOST:,} numbers, got {n:,} of "
            f"{type(mixer).__name__}. Choose a narrower layer."
        )
    copies = [part.expand(n, *part.shape[1:]).clone().requires_grad_(moves)
              for part, moves in zip(parts, free, strict=True)]  # fmt: skip
    asked = [copy for copy, moves in zip(copies, free, strict=True) if moves]
    given = [torch.view_as_complex(copy) if h.is_complex() else copy
             for copy, (_, h) in zip(copies, leaves, strict=True)]  # fmt: skip
    with torch.enable_grad():
        _, after = mixer.step(x_t.expand(n, -1), tree_unflatten(given, tree))
        found = [h for _, h in tree_flatten_with_path(after)[0]]
        moved = [_real(h) for h, moves in zip(found, free, strict=True) if moves]
        numbers = torch.cat([h.reshape(n, -1) for h in moved], 1)
        rows = torch.autograd.grad(
            numbers.diagonal().sum(), asked, allow_unused=True, materialize_grads=True
        )
    J = torch.cat([row.reshape(n, -1) for row in rows], 1)
    return J, tree_unflatten([h[:1].detach() for h in found], tree)


def _moves(mixer: Mixer, path: Any, h: Tensor) -> bool:
    names = [key.key for key in path if isinstance(key, MappingKey)]
    fixed = any(name in mixer.constant_state for name in names)
    return not fixed and (h.is_floating_point() or h.is_complex())


def _real(h: Tensor) -> Tensor:
    return torch.view_as_real(h) if h.is_complex() else h


def lyapunov_exponents(
    jacobians: Iterable[Float[Tensor, "numbers numbers"]], *, warm_up: int = 0
) -> Float[Tensor, " numbers"]:
    """How fast states that are close to each other part, in each direction.

    Equation:
        J_t Q_{t-1} = Q_t R_t,   Q_0 = 1,   exponent_i = mean over t of log |(R_t)_ii|

    in nats a step, the largest first: below 0 what lies close together comes closer, by a factor of
    e in -1 / exponent steps; above 0 it parts, which is chaos; 0 keeps its distance. The sum is the
    logarithm of the volume a step keeps. A direction that is forgotten at once has -inf.

    Args:
        jacobians: of consecutive steps, as `step_jacobians` gives them.
        warm_up: steps at the beginning that turn Q but are not counted.

    Raises:
        ArgumentError: no more steps than ``warm_up``.

    Reference:
        Benettin et al., "Lyapunov Characteristic Exponents for Smooth Dynamical Systems",
        Meccanica 15, 1980; of trained RNNs, Vogt et al. 2020, arXiv:2006.14123.

    Example:
        >>> lyapunov_exponents([torch.diag(torch.tensor([0.5, 1.0]))] * 3)
        tensor([ 0.0000, -0.6931])
    """
    total: Tensor | None = None
    Q, steps = None, 0
    for steps, J in enumerate(jacobians, 1):
        Q, R = torch.linalg.qr(J if Q is None else J @ Q)
        if steps > warm_up:
            logs = R.diagonal().abs().log()
            total = logs if total is None else total + logs
    if total is None:
        raise ArgumentError(
            f"lyapunov_exponents: there must be more steps than warm_up={warm_up}, got {steps}."
        )
    found: Tensor = (total / (steps - warm_up)).sort(descending=True).values
    return found


def spectrum(J: Float[Tensor, "numbers numbers"]) -> Complex[Tensor, " numbers"]:
    """Eigenvalues of a Jacobian, the largest first."""
    values: Tensor = torch.linalg.eigvals(J)
    largest_first: Tensor = values[values.abs().argsort(descending=True)]
    return largest_first
