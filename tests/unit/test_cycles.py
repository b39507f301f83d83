"""Cycles of piecewise-linear maps against every pattern there is, and against known maps."""

from itertools import product

import numpy as np
import pytest
import torch

from linrnn.dynamics import scyfi
from linrnn.errors import ArgumentError, ShapeError


def drawn(n, seed, gain=4.0):
    """A map that has cycles of several kinds."""
    g = np.random.default_rng(seed)
    A, W = g.uniform(-0.9, 0.9, n), gain * g.normal(size=(n, n)) / np.sqrt(n)
    return A, W, g.normal(size=n)


def enumerated(A, W, h, k):
    """Cycles of that order, by the solution of every pattern, as sorted points."""
    n, found = len(h), []
    step = lambda z: A * z + W @ np.maximum(z, 0) + h  # noqa: E731
    for bits in product((0.0, 1.0), repeat=k * n):
        P, q = np.eye(n), np.zeros(n)
        for D in np.reshape(bits, (k, n)):
            M = np.diag(A) + W * D
            P, q = M @ P, M @ q + h
        z = np.linalg.solve(np.eye(n) - P, q)
        orbit = [z]
        for _ in range(k - 1):
            orbit.append(step(orbit[-1]))
        orbit = np.array(orbit)
        if not np.array_equal(orbit > 0, np.reshape(bits, (k, n)) > 0):
            continue
        if any(np.allclose(orbit[0], orbit[d], atol=1e-7) for d in range(1, k)):
            continue
        found.append(orbit)
    return distinct(found)


def distinct(orbits):
    """Each cycle once, beginning with its smallest point, in order."""
    turned = [np.roll(o, -int(np.lexsort(o.T[::-1])[0]), 0) for o in orbits]
    kept = []
    for o in turned:
        if not any(np.allclose(o, other, atol=1e-7) for other in kept):
            kept.append(o)
    return sorted(kept, key=lambda o: o.ravel().tolist())


def given(A, W, h):
    return tuple(map(torch.from_numpy, (A, W, h)))


CASES = [(n, k) for n in range(1, 7) for k in (1, 2, 3) if n * k <= 12]


@pytest.mark.parametrize("complete", [4096, 0], ids=["every pattern", "search"])
@pytest.mark.parametrize(("n", "order"), CASES)
def test_it_is_the_exact_set(n, order, complete):
    """T17."""
    for seed in range(3 if n * order < 12 else 1):
        system = drawn(n, seed)
        found = [c for c in scyfi(*given(*system), order=order, complete=complete)]
        for k in range(1, order + 1):
            ours = distinct([c.points.numpy() for c in found if c.order == k])
            expected = enumerated(*system, k)
            assert len(ours) == len(expected)
            for one, other in zip(ours, expected, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-8)


def test_the_maps_have_cycles_to_find():
    """So that the test above compares more than empty sets."""
    systems = [given(*drawn(n, seed)) for n in range(1, 7) for seed in range(3)]
    orders = [[c.order for c in scyfi(*system, order=2)] for system in systems]
    for k in (1, 2):
        counts = [found.count(k) for found in orders]
        assert sum(counts) >= 12
        assert max(counts) >= 3


def test_points_close_and_eigenvalues_are_those_of_autograd():
    A, W, h = given(*drawn(10, 5, 3.0))
    found = scyfi(A, W, h, order=3, outer=200)
    assert {c.order for c in found} == {1, 2, 3}

    def round_of(z, k):
        for _ in range(k):
            z = A * z + W @ z.relu() + h
        return z

    for cycle in found:
        z, k = cycle.points[0], cycle.order
        torch.testing.assert_close(round_of(z, k), z, rtol=1e-8, atol=1e-8)
        J = torch.autograd.functional.jacobian(lambda z, k=k: round_of(z, k), z)
        expected = torch.linalg.eigvals(J).abs().sort(descending=True).values
        torch.testing.assert_close(cycle.eigenvalues.abs(), expected, rtol=1e-6, atol=1e-8)


def test_a_stable_cycle_attracts_what_is_near():
    found = [c for n in range(2, 7) for c in scyfi(*given(*drawn(n, 1, 1.2)), order=3) if c.stable]
    assert found
    for n in range(2, 7):
        A, W, h = given(*drawn(n, 1, 1.2))
        for cycle in scyfi(A, W, h, order=3):
            z = cycle.points[0] + 1e-7
            for _ in range(600 * cycle.order):
                z = A * z + W @ z.relu() + h
            assert ((z - cycle.points[0]).abs().max() < 1e-8) == cycle.stable


def test_the_tent_map_has_its_known_cycles():
    """z -> 1 - 2 |z - 1/2| has 2, 1, 2, 3, 6 cycles of order 1 to 5 (Strogatz, problem 10.3)."""
    # with w = z - 1/2: w -> 1/2 - 2 |w|, and |w| = 2 relu(w) - w
    A, W, h = torch.tensor([2.0]), torch.tensor([[-4.0]]), torch.tensor([0.5])
    for complete in (4096, 0):
        found = scyfi(A.double(), W.double(), h.double(), order=5, complete=complete)
        orders = [c.order for c in found]
        assert [orders.count(k) for k in range(1, 6)] == [2, 1, 2, 3, 6]
        for c in found:
            assert float(c.eigenvalues.abs().max()) == pytest.approx(2.0**c.order)
            assert (c.kind, c.stable) == ("node", False)


def test_kinds():
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]]).double()
    nothing, h = torch.zeros(2, 2).double(), torch.ones(2).double()
    cases = {
        ("focus", True): 0.5 * turn,
        ("focus", False): 1.5 * turn,
        ("node", True): torch.diag(torch.tensor([0.5, -0.9])),
        ("node", False): torch.diag(torch.tensor([1.5, -1.9])),
        ("saddle", False): torch.diag(torch.tensor([0.5, -1.9])),
    }
    for expected, A in cases.items():
        (cycle,) = scyfi(A, nothing, h)
        assert (cycle.kind, cycle.stable) == expected
        torch.testing.assert_close(
            cycle.points[0], torch.linalg.solve(torch.eye(2).double() - A, h)
        )


@pytest.mark.unchecked
def test_errors():
    A, W, h = given(*drawn(3, 0))
    with pytest.raises(ArgumentError, match="scyfi: order must be an integer of at least 1, got 0"):
        scyfi(A, W, h, order=0)
    with pytest.raises(ShapeError, match="scyfi: W must have shape"):
        scyfi(A, W[:2], h)
    with pytest.raises(ShapeError, match="scyfi: A must have shape"):
        scyfi(A[:2], W, h)
