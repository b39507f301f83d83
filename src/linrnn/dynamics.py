"""How the state of a layer moves: Jacobians of its steps, Lyapunov exponents, and cycles."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._pytree import MappingKey, tree_flatten_with_path, tree_unflatten

from linrnn.errors import ArgumentError, check_not_negative, check_positive_int, check_shape
from linrnn.mixers import Mixer
from linrnn.typing import Complex, Float, Signals, State

__all__ = [
    "MOST",
    "Cycle",
    "lyapunov_exponents",
    "scyfi",
    "spectrum",
    "step_jacobians",
]


def __dir__() -> list[str]:
    return sorted(__all__)


MOST = 2048
"""Numbers of a state whose Jacobians are computed; a larger one takes gigabytes and hours."""

_ROWS = 4096  # patterns that are solved at once
_SAME = 1e-6  # of the size of a point: how far two of one cycle may be apart
_ON_CIRCLE = 1e-9


def step_jacobians(
    mixer: Mixer,
    x: Float[Tensor, "time d_model"],
    state: State | None = None,
    *,
    signals: Signals | None = None,
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
        signals: of a layer of a stack, as of `Mixer.forward`, of a batch of one.

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
    current_state: Any = mixer.init_state(1, device=x.device) if state is None else state
    for t, x_t in enumerate(x):
        now = signals and {
            n: z[:, t].detach() if n in mixer.carries else z for n, z in signals.items()
        }
        J, current_state = _jacobian(mixer, x_t, current_state, now)
        yield J


def _jacobian(mixer: Mixer, x_t: Tensor, state: Any, signals: Signals | None) -> tuple[Tensor, Any]:
    """Return J and the next state; row i of a batch of copies gives the gradient of number i."""
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
    moving_copies = [copy for copy, moves in zip(copies, free, strict=True) if moves]
    state_leaves = [torch.view_as_complex(copy) if h.is_complex() else copy
                    for copy, (_, h) in zip(copies, leaves, strict=True)]  # fmt: skip
    with torch.enable_grad():
        rows = signals and {
            name: z.expand(n, *z.shape[1:]) if name in mixer.carries else z
            for name, z in signals.items()
        }
        states: Any = tree_unflatten(state_leaves, tree)
        next_state = mixer.step(x_t.expand(n, -1), states, signals=rows)[1]
        next_leaves = [h for _, h in tree_flatten_with_path(next_state)[0]]
        moved = [_real(h) for h, moves in zip(next_leaves, free, strict=True) if moves]
        numbers = torch.cat([h.reshape(n, -1) for h in moved], 1)  # (n, n): copies, numbers
        gradients = torch.autograd.grad(
            numbers.diagonal().sum(), moving_copies, allow_unused=True, materialize_grads=True
        )
    J = torch.cat([row.reshape(n, -1) for row in gradients], 1)  # (n, n)
    return J, tree_unflatten([h[:1].detach() for h in next_leaves], tree)


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
    exponents: Tensor = (total / (steps - warm_up)).sort(descending=True).values
    return exponents


def spectrum(J: Float[Tensor, "numbers numbers"]) -> Complex[Tensor, " numbers"]:
    """Eigenvalues of a Jacobian, the largest first."""
    values: Tensor = torch.linalg.eigvals(J)
    largest_first: Tensor = values[values.abs().argsort(descending=True)]
    return largest_first


@dataclass(frozen=True, eq=False)
class Cycle:
    """Points that a map goes through again and again: one is a fixed point, k are a k-cycle."""

    points: Float[Tensor, "order channels"]
    """In the order in which they follow one another."""
    eigenvalues: Complex[Tensor, " channels"]
    """Eigenvalues of the Jacobian of a whole round, the largest first."""

    @property
    def order(self) -> int:
        """How many steps a round takes."""
        return len(self.points)

    @property
    def radius(self) -> float:
        """The largest |eigenvalue|."""
        return float(self.eigenvalues.abs().max())

    @property
    def stable(self) -> bool:
        """Whether what is near comes nearer: no eigenvalue on or outside the unit circle."""
        return self.radius < 1 - _ON_CIRCLE

    @property
    def kind(self) -> Literal["node", "focus", "saddle"]:
        """A saddle has eigenvalues on both sides of the unit circle; else a focus turns."""
        sizes = self.eigenvalues.abs()
        if bool((sizes < 1 - _ON_CIRCLE).any()) and bool((sizes > 1 + _ON_CIRCLE).any()):
            return "saddle"
        turns = self.eigenvalues.imag.abs() > _ON_CIRCLE * sizes.clamp_min(1)
        return "focus" if bool(turns.any()) else "node"


def scyfi(
    A: Float[Tensor, " channels"] | Float[Tensor, "channels channels"],
    W: Float[Tensor, "channels channels"],
    h: Float[Tensor, " channels"],
    *,
    order: int = 1,
    complete: int = 4096,
    outer: int = 1000,
    inner: int = 100,
    seed: int = 0,
) -> list[Cycle]:
    r"""Fixed points and cycles of a piecewise-linear recurrence, each exactly, by linear equations.

    Equation::

        F(z) = A z + W relu(z) + h = (A + W D) z + h,    D = diag(z > 0)
        z = F^k(z),  with D_1..D_k given:   z = M_k ... M_1 z + sum_j M_k ... M_{j+1} h
        with M_j = A + W D_j

    For given patterns D_1..D_k the last line is solved for z, which is a point of a cycle if the
    steps from there have these patterns. If not, the patterns they have are tried next, and so on:
    that follows virtual cycles to a true one in few steps, where trying every pattern takes 2^(k N)
    solutions. Where these are at most ``complete``, all are tried, and nothing is missed. Else the
    search begins from random patterns, and has no such guarantee: it ends when ``outer`` of them in
    a row have led to nothing new. A cycle whose equations are singular, as of a continuum of fixed
    points, or with a point on the border of two pieces, may not be found.

    Args:
        A: (channels,), the diagonal of A, or (channels, channels).
        W: (channels, channels).
        h: (channels,), with the input held there where there is one.
        order: the longest cycles that are looked for, in steps.
        complete: of how many patterns all are tried.
        outer: random patterns in a row that may lead to nothing new, for each order.
        inner: patterns that are tried one after another from each.
        seed: of the random patterns.

    Returns:
        Cycles of order 1 to ``order``, shorter ones first, in float64; of each order the stable
        ones first.

    Raises:
        ArgumentError: a number below 1 (``complete`` below 0).
        ShapeError: the arguments do not fit one another.

    Example:
        >>> A, W, h = torch.tensor([0.5]), torch.tensor([[-2.0]]), torch.tensor([1.0])
        >>> [(c.order, c.kind, c.stable) for c in scyfi(A, W, h, order=2)]
        [(1, 'node', False), (2, 'node', True)]

    Reference:
        Eisenmann et al., "Bifurcations and loss jumps in RNN training", NeurIPS 2023,
        arXiv:2310.17561. There the search is of one pattern at a time, and two points are the same
        where they agree to two decimals.
    """
    check_positive_int("scyfi", order=order, outer=outer, inner=inner)
    check_not_negative("scyfi", complete=complete)
    N = len(h)
    check_shape("scyfi", "W", W.shape, {"channels": N, "channels too": N})
    axes: dict[str, int | None] = {"channels": N, "channels too": N}
    check_shape("scyfi", "A", A.shape, axes if A.ndim > 1 else {"channels": N})
    A = torch.diag(A) if A.ndim == 1 else A
    F = _Map(*(x.detach().double().cpu() for x in (A, W, h)))
    cycles: list[Cycle] = []
    for k in range(1, order + 1):
        generator = torch.Generator().manual_seed(seed)
        if 2 ** (k * N) <= complete:
            rounds, tries, patience = _all_patterns(k, N), 1, complete
        else:
            rounds, tries, patience = _random_patterns(k, N, outer, generator), inner, outer
        cycles += _search(F, k, rounds, tries, patience)
    return cycles


class _Map:
    """``z -> (A + W diag(z > 0)) z + h`` of many points."""

    def __init__(self, A: Tensor, W: Tensor, h: Tensor) -> None:
        self.A, self.W, self.h = A, W, h

    def __call__(self, z: Tensor) -> Tensor:
        """A step of rows z (..., channels)."""
        return z @ self.A.T + z.clamp_min(0) @ self.W.T + self.h

    def round_of(self, patterns: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``P, q`` of the affine map ``P z + q`` of k steps: (rows, N, N), (rows, N)."""
        rows, k, N = patterns.shape
        P, q = torch.eye(N, dtype=self.h.dtype).expand(rows, N, N), self.h.new_zeros(rows, N)
        for j in range(k):
            M = self.A + self.W * patterns[:, j, None, :]  # (rows, N, N)
            P, q = M @ P, (M @ q[..., None])[..., 0] + self.h
        return P, q

    def solved(self, patterns: Tensor) -> tuple[Tensor, Tensor]:
        """Solve for the point where each round begins and ends; return which are regular, too."""
        P, q = self.round_of(patterns)
        z, info = torch.linalg.solve_ex(torch.eye(P.shape[-1], dtype=P.dtype) - P, q)
        return z, (info == 0) & z.isfinite().all(1)  # (rows, N), (rows,)

    def orbit(self, z: Tensor, k: int) -> Tensor:
        """Rows z and what follows them: (rows, k, channels)."""
        points = [z]
        for _ in range(k - 1):
            points.append(self(points[-1]))
        return torch.stack(points, 1)


def _all_patterns(k: int, N: int) -> Iterator[Tensor]:
    """Every pattern (rows, k, channels) once."""
    bits = torch.arange(k * N)
    for numbers in torch.arange(2 ** (k * N)).split(_ROWS):
        yield (numbers[:, None] >> bits & 1).bool().view(-1, k, N)


def _random_patterns(k: int, N: int, rows: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Patterns without end, ``rows`` at a time."""
    rows = min(rows, _ROWS)
    while True:
        yield torch.rand(rows, k, N, generator=generator) < 0.5


def _search(F: _Map, k: int, rounds: Iterator[Tensor], inner: int, outer: int) -> list[Cycle]:
    """The cycles of order k that patterns lead to, until ``outer`` in a row lead to no new one."""
    orbits: list[Tensor] = []
    idle = 0
    for patterns in rounds:
        n_orbits = len(orbits)
        for z in _followed(F, patterns, inner):
            points = F.orbit(z[None], k)[0]  # (k, channels)
            if _closes(F, points) and not any(_same(points, orbit) for orbit in orbits):
                orbits.append(points)
        idle = idle + len(patterns) if len(orbits) == n_orbits else 0
        if idle >= outer:
            break
    cycles = [Cycle(points, _eigenvalues(F, points)) for points in orbits]
    return sorted(cycles, key=lambda cycle: cycle.radius)


def _followed(F: _Map, patterns: Tensor, inner: int) -> Tensor:
    """The distinct first points of true cycles to which virtual ones lead."""
    true = []
    for _ in range(inner):
        z, regular = F.solved(patterns)
        patterns, z = patterns[regular], z[regular]
        actual_patterns = F.orbit(z, patterns.shape[1]) > 0
        right = (actual_patterns == patterns).flatten(1).all(1)  # (rows,)
        true.append(z[right])
        patterns = actual_patterns[~right].unique(dim=0)  # rows that meet go on as one
        if not len(patterns):
            break
    return torch.cat(true)  # (rows, channels)


def _closes(F: _Map, points: Tensor) -> bool:
    """Whether a round ends where it began, and not earlier."""
    k, near = len(points), _SAME * (1 + float(points.abs().max()))
    ends = bool((F(points[-1]) - points[0]).abs().max() <= near)
    earlier = (d for d in range(1, k) if k % d == 0)
    return ends and not any((points - points.roll(d, 0)).abs().max() <= near for d in earlier)


def _same(points: Tensor, orbit: Tensor) -> bool:
    """Whether two rounds are one that begins elsewhere."""
    near = _SAME * (1 + float(orbit.abs().max()))
    return any((points.roll(d, 0) - orbit).abs().max() <= near for d in range(len(points)))


def _eigenvalues(F: _Map, points: Tensor) -> Tensor:
    return spectrum(F.round_of((points > 0)[None])[0][0])
