"""The delta rule with momentum: chunks against a loop, golden numbers, a special case."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from linrnn.errors import ShapeError
from linrnn.ops import delta_scan
from linrnn.ops.matrix.momentum_delta import momentum_delta_scan

B, H, K, V = 2, 2, 3, 4
NAMES = ("q", "k", "v", "p", "g", "log_mu", "beta", "eta", "S", "M")


def problem(time):
    draw = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=draw)

    rows = [normal(B, time, H, n) for n in (K, K, V, K)]
    rows[1], rows[3] = (F.normalize(x, dim=-1) for x in (rows[1], rows[3]))
    decays = [-normal(B, time, H).exp() for _ in range(2)]
    rates = [normal(B, time, H).sigmoid() for _ in range(2)]
    return [*rows, *decays, *rates, normal(B, H, K, V), normal(B, H, K, V)]


def loop(q, k, v, p, g, log_mu, beta, eta, S, M, reset):
    outputs = []
    for t in range(q.shape[1]):
        if reset is not None:
            S, M = (torch.where(reset[:, t, None, None, None], 0, x) for x in (S, M))
        short = eta[:, t, :, None] * (v[:, t] - torch.einsum("bhkv,bhk->bhv", S, p[:, t]))
        M = log_mu[:, t, :, None, None].exp() * M + k[:, t, ..., None] * short[:, :, None]
        S = g[:, t, :, None, None].exp() * S + beta[:, t, :, None, None] * M
        outputs.append(0.5 * torch.einsum("bhkv,bhk->bhv", S, q[:, t]))
    return torch.stack(outputs, 1), S, M


def ours(q, k, v, p, g, log_mu, beta, eta, S, M, reset):
    o, last = momentum_delta_scan(q, k, v, p, g, log_mu, beta, eta, (S, M), scale=0.5, reset=reset)
    return o, *last


@pytest.mark.parametrize("time", [1, 7, 8, 31, 32, 33, 70])
@pytest.mark.parametrize("cut", [False, True])
def test_equals_the_loop_with_all_gradients(time, cut):
    reset = torch.rand(B, time, generator=torch.Generator().manual_seed(1)) < 0.2 if cut else None
    found = []
    for function in (ours, loop):
        leaves = [x.clone().requires_grad_() for x in problem(time)]
        results = function(*leaves, reset)
        draw = torch.Generator().manual_seed(2)
        into = [torch.randn(y.shape, dtype=torch.float64, generator=draw) for y in results]
        found.append([*results, *torch.autograd.grad(results, leaves, into)])
    for name, a, b in zip(("o", "S", "M", *NAMES), *found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("reverse", [False, True])
def test_packed_sequences_are_each_alone_in_both_directions(reverse):
    *rows, S, M = problem(75)
    rows, ends = [x[:1] for x in rows], [0, 5, 5, 70, 75]
    S, M = (torch.cat([x, x.flip(1)]) for x in (S, M))
    reset = torch.rand(1, 75, generator=torch.Generator().manual_seed(1)) < 0.1
    cu_seqlens = torch.tensor(ends)
    layout = {"cu_seqlens": cu_seqlens, "reverse": reverse}
    o, last = momentum_delta_scan(*rows, (S, M), reset=reset, **layout)
    for i, (begin, end) in enumerate(itertools.pairwise(ends)):
        here = [x[:, begin:end] for x in rows]
        if reverse:
            here = [x.flip(1) for x in here]
        mask = reset[:, begin:end].flip(1) if reverse else reset[:, begin:end]
        if end > begin:
            y, *state = loop(*here, S[i : i + 1], M[i : i + 1], mask)
            y = 2 * (y.flip(1) if reverse else y)
        else:
            y, state = o[:, begin:end], (S[i : i + 1], M[i : i + 1])
        torch.testing.assert_close(o[:, begin:end], y)
        torch.testing.assert_close([x[i : i + 1] for x in last], list(state))


def test_infinity_before_a_reset_is_left_out():
    *rows, S, M = problem(40)
    rows[2][:, 3] = float("inf")
    reset = torch.zeros(B, 40, dtype=torch.bool)
    reset[:, 10] = True
    o, last_S, last_M = ours(*rows, S, M, reset)
    assert o[:, :3].isfinite().all()
    assert o[:, 10:].isfinite().all()
    assert last_S.isfinite().all()
    assert last_M.isfinite().all()


def test_without_momentum_it_is_the_delta_rule_on_what_has_not_decayed():
    q, k, v, _, g, log_mu, _, eta, S, M = problem(40)
    none = torch.full_like(log_mu, float("-inf"))
    o, (last, _) = momentum_delta_scan(q, k, v, None, g, none, None, eta, (S, M))
    b = -k * eta[..., None]
    want, final = delta_scan(q, k, v, eta, g, S, a=k, b=b)
    torch.testing.assert_close(o, want)
    torch.testing.assert_close(last, final)


def test_golden_numbers():
    """Numbers of Momentum DeltaNet's reference, on which independent codes agree."""

    def rows(*values):
        return torch.tensor(values, dtype=torch.float64).unsqueeze(0).unsqueeze(2)

    q = rows((1, 0), (0, 1), (1, 1), (1, -1))
    k = rows((1, 0), (0.6, 0.8), (0, 1), (0.8, -0.6))
    v = rows((1, 2), (3, -1), (-2, 1), (1, 1))
    beta, eta = rows(0.5, 1, 0.25, 0.75), rows(1, 0.5, 1.5, 1)
    g, log_mu = rows(0.9, 0.8, 0.95, 0.7).log(), rows(0.5, 0.6, 0.4, 0.3).log()
    o, _ = momentum_delta_scan(q, k, v, 0.75 * k, g, log_mu, beta, eta, scale=2**-0.5)
    expected = [0.353553, 0.707107, 0.784889, -0.410122, 1.405331, 1.055268, 1.515598, 0.574375]
    assert o.flatten().tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.unchecked
def test_bad_input_is_named():
    q, k, v, p, g, *_ = problem(3)
    with pytest.raises(ShapeError, match="momentum_delta_scan: g must have shape"):
        momentum_delta_scan(q, k, v, p, g[:, :2])
    with pytest.raises(ShapeError, match="momentum_delta_scan: v must have shape"):
        momentum_delta_scan(q, k, v[:, :2])
