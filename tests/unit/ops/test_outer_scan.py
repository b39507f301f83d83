"""`outer_scan` against a loop in float64: every length about a chunk, decays, resets, NaN."""

import pytest
import torch

from linrnn.ops.matrix.outer_scan import outer_scan

B, H, K, V = 2, 3, 4, 5


def loop(q, k, v, g, state, reset):
    o = []
    for t in range(q.shape[1]):
        if reset is not None:
            state = torch.where(reset[:, t, None, None, None], 0, state)
        decay = g if g.ndim == 1 else g[:, t]
        state = decay.exp()[..., None, None] * state + k[:, t, :, :, None] * v[:, t, :, None]
        o.append((state * q[:, t, :, :, None]).sum(-2))
    return torch.stack(o, 1), state


def problem(time, *, varying=False, dtype=torch.float64, deepest=3.0):
    torch.manual_seed(0)
    q, k = (torch.randn(B, time, H, K, dtype=dtype) for _ in range(2))
    v, state = torch.randn(B, time, H, V, dtype=dtype), torch.randn(B, H, K, V, dtype=dtype)
    shape = (B, time, H) if varying else (H,)
    return q, k, v, -deepest * torch.rand(shape, dtype=dtype), state


def cuts(time):
    reset = torch.zeros(B, time, dtype=torch.bool)
    for t in (0, 1, 62, 63, 64, 65, 100):
        reset[t % 2, t : t + 1] = True
    return reset


@pytest.mark.parametrize("varying", [False, True])
@pytest.mark.parametrize("time", [1, 2, 63, 64, 65, 150])
def test_equals_the_loop_with_all_gradients(time, varying):
    for reset in (None, cuts(time)):
        arguments = [x.requires_grad_() for x in problem(time, varying=varying)]
        got, want = outer_scan(*arguments, reset=reset), loop(*arguments, reset)
        weights = [torch.randn_like(x) for x in want]
        grads = [
            torch.autograd.grad(
                sum((a * w).sum() for a, w in zip(x, weights, strict=True)), arguments
            )
            for x in (got, want)
        ]
        for a, b in zip((*got, *grads[0]), (*want, *grads[1]), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


def test_golden_numbers_of_one_head():
    ones = torch.ones(1, 3, 1, 1, dtype=torch.float64)
    g = torch.tensor([31 / 32], dtype=torch.float64).log()
    o, _ = outer_scan(ones, ones, ones, g, torch.zeros(1, 1, 1, 1, dtype=torch.float64))
    torch.testing.assert_close(
        o.flatten(), torch.tensor([1, 1.96875, 2.9072266], dtype=torch.float64), rtol=0, atol=1e-7
    )


@pytest.mark.parametrize("deepest", [0.01, 3.0, 300.0])
def test_float32_is_as_exact_as_a_loop(deepest):
    arguments = problem(300, varying=True, dtype=torch.float32, deepest=deepest)
    truth = loop(*(x.double() for x in arguments), None)
    for got, own, want in zip(outer_scan(*arguments), loop(*arguments, None), truth, strict=True):
        error, allowed = (float((x - want).abs().max()) for x in (got, own))
        assert error <= 4 * allowed


def test_what_is_not_finite_stays_behind_and_stops_at_a_reset():
    for place, value in ((2, float("nan")), (1, float("inf"))):  # v and k
        arguments, reset = list(problem(150)), torch.zeros(B, 150, dtype=torch.bool)
        reset[1, 90] = True
        clean, _ = outer_scan(*arguments, reset=reset)
        arguments[place] = arguments[place].clone()
        arguments[place][:, 70] = value
        o, last = outer_scan(*arguments, reset=reset)
        assert torch.equal(o[:, :70], clean[:, :70])
        assert not o[:, 70:90].isfinite().any()
        assert o[1, 90:].isfinite().all()
        assert last[1].isfinite().all()
        assert not last[0].isfinite().any()
