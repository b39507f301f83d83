"""`fenwick_scan` against the rule of a Fenwick tree, step by step in float64."""

import pytest
import torch
import torch.nn.functional as F

from linrnn.errors import LinrnnError
from linrnn.ops import delta_scan, fenwick_scan, outer_scan
from linrnn.ops.matrix._fenwick import _blocks, _op
from linrnn.ops.matrix._fenwick._levels import Rule, filled, read_levels

B, H, K, V = 2, 4, 3, 2


def loop(q, k, v, g, scales, state=None, start=None, beta=None, reset=None):
    """Before step t > 0 with z trailing zero bits, levels up to z join level z + 1."""
    q, k = (x.repeat_interleave(v.shape[2] // x.shape[2], 2) for x in (q, k))
    rows = []
    for b in range(v.shape[0]):
        top, t = scales.shape[3] - 1, 0 if start is None else int(start[b])
        S = torch.zeros(top + 1, v.shape[2], K, V, dtype=v.dtype)
        S = S if state is None else state[b].transpose(0, 1)
        outputs = []
        for i in range(v.shape[1]):
            t = 0 if reset is not None and reset[b, i] else t
            S = list(S.unbind(0)) if t else [torch.zeros_like(S[0])] * (top + 1)
            zeros = (t & -t).bit_length() - 1
            for level in range(min(zeros + 1, top)):
                into = min(zeros + 1, top)
                S[into] = S[into] + S[level]
                S[level] = torch.zeros_like(S[level])
            S = torch.stack(S)
            if g is not None:
                S = (g[b, i] if g.ndim == 4 else g[b, i, :, None]).exp()[..., None] * S
            w = v[b, i]
            if beta is not None:
                rate = beta[b, i, :, None]
                read = torch.einsum("lhkv,hk->lhv", S, k[b, i])
                S = S - torch.einsum("hk,lhv->lhkv", rate * k[b, i], read)
                w = rate * w
            now = S[:1] + k[b, i][..., None] * w[..., None, :]
            S = torch.cat([now, S[1:]])
            outputs.append(torch.einsum("lhkv,hk,hl->hv", S, q[b, i], scales[b, i]))
            t += 1
        rows.append((torch.stack(outputs), S.transpose(0, 1), torch.tensor(t)))
    return tuple(torch.stack(x) for x in zip(*rows, strict=True))


def problem(time, levels, *, groups=H, batch=B, deepest=3.0):
    torch.manual_seed(time + levels)
    double = torch.float64
    q, k = (torch.randn(batch, time, groups, K, dtype=double) for _ in range(2))
    v, g = torch.randn(batch, time, H, V, dtype=double), torch.rand(batch, time, H, dtype=double)
    scales = torch.randn(batch, time, H, levels, dtype=double)
    return [q, F.normalize(k, dim=-1), v, -deepest * g, scales]


def close(got, expected):
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def read_with_gradients(function, arguments):
    arguments = [x.detach().requires_grad_() for x in arguments]
    o, final, position = function(*arguments)
    torch.manual_seed(0)
    total = (o * torch.randn(o.shape).double()).sum()
    total = total + (final * torch.randn(final.shape).double()).sum()
    grads = torch.autograd.grad(total, arguments, materialize_grads=True)
    return o, final, position, *grads


def corrected(function, arguments):
    """By the delta rule, whose rates are the last of the arguments."""
    return function(*arguments[:-1], beta=arguments[-1])


def with_rates(arguments):
    return [*arguments, 2 * torch.rand(arguments[2].shape[:3], dtype=torch.float64)]


@pytest.mark.parametrize("levels", [1, 2, 5, 12])
@pytest.mark.parametrize("time", [1, 2, 17, 64, 129, 300])
@pytest.mark.parametrize("groups", [1, H])
@pytest.mark.parametrize("delta", [False, True])
def test_blocks_equal_the_rule_with_all_gradients(time, levels, groups, delta):
    arguments = problem(time, levels, groups=groups)
    functions = (fenwick_scan, loop)
    if delta:
        arguments = with_rates(arguments)
        functions = [lambda *x, f=f: corrected(f, x) for f in functions]
    close(*(read_with_gradients(f, arguments) for f in functions))


@pytest.mark.parametrize("start", [1, 6, 64, 96, 1000])
@pytest.mark.parametrize("levels", [1, 3, 8, 12])
@pytest.mark.parametrize("delta", [False, True])
def test_blocks_go_on_from_any_position_with_all_gradients(start, levels, delta):
    arguments, at = problem(200, levels), torch.full((B,), start)
    state = loop(*problem(start, levels))[1]
    beta = with_rates(arguments)[-1] if delta else None

    def run(function):
        def call(*x):
            return function(*x[:6], at, beta=x[6] if delta else None)

        return read_with_gradients(call, [*arguments, state] + ([beta] if delta else []))

    close(run(fenwick_scan), run(loop_from))


def loop_from(*arguments, beta):
    *steps, state, start = arguments
    return loop(*steps, filled(state, start), start, beta)


@pytest.mark.parametrize("delta", [False, True])
def test_blocks_are_computed_row_by_row_where_rows_are_long(monkeypatch, delta):
    arguments = problem(150, 9)
    beta = with_rates(arguments)[-1] if delta else None
    expected = fenwick_scan(*arguments, beta=beta)
    monkeypatch.setattr(_blocks, "ROWS", 1)
    close(fenwick_scan(*arguments, beta=beta), expected)


@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("levels", [1, 2, 4, 9])
def test_scans_equal_the_rule_at_positions_that_differ(delta, levels):
    time = 40
    arguments, start = problem(time, levels, groups=2), torch.tensor([5, 12])
    beta = torch.rand(B, time, H, dtype=torch.float64) if delta else None
    state, reset = torch.randn(B, H, levels, K, V, dtype=torch.float64), torch.rand(B, time) < 0.1
    for n in range(B):  # a level that holds nothing is zero
        for level in range(levels - 1):
            if level and not (int(start[n]) - 1) >> (level - 1) & 1:
                state[n, :, level] = 0
        if levels > 1 and (int(start[n]) - 1) >> (levels - 2) == 0:
            state[n, :, -1] = 0
    for cut in (None, reset):
        got = fenwick_scan(*arguments, state, start, beta=beta, reset=cut)
        close(got, loop(*arguments, state, start, beta, cut))


@pytest.mark.parametrize("delta", [False, True])
def test_blocks_equal_scans(delta):
    q, k, v, g, scales = problem(333, 11)
    beta = with_rates([q, k, v])[-1] if delta else None
    start = torch.zeros(B, dtype=torch.long)
    position = torch.arange(333).expand(B, -1)
    expected = read_levels(Rule(q, k, v, g, beta), scales, None, start, position, None)
    close(fenwick_scan(q, k, v, g, scales, beta=beta)[:2], expected)


@pytest.mark.parametrize("kind", ["undecayed", "by head", "by channel", "delta"])
@pytest.mark.parametrize("levels", [1, 2, 5])
def test_steps_equal_the_rule_at_positions_that_differ(kind, levels):
    time, groups = 19, 2 if kind == "by head" else H
    q, k, v, g, scales = problem(time, levels, groups=groups)
    beta = torch.rand(B, time, H, dtype=torch.float64) if kind == "delta" else None
    g = None if kind == "undecayed" else g
    g = -torch.rand(B, time, H, K, dtype=torch.float64) if kind == "by channel" else g
    state = torch.randn(B, H, levels, K, V, dtype=torch.float64)
    start = torch.tensor([0, 6])
    expected = loop(q, k, v, g, scales, filled(state, start), start, beta)
    outputs, now, position = [], state, start
    for t in range(time):
        step = [None if x is None else x[:, t : t + 1] for x in (q, k, v, g, scales)]
        rate = None if beta is None else beta[:, t : t + 1]
        o, now, position = fenwick_scan(*step, now, position, beta=rate)
        outputs.append(o)
    close((torch.cat(outputs, 1), now, position), expected)


def test_a_step_that_is_reset_does_not_read_what_was_no_number():
    *steps, scales = problem(1, 3)
    state = torch.full((B, H, 3, K, V), float("nan"), dtype=torch.float64)
    position, reset = torch.tensor([4, 5]), torch.ones(B, 1, dtype=torch.bool)
    got = fenwick_scan(*steps, scales, state, position, reset=reset)
    close(got, fenwick_scan(*steps, scales))


@pytest.mark.parametrize("delta", [False, True])
def test_packed_sequences_are_read_as_if_alone(delta):
    cuts = torch.tensor([0, 0, 4, 160, 165, 170])
    q, k, v, g, scales = problem(170, 6, batch=1)
    beta = torch.rand(1, 170, H, dtype=torch.float64) if delta else None
    start = torch.tensor([3, 0, 7, 8, 2])
    state = torch.cat([loop(*problem(max(int(n), 1), 6, batch=1))[1] for n in start])
    options = {"beta": beta, "cu_seqlens": cuts}
    o, final, position = fenwick_scan(q, k, v, g, scales, state, start, **options)
    torch.testing.assert_close(final[0], state[0])
    for s in range(1, 5):
        at = slice(int(cuts[s]), int(cuts[s + 1]))
        mine = [x[:, at] for x in (q, k, v, g, scales)]
        rate = None if beta is None else beta[:, at]
        expected = loop(*mine, state[s : s + 1], start[s : s + 1], rate)
        close((o[:, at], final[s : s + 1], position[s : s + 1]), expected)


@pytest.mark.parametrize("levels", [1, 4, 9])
def test_equal_scales_are_the_plain_memory(levels):
    q, k, v, g, _ = problem(100, levels)
    ones, beta = torch.ones(B, 100, H, levels, dtype=torch.float64), torch.rand(B, 100, H).double()
    o, final, _ = fenwick_scan(q, k, v, g, ones, scale=0.5)
    close((o, final.sum(2)), outer_scan(q, k, v, g, scale=0.5))
    o, final, _ = fenwick_scan(q, k, v, g, ones, beta=beta)
    close((o, final.sum(2)), delta_scan(q, k, v, beta, g))


@pytest.mark.parametrize("delta", [False, True])
def test_decays_far_apart_lose_nothing(delta):
    q, k, v, g, scales = problem(130, 9)
    g = torch.where(torch.rand_like(g) < 0.1, -300, -1e-3 * torch.rand_like(g))
    singles = [x.float() for x in (q, k, v, g, scales)]
    beta = with_rates([q, k, v])[-1].float() if delta else None
    o, _, _ = fenwick_scan(*singles, beta=beta)
    expected = loop(*(x.double() for x in singles), beta=beta.double() if delta else None)[0]
    torch.testing.assert_close(o.double(), expected, rtol=1e-4, atol=1e-5)


def test_corrections_that_grow_less_than_they_decay_stay_finite():
    q, k, v, _, scales = (x.float() for x in problem(300, 9))
    k, beta = 3 * torch.nn.functional.normalize(k, dim=-1), torch.ones(B, 300, H)
    g = torch.full_like(beta, -3.0)  # a step multiplies by (1 - 9) e^-3
    o, final, _ = fenwick_scan(q, k, v, g, scales, beta=beta)
    expected = loop(*(x.double() for x in (q, k, v, g, scales)), beta=beta.double())
    torch.testing.assert_close(o.double(), expected[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(final.double(), expected[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e200])
@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("looks", [False, True])
def test_what_is_not_finite_reaches_no_step_before(monkeypatch, bad, delta, looks):
    if not looks:  # as on a GPU
        monkeypatch.setattr(_op, "may_look", lambda x: False)
        monkeypatch.setattr(_op, "seen_finite", lambda x: False)
    arguments = problem(150, 9)
    beta = with_rates(arguments)[-1] if delta else None
    expected = fenwick_scan(*arguments, beta=beta)[0][:, :70]
    for x in arguments if beta is None else [*arguments, beta]:
        x[:, 70] = bad
    o = fenwick_scan(*arguments, beta=beta)[0]
    assert torch.equal(o[:, :70], expected)
    assert not o[:, 70].isfinite().any()


@pytest.mark.unchecked
def test_words_its_errors():
    q, k, v, g, scales = problem(5, 3)
    state = torch.zeros(B, H, 3, K, V, dtype=torch.float64)
    with pytest.raises(LinrnnError, match="fenwick_scan: position must be given with initial_stat"):
        fenwick_scan(q, k, v, g, scales, state)
    with pytest.raises(LinrnnError, match="fenwick_scan: position must be integers, got tensor"):
        fenwick_scan(q, k, v, g, scales, state, torch.zeros(B))
    with pytest.raises(LinrnnError, match="level_scales must have 1 to 62 levels, got 0"):
        fenwick_scan(q, k, v, g, scales[..., :0])
    with pytest.raises(LinrnnError, match="level_scales must have shape"):
        fenwick_scan(q, k, v, g, scales[:, :4])
    with pytest.raises(LinrnnError, match="the heads of v must be a multiple"):
        fenwick_scan(q, k, v[:, :, :3], g, scales)
    with pytest.raises(LinrnnError, match="scale must be a number, got 'x'"):
        fenwick_scan(q, k, v, g, scales, scale="x")
