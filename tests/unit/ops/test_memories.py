"""`outer_scan` and `delta_scan`: golden numbers, others' loops, rounding errors, bad input."""

import pytest
import torch
import torch.nn.functional as F

from linrnn.errors import ArgumentError, DTypeError, ShapeError
from linrnn.ops import delta_scan, explain, outer_scan, use_backend
from linrnn.testing._every_op import backends

ONE = torch.ones(1, 4, 1, 1, dtype=torch.float64)
HALF = torch.tensor(0.5, dtype=torch.float64)
BACKENDS = backends("outer_scan")


@pytest.fixture(params=BACKENDS)
def backend(request):
    with use_backend(request.param):
        yield request.param


def test_golden_numbers_of_outer_scan(backend):
    half = HALF.log().expand(1, 4, 1, 1)
    cases = {
        (1.0, 2.0, 3.0, 4.0): {},
        (1.0, 1.5, 1.75, 1.875): {"g": HALF.log()[None]},
        (2.0, 3.0, 3.5, 3.75): {"g": half, "bonus": 2 * ONE[0, 0]},
        (1.0, 1.25, 1.3125, 1.328125): {"g": half, "value_decay": half},
        (0.5, 1.0, 1.5, 2.0): {"scale": 0.5},
    }
    for wanted, given in cases.items():
        o, _ = outer_scan(ONE, ONE, ONE, **given)
        assert o.flatten().tolist() == pytest.approx(wanted, abs=1e-14)


def test_the_normalizer_is_the_mean_of_values_that_decay(backend):
    v = torch.arange(1.0, 5.0, dtype=torch.float64).view(1, 4, 1, 1)
    o, S = outer_scan(ONE, ONE, v, normalizer=True)
    assert (o[..., 0] / o[..., 1]).flatten().tolist() == pytest.approx([1, 1.5, 2, 2.5])
    o, S = outer_scan(ONE, ONE, v, HALF.log()[None], normalizer=True)  # RFA's gate of a half
    assert (o[..., 0] / o[..., 1]).flatten().tolist()[:3] == pytest.approx([1, 5 / 3, 17 / 7])
    assert S.shape == (1, 1, 1, 2)
    spared = outer_scan(ONE, ONE, v, value_decay=HALF.log().expand(v.shape), normalizer=True)[0]
    assert spared[..., 1].flatten().tolist() == [1, 2, 3, 4]


def test_golden_numbers_of_delta_scan(backend):
    half = HALF.expand(1, 4, 1)
    assert delta_scan(ONE, ONE, ONE, half)[0].flatten().tolist()[:3] == [0.5, 0.75, 0.875]
    gated = delta_scan(ONE, ONE, ONE, half, half.log())[0]
    assert gated.flatten().tolist()[:3] == pytest.approx([0.5, 0.625, 0.65625])
    v = torch.tensor([1.0, 5, 2, 2], dtype=torch.float64).view(1, 4, 1, 1)
    assert delta_scan(ONE, ONE, v)[0].flatten().tolist() == [1, 5, 2, 2]  # overwrites
    low = delta_scan(ONE, ONE, ONE, g=half.log(), a=-ONE, b=0.25 * ONE)[0]  # RWKV-7
    assert low.flatten().tolist()[:3] == pytest.approx([1, 1.25, 1.3125])


def test_orthonormal_keys_hold_their_values_and_a_key_is_rewritten_alone(backend):
    torch.manual_seed(0)
    k = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64))[0].view(1, 6, 1, 6)
    v = torch.randn(1, 7, 1, 3, dtype=torch.float64)
    keys = torch.cat([k, k[:, 2:3]], 1)
    _, S = delta_scan(keys, keys, v)
    held = (k[0, :, 0] @ S[0, 0]).clone()
    wanted = v[0, :6, 0].clone()
    wanted[2] = v[0, 6, 0]
    torch.testing.assert_close(held, wanted, rtol=0, atol=1e-13)


def _ours_and_theirs(ours, theirs, arguments):
    """Outputs and gradients of everything, in turn."""
    found = []
    for run in (ours, theirs):
        leaves = [x.clone().requires_grad_() for x in arguments]
        o = run(*leaves)
        weight = torch.linspace(-1, 1, o.numel()).view(o.shape)
        found.append([o.detach(), *torch.autograd.grad((o * weight).sum(), leaves)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-5)


@pytest.mark.filterwarnings("ignore:Triton is not supported")
def test_equal_the_loops_of_fla(backend):
    from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule
    from fla.ops.gla.naive import naive_recurrent_gla
    from fla.ops.kda.naive import naive_recurrent_kda
    from fla.ops.simple_gla.naive import naive_recurrent_simple_gla

    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 20, 2, 4).unbind()
    v = torch.cat([v, v.flip(-1)], -1)
    k, beta = F.normalize(k, dim=-1), torch.rand(2, 20, 2)
    g = F.logsigmoid(torch.randn(2, 20, 2, 4))
    scale = q.shape[-1] ** -0.5

    def outer(q, k, v, g):
        return outer_scan(q, k, v, g, scale=scale)[0]

    def delta(q, k, v, g, beta):
        return delta_scan(q, k, v, beta, g, scale=scale)[0]

    head = g[..., 0].clone()
    _ours_and_theirs(outer, lambda *x: naive_recurrent_simple_gla(*x)[0], (q, k, v, head))
    _ours_and_theirs(outer, lambda *x: naive_recurrent_gla(*x)[0], (q, k, v, g))
    _ours_and_theirs(
        delta,
        lambda q, k, v, g, beta: naive_recurrent_gated_delta_rule(q, k, v, beta, g)[0],
        (q, k, v, head, beta),
    )
    _ours_and_theirs(delta, lambda *x: naive_recurrent_kda(*x)[0], (q, k, v, g, beta))


def _loop(q, k, v, g, S, beta=None):
    outputs = []
    for t in range(q.shape[1]):
        S = g[:, t].exp().view(*g[:, t].shape, *(1,) * (5 - g.ndim)) * S
        write = v[:, t]
        if beta is not None:
            write = beta[:, t, :, None] * (write - torch.einsum("bhkv,bhk->bhv", S, k[:, t]))
        S = S + k[:, t, :, :, None] * write[..., None, :]
        outputs.append(torch.einsum("bhkv,bhk->bhv", S, q[:, t]))
    return torch.stack(outputs, 1), S


def _hard(delta, channel, T=200, H=2, K=8, V=8):
    """Log decays from 0 to -300 mixed at random, correlated keys, beta up to 2."""
    torch.manual_seed(0)
    q, k, v = torch.randn(1, T, H, K), torch.randn(1, T, H, K), torch.randn(1, T, H, V)
    k = F.normalize(k + 2 * torch.randn(1, 1, H, K), dim=-1)
    g = -torch.exp(12 * torch.rand(1, T, H, *((K,) if channel else ())) - 6.3)
    g = torch.where(torch.rand(g.shape) < 0.1, 0, g)
    given = [q, k, v, g, torch.randn(1, H, K, V)]
    return [*given, 2 * torch.rand(1, T, H)] if delta else given


def _all(run, given, dtype):
    leaves = [x.to(dtype).requires_grad_() for x in given]
    o, S = run(*leaves)
    torch.manual_seed(1)
    loss = (o * torch.randn(o.shape)).sum() + (S * torch.randn(S.shape)).sum()
    return [o.detach(), S.detach(), *torch.autograd.grad(loss, leaves)]


@pytest.mark.parametrize("channel", [False, True])
@pytest.mark.parametrize("delta", [False, True])
def test_errors_are_those_of_a_loop_of_the_same_dtype(backend, delta, channel):
    given = _hard(delta, channel)

    def run(q, k, v, g, S, beta=None):
        if beta is None:
            return outer_scan(q, k, v, g, S)
        return delta_scan(q, k, v, beta, g, S)

    truth, loop = (_all(_loop, given, dtype) for dtype in (torch.float64, torch.float32))
    names = ("o", "S", "dq", "dk", "dv", "dg", "dS", "dbeta")
    for name, x, true, looped in zip(
        names, _all(run, given, torch.float32), truth, loop, strict=False
    ):
        error, allowed = ((y.double() - true).norm().item() for y in (x, looped))
        assert error <= 4 * allowed, f"{name}: {error / allowed:.1f} times a loop's error"


def test_explain_says_what_computes():
    assert explain(outer_scan, ONE, ONE, ONE).split(":")[0] in BACKENDS
    assert explain(delta_scan, ONE, ONE, ONE, backend="tree").startswith("tree: requested")


@pytest.mark.unchecked
def test_bad_input_is_named():
    cases = [
        (ShapeError, r"v must have shape .*time=4", (ONE, ONE, ONE[:, :3]), {}),
        (
            ShapeError,
            r"the heads of q must divide those of what has the most, .* got 2 and 3",
            (ONE.expand(1, 4, 2, 1), ONE.expand(1, 4, 2, 1), ONE.expand(1, 4, 3, 1)),
            {},
        ),
        (ShapeError, r"g must have shape", (ONE, ONE, ONE, torch.zeros(3)), {}),
        (ShapeError, r"initial_state must have shape", (ONE, ONE, ONE), {"normalizer": True}),
        (DTypeError, r"q must be real floating point", (ONE.long(), ONE, ONE), {}),
        (ArgumentError, r"normalizer must be True or False, got 1", (ONE,) * 3, {"normalizer": 1}),
        (ArgumentError, r"scale must be a number, got None", (ONE,) * 3, {"scale": None}),
    ]
    for error, words, arguments, options in cases:
        with pytest.raises(error, match=words):
            outer_scan(*arguments, initial_state=torch.zeros(1, 1, 1, 1), **options)
    with pytest.raises(ArgumentError, match="a and b must be given together, got b=None"):
        delta_scan(ONE, ONE, ONE, a=ONE)
