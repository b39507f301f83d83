"""Diagonal systems in steps: against their definition, with gradients, on every backend."""

from math import inf

import pytest
import torch

from linrnn.nn.diagonal import _PRODUCT, Coordinates, _steps, diagonal_steps, shared_systems
from linrnn.nn.discretise import bilinear, zoh
from linrnn.testing._derivatives import check_derivatives

#: Systems, channels and modes; a step for every mode of a channel, or one for all.
SIZES = {
    "one system each": (4, 4, 3, 1),
    "shared": (2, 6, 70, 1),
    "steps of modes": (1, 1, 70, 70),
    "one step": (1, 1, 5, 1),
    "of length 1": (3, 3, 5, None),
}
KINDS = {
    "logarithms": Coordinates("zoh", True, False, inf, 1.0, None),
    "both": Coordinates("zoh", True, True, inf, 1.0, None),
    "cut": Coordinates("zoh", False, False, -1e-4, 0.7, None),
    "growing": Coordinates("zoh", False, False, inf, 1.0, None),
    "bilinear": Coordinates("bilinear", True, False, inf, 1.0, None),
}


def parameters(sizes, real=False, dtype=torch.float64):
    """Draw them; the first ones lie beyond every bound, and at zero."""
    systems, channels, modes, steps = sizes
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator).to(dtype)

    re, im = 2 * drawn(systems, modes), 2 * drawn(systems, modes)
    re[0, :3], im[0, :3] = torch.tensor([-50.0, 50.0, 0.0]), torch.tensor([1e-4, 41.0, -41.0])
    log_dt = None if steps is None else drawn(channels, steps) - 1
    if log_dt is not None and log_dt.numel() > 1:
        log_dt.view(-1)[-1] = -60
    return [re, None if real else im, log_dt]


def both(call, arguments):
    """Results and gradients."""
    leaves = [x.clone().requires_grad_() for x in arguments if x is not None]
    given = iter(leaves)
    results = call(*(None if x is None else next(given) for x in arguments))
    weights = []
    for y in results:
        real = torch.cos(torch.arange(y.numel(), dtype=torch.float64)).view(y.shape)
        weights.append(real * (1 + 0.5j) if y.is_complex() else real)
    loss = sum((w * y).real.sum() for w, y in zip(weights, results, strict=True))
    return [*(y.detach() for y in results), *torch.autograd.grad(loss, leaves)]


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", SIZES)
def test_written_gradients_are_those_of_the_definition(sizes, kind, real):
    arguments = parameters(SIZES[sizes], real)
    ours = both(lambda *x: _PRODUCT(*x, KINDS[kind]), arguments)
    definition = both(lambda *x: _steps(*x, KINDS[kind]), arguments)
    assert all(x.isfinite().all() for x in definition)
    torch.testing.assert_close(ours, definition, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("rule", ["zoh", "bilinear"])
def test_steps_are_those_of_the_rule(rule):
    """Channel c has the system c modulo systems; times multiply steps."""
    re, im, log_dt = parameters(SIZES["shared"])
    lam = torch.complex(-re.clamp(-40, 40).exp(), im)
    dt, of_rule = log_dt.clamp(-40).exp(), {"zoh": zoh, "bilinear": bilinear}[rule]
    expected = [of_rule(lam[c % 2], dt[c]) for c in range(6)]
    a, gain = diagonal_steps(re, im, log_dt, rule=rule)
    torch.testing.assert_close(a, torch.stack([x[0] for x in expected]), rtol=1e-14, atol=0)
    torch.testing.assert_close(gain, torch.stack([x[1] for x in expected]), rtol=1e-13, atol=0)
    twice = diagonal_steps(re, im, log_dt, rule=rule, times=torch.full((2, 1), 2.0))
    longer = diagonal_steps(re, im, log_dt, rule=rule, scale=2.0)
    torch.testing.assert_close(twice, tuple(x.expand(2, 1, 6, 70) for x in longer))


def test_shared_systems_are_taken_in_turn():
    assert shared_systems(torch.tensor([[1], [2]]), 6).flatten().tolist() == [1, 2, 1, 2, 1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_derivatives_of_every_order_and_transform(kind):
    generator = torch.Generator().manual_seed(1)
    leaves = [torch.randn(2, 3, dtype=torch.float64, generator=generator) for _ in range(2)]
    leaves.append(torch.randn(4, 1, dtype=torch.float64, generator=generator))

    arguments = dict(zip(("re", "im", "log_dt"), leaves, strict=True))
    check_derivatives(kind, lambda **x: _PRODUCT(*x.values(), KINDS[kind]), arguments)
