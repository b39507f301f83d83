"""The native kernels of `outer_scan` and `delta_scan` against a loop: every option and length."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from linrnn.compute import native
from linrnn.errors import LinrnnError
from linrnn.ops.matrix._memory import _again
from linrnn.ops.matrix.delta_scan import delta_scan
from linrnn.ops.matrix.outer_scan import outer_scan

pytestmark = pytest.mark.skipif(native.load()[0] is None, reason="no native kernels")

#: Everything that is an input of an op, and what it may be left out with.
OUTER = {
    "plain": "",
    "head": "g:head",
    "channel": "g:channel",
    "constant head": "g:h normalizer",
    "constant channel": "g:hk normalizer shared",
    "bonus": "g:hk bonus",
    "bonus by head": "g:head bonus",
    "bonus by channel": "g:channel bonus normalizer",
    "shared": "g:head shared",
    "shared by channel": "g:channel shared normalizer",
    "two-sided": "g:channel value_decay normalizer",
    "two-sided alone": "value_decay",
    "two-sided by head": "g:head value_decay shared",
    "two-sided bonus": "g:hk value_decay bonus normalizer",
}
DELTA = {
    "delta": "beta",
    "no beta": "g:head",
    "delta by head": "beta g:head shared",
    "delta by channel": "beta g:channel",
    "delta constant": "beta g:hk",
    "low rank": "beta g:channel ab",
    "low rank shared": "g:head ab shared",
    "low rank alone": "ab",
    "low rank constant": "beta g:hk ab",
}
KINDS = [("outer", kind) for kind in OUTER] + [("delta", kind) for kind in DELTA]


def problem(op, kind, time, *, heads=4, keys=5, values=6, batch=2, deepest=3.0, seed=0):
    """The arguments of a call, in float64, and its options."""
    words = (OUTER if op == "outer" else DELTA)[kind].split()
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=draw)

    def decay(*shape):
        # most next to nothing or all but everything
        size = torch.rand(*shape, dtype=torch.float64, generator=draw)
        return -deepest * torch.where(size > 0.5, size, size**6)

    shared = heads // 2 if "shared" in words else heads
    steps = (batch, time)
    x = {n: normal(*steps, shared, keys) for n in "qk"} | {"v": normal(*steps, heads, values)}
    if op == "delta":
        # keys that are much alike, of length 1
        x["k"] = F.normalize(x["k"] + 2 * normal(shared, keys), dim=-1)
    of_g = {"h": (heads,), "hk": (heads, keys), "head": (*steps, heads)}
    of_g["channel"] = (*steps, heads, keys)
    for word in words:
        if word.startswith("g:"):
            x["g"] = decay(*of_g[word[2:]])
    if "beta" in words:
        x["beta"] = 2 * normal(*steps, heads).sigmoid()
    if "bonus" in words:
        x["bonus"] = normal(heads, keys)
    if "value_decay" in words:
        x["value_decay"] = decay(*steps, heads, values)
    if "ab" in words:
        x["a"], x["b"] = (F.normalize(normal(*steps, shared, keys), dim=-1) for _ in "ab")
        x["b"] = -0.5 * x["b"]
    columns = values + ("normalizer" in words)
    x["initial_state"] = normal(batch, heads, keys, columns)
    return x, {"normalizer": True} if "normalizer" in words else {}


def loop(x, *, delta, normalizer=False, scale=1.0, reset=None):
    """One step after the other, in the dtype it is given."""
    v, S = x["v"], x["initial_state"]
    each = v.shape[2] // x["q"].shape[2]
    q, k, a, b = (x[n].repeat_interleave(each, 2) if n in x else None for n in "qkab")
    g, e = x.get("g", v.new_zeros(v.shape[2])), x.get("value_decay", torch.zeros_like(v))
    g = g.expand(*v.shape[:2], *g.shape) if g.ndim < 3 else g
    alpha = (g if g.ndim == 4 else g[..., None]).exp()[..., None]
    if normalizer:
        v, e = F.pad(v, (0, 1), value=1.0), F.pad(e, (0, 1))
    beta = x.get("beta", v.new_ones(v.shape[:3]))[..., None]
    outputs = []
    for t in range(v.shape[1]):
        if reset is not None:
            S = torch.where(reset[:, t, None, None, None], 0, S)
        value, key, after = v[:, t], k[:, t, :, :, None], alpha[:, t] * S
        if a is not None:
            after = after + b[:, t, :, :, None] * (S.mT @ a[:, t, :, :, None]).mT
        elif delta:
            value = value - (after.mT @ key).squeeze(-1)
        else:
            after = after * e[:, t, :, None, :].exp()
        write = key * (beta[:, t] * value)[..., None, :]
        read = S + x["bonus"][..., None] * write if "bonus" in x else after + write
        S = after + write
        outputs.append((read.mT @ (scale * q[:, t, :, :, None])).squeeze(-1))
    return (torch.stack(outputs, 1) if outputs else v[:, :0]), S


def kernel(x, *, delta, **options):
    return (delta_scan if delta else outer_scan)(**x, backend="cpu", **options)


def with_gradients(function, x, dtype, **options):
    """Everything a call returns, and the gradient of every argument."""
    x = {n: t.to(dtype).requires_grad_() for n, t in x.items()}
    results = function(x, **options)
    draw = torch.Generator().manual_seed(1)
    into = [torch.randn(y.shape, dtype=torch.float64, generator=draw).to(dtype) for y in results]
    grads = torch.autograd.grad(results, list(x.values()), into, materialize_grads=True)
    named = {"o": results[0], "final": results[1]}
    return named | {f"gradient of {n}": d for n, d in zip(x, grads, strict=True)}


def assert_equal_to_the_loop(x, **options):
    got, want = (with_gradients(f, x, torch.float64, **options) for f in (kernel, loop))
    for name, value in want.items():
        torch.testing.assert_close(
            got[name], value, rtol=1e-9, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}"
        )


def cuts(batch, time):
    reset = torch.zeros(batch, time, dtype=torch.bool)
    for i, t in enumerate((0, 1, 2, 15, 16, 17, 40, 63, 64, 65)):
        reset[i % batch, t : t + 1] = True
    return reset


@pytest.mark.parametrize(("op", "kind"), KINDS)
def test_every_length_about_a_chunk_equals_the_loop(op, kind):
    for time in (1, 2, 3, 15, 16, 17, 63, 64, 65):
        x, options = problem(op, kind, time)
        assert_equal_to_the_loop(x, delta=op == "delta", scale=0.5, **options)


@pytest.mark.parametrize(("op", "kind"), KINDS)
def test_resets_before_at_and_after_the_edge_of_a_chunk(op, kind):
    x, options = problem(op, kind, 100)
    # neither what was before nor its gradient may be multiplied, only left out
    assert_equal_to_the_loop(x, delta=op == "delta", reset=cuts(2, 100), **options)
    x["initial_state"] = torch.full_like(x["initial_state"], float("inf"))
    o, final = kernel(x, delta=op == "delta", reset=cuts(2, 100), **options)
    assert o[0].isfinite().all()
    assert o[1, 1:].isfinite().all()
    assert final.isfinite().all()


@pytest.mark.parametrize(("op", "kind"), [("outer", "shared by channel"), ("delta", "low rank")])
def test_no_step_leaves_the_state_and_its_gradient(op, kind):
    x, options = problem(op, kind, 0)
    x["initial_state"].requires_grad_()
    o, final = kernel(x, delta=op == "delta", **options)
    assert o.shape[1] == 0
    torch.testing.assert_close(final, x["initial_state"])
    (grad,) = torch.autograd.grad(final.sum(), x["initial_state"])
    torch.testing.assert_close(grad, torch.ones_like(grad))


SIZES = [(1, 1), (3, 17), (16, 16), (17, 8), (24, 65), (33, 130)]


@pytest.mark.parametrize(("op", "kind"), KINDS)
def test_keys_and_values_of_any_width(op, kind):
    for keys, values in SIZES:
        x, options = problem(op, kind, 20, heads=2, keys=keys, values=values, batch=1)
        assert_equal_to_the_loop(x, delta=op == "delta", **options)


def packed(x, lengths):
    """Sequences in one row: their steps one after the other."""
    steps = [n for n, t in x.items() if n not in ("bonus", "initial_state") and t.ndim > 2]
    rows = {n: torch.cat([x[n][i : i + 1, :k] for i, k in enumerate(lengths)], 1) for n in steps}
    return {**x, **rows}, torch.tensor([0, *itertools.accumulate(lengths)])


@pytest.mark.parametrize(("op", "kind"), KINDS)
def test_packed_sequences_and_both_directions(op, kind):
    lengths = (17, 0, 64, 3, 70)
    x, options = problem(op, kind, 70, heads=2, batch=len(lengths))
    together, offsets = packed(x, lengths)
    options["delta"] = op == "delta"
    constant = [n for n in x if n == "bonus" or (n == "g" and x[n].ndim < 3)]
    for reverse in (False, True):
        got = with_gradients(
            kernel, together, torch.float64, cu_seqlens=offsets, reverse=reverse, **options
        )
        for i, length in enumerate(lengths):
            alone = {n: t if n in constant else t[i : i + 1] for n, t in x.items()}
            alone = {
                n: t if n in (*constant, "initial_state") else t[:, :length]
                for n, t in alone.items()
            }
            if reverse:
                alone = {
                    n: t if n in (*constant, "initial_state") else t.flip(1)
                    for n, t in alone.items()
                }
            o, final = loop(alone, **options)
            here = got["o"][:, int(offsets[i]) : int(offsets[i + 1])]
            if length:
                torch.testing.assert_close(here.flip(1) if reverse else here, o)
            torch.testing.assert_close(got["final"][i : i + 1], final)


@pytest.mark.parametrize(("op", "kind"), KINDS)
@pytest.mark.parametrize("deepest", [0.05, 300.0])
def test_float32_is_as_exact_as_a_loop(op, kind, deepest):
    x, options = problem(op, kind, 100, heads=2, keys=16, values=16, deepest=deepest)
    x = {n: t.float() for n, t in x.items()}
    options["delta"] = op == "delta"
    truth = with_gradients(loop, x, torch.float64, **options)
    own = with_gradients(loop, x, torch.float32, **options)
    for name, value in with_gradients(kernel, x, torch.float32, **options).items():
        error, allowed = (float((y - truth[name]).detach().abs().max()) for y in (value, own[name]))
        assert error <= 4 * allowed, f"{name}: {error} of {allowed}"


@pytest.mark.parametrize(("op", "kind"), KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_storage(op, kind, dtype):
    x, options = problem(op, kind, 40)
    options["delta"] = op == "delta"
    stored = ("q", "k", "v", "a", "b")
    x = {n: t.to(dtype) if n in stored else t.float() for n, t in x.items()}
    o, final = kernel(x, **options)
    want, last = kernel({n: t.float() for n, t in x.items()}, **options)
    assert o.dtype == dtype
    if dtype is torch.bfloat16:  # some processors round factors of products, see test_memory_halves
        for rounded, wide in ((o, want), (final, last)):
            assert (rounded.float() - wide).norm() <= 0.006 * wide.norm()
        return
    assert torch.equal(o, want.to(dtype))
    assert torch.equal(final, last)


@pytest.mark.parametrize("op", ["outer", "delta"])
def test_decays_by_head_are_equal_decays_by_channel(op):
    head = {"outer": "head", "delta": "delta by head"}[op]
    x, _ = problem(op, head, 70)
    by_channel = x | {"g": x["g"][..., None].expand(*x["g"].shape, x["q"].shape[3])}
    got, want = (
        with_gradients(kernel, y, torch.float64, delta=op == "delta") for y in (by_channel, x)
    )
    got["gradient of g"] = got["gradient of g"].sum(-1)
    for name, value in want.items():
        torch.testing.assert_close(got[name], value, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("op", "kind"), KINDS)
def test_the_same_bits_for_any_number_of_threads(op, kind, monkeypatch):
    # heads are few: their columns are cut
    x, options = problem(op, kind, 130, heads=2, keys=24, values=160, batch=1)
    options["delta"] = op == "delta"
    found = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(native, "threads", lambda n=threads: n)
        found.append(with_gradients(kernel, x, torch.float32, **options))
    for name, value in found[0].items():
        assert torch.equal(value, found[1][name]), name
        assert torch.equal(value, found[2][name]), name


@pytest.mark.parametrize(("op", "kind"), KINDS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_reaches_nothing_earlier(op, kind, bad):
    x, options = problem(op, kind, 40)
    options["delta"] = op == "delta"
    clean, _ = kernel(x, **options)
    for name in {"q", "k", "v", "a", "b", "beta"} & x.keys():
        spoilt = x[name].clone()
        spoilt[:, 21] = bad
        o, _ = kernel(x | {name: spoilt}, **options)
        assert torch.equal(o[:, :21], clean[:, :21]), name


@pytest.mark.parametrize(("op", "kind"), KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@torch.no_grad()
def test_a_step_that_comes_again_is_the_step_of_the_whole_way(op, kind, dtype, monkeypatch):
    x, options = problem(op, kind, 12, keys=8, values=16)
    options |= {"delta": op == "delta", "scale": 0.5}
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    stored = ("q", "k", "v", "a", "b")
    x = {n: t.to(dtype if n in stored else wide) for n, t in x.items()}
    constant = [n for n in x if n == "bonus" or (n == "g" and x[n].ndim < 3)]

    def steps():
        state, found = x["initial_state"], []
        for t in range(12):
            now = {n: y if n in constant else y[:, t : t + 1] for n, y in x.items()}
            o, state = kernel(now | {"initial_state": state}, **options)
            found.append(o)
        return torch.cat(found, 1), state

    packed, calls = native.Kernel.__call__, []

    def counted(self, *values):
        calls.append(self.name)
        return packed(self, *values)

    monkeypatch.setattr(native.Kernel, "__call__", counted)
    o, final = steps()
    assert len(calls) <= 2  # what is remembered has its record written
    monkeypatch.setattr(_again, "_STEPS", 0)
    want, last = steps()
    assert len(calls) >= 12
    assert torch.equal(o, want)
    assert torch.equal(final, last)


@torch.no_grad()
def test_what_is_remembered_of_a_step_answers_no_other_call():
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 1, 3, 16, generator=draw) for _ in "qkv")
    state = torch.randn(2, 3, 16, 16, generator=draw)
    g = -torch.rand(2, 1, 3, generator=draw)
    for _ in range(2):
        o, final = outer_scan(q, k, v, g, state)
    want = loop({"q": q, "k": k, "v": v, "g": g, "initial_state": state}, delta=False)
    torch.testing.assert_close(o, want[0])
    torch.testing.assert_close(outer_scan(q, k, v, g, state, scale=2.0)[0], 2 * o)
    assert outer_scan(q, k, v, g, state, normalizer=False)[0].shape == o.shape
    cleared = torch.ones(2, 1, dtype=torch.bool)
    other = outer_scan(q, k, v, g, state, reset=cleared)[1]
    torch.testing.assert_close(other, outer_scan(q, k, v, g)[1])
    # anywhere in memory: rows apart, heads apart, columns apart, and at an odd address
    apart = torch.randn(2, 3, 3, 32, generator=draw)
    apart[:, 1:2, :, ::2] = v
    torch.testing.assert_close(outer_scan(q, k, apart[:, 1:2, :, ::2], g, state)[0], o)
    raw = torch.zeros(v.numel() * 4 + 1, dtype=torch.uint8)
    raw[1:] = v.flatten().view(torch.uint8)
    odd = torch.frombuffer(raw.numpy()[1:], dtype=torch.float32).view(v.shape)
    torch.testing.assert_close(outer_scan(q, k, odd, g, state)[0], o)
    with torch.enable_grad():
        last = outer_scan(q, k, v.clone().requires_grad_(), g, state)[1]
    assert last.requires_grad
    torch.testing.assert_close(last.detach(), final)


@pytest.mark.unchecked
@torch.no_grad()
def test_errors_of_a_step_that_was_right_before():
    q, k, v = (torch.randn(1, 1, 2, 8) for _ in "qkv")
    state = torch.zeros(1, 2, 8, 8)
    for _ in range(2):
        outer_scan(q, k, v, None, state)
        delta_scan(q, k, v, None, None, state)
    with pytest.raises(LinrnnError, match=r"outer_scan: k must have shape .*d_key=8.*"):
        outer_scan(q, k[..., :4], v, None, state)
    with pytest.raises(LinrnnError, match="outer_scan: reverse must be True or False, got 1"):
        outer_scan(q, k, v, None, state, reverse=1)
    with pytest.raises(LinrnnError, match="outer_scan: scale must be a number, got True"):
        outer_scan(q, k, v, None, state, scale=True)
    with pytest.raises(LinrnnError, match="delta_scan: a and b must be given together"):
        delta_scan(q, k, v, None, None, state, a=q)
    with pytest.raises(LinrnnError, match="backend"):
        outer_scan(q, k, v, None, state, backend="nothing")
    with pytest.raises(LinrnnError, match="initial_state"):
        outer_scan(q, k, v, None, state.double()[..., :4])


@pytest.mark.parametrize(("heads", "key_heads"), [(12, 1), (6, 2), (10, 2)])
def test_many_heads_that_share_their_keys(heads, key_heads):
    for op, kind in (("outer", "channel"), ("delta", "delta by head")):
        x, options = problem(op, kind, 20, heads=heads, keys=3, values=4, batch=1)
        x |= {n: x[n][:, :, :key_heads] for n in "qk"}
        before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(True)  # what is not written is NaN
        try:
            assert_equal_to_the_loop(x, delta=op == "delta", **options)
        finally:
            torch.use_deterministic_algorithms(before)
