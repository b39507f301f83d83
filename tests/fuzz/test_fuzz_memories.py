"""Matrix memories of any shape, decay and layout against a loop in double precision."""

import itertools

import fuzzing
import pytest
import torch
import torch.nn.functional as F
from fuzzing import BUDGETS, share
from hypothesis import strategies as st
from strategies import REAL, numbers, placed, resets
from test_fuzz_ops import check_same, differentiated, directions

from linrnn.ops import delta_scan, outer_scan

pytestmark = pytest.mark.unchecked

TIMES = (0, 1, 2, 3, 5, 15, 16, 17, 33, 64, 65, 70)
WIDTHS = (0, 1, 2, 3, 5, 8, 17, 20)


@st.composite
def memories(draw, delta):
    """Tensors, options and the loop of a call."""
    pick = lambda *x: draw(st.sampled_from(x))  # noqa: E731
    packed = draw(st.integers(0, 3)) == 0
    batch, time = 1 if packed else pick(0, 1, 2), pick(*TIMES)
    key_heads, shared, K, V = pick(1, 2), pick(1, 2, 3), pick(*WIDTHS), pick(*WIDTHS)
    heads, dtype = key_heads * shared, pick(*REAL)

    def some(*shape):
        return draw(numbers(0.0, -0.0, 1e-40)).make(shape, dtype)

    def decay(*shape):
        return -(some(*shape).abs() * pick(0.0, 0.1, 1.0, 30.0)).to(dtype).double()

    steps = (batch, time)
    tensors = {name: some(*steps, key_heads, K) for name in "qk"}
    tensors["v"] = some(*steps, heads, V)
    g = pick(None, (heads,), (heads, K), (*steps, heads), (*steps, heads, K))
    if g is not None:
        tensors["g"] = decay(*g)
    options = {"scale": pick(1.0, 0.25), "reverse": pick(False, True)}
    rates = False
    if delta:
        # of length 0.9: a loop makes no error where a write takes out exactly what it reads
        tensors["k"] = (0.9 * F.normalize(tensors["k"], dim=-1)).to(dtype).double()
        if pick(True, False):
            rates = pick(True, False)
            shape = (*steps, heads, V) if rates else (*steps, heads)
            tensors["beta"] = some(*shape).sigmoid().to(dtype).double()
        if pick(True, False):
            tensors |= {n: F.normalize(some(*steps, key_heads, K), dim=-1) / 2 for n in "ab"}
            tensors |= {n: tensors[n].to(dtype).double() for n in "ab"}
    if pick(True, False):
        tensors["value_decay"] = decay(*steps, heads, V)
    if pick(True, False):
        tensors["bonus"] = some(heads, K)
    else:
        options["read"] = pick("after", "before")
    options["normalizer"] = pick(True, False) and not rates
    columns = V + options["normalizer"]
    sequences = batch
    if packed:
        cuts = sorted(draw(st.lists(st.integers(0, time), max_size=4)))
        options["cu_seqlens"] = torch.tensor([0, *cuts, time])
        sequences = len(cuts) + 1
    if pick(True, False):
        tensors["initial_state"] = some(sequences, heads, K, columns)
    options["reset"] = draw(resets(batch, time))
    kind, seed = draw(st.integers(0, 5)), draw(st.integers(0, 5))
    return dtype, tensors, options, (sequences, heads, K, columns), lambda x: placed(x, kind, seed)


def loop(q, k, v, initial_state=None, *, shape, **rest):
    """Any of the two ops, one step after the other."""
    g, e, bonus, beta, a, b = (rest.get(n) for n in ("g", "value_decay", "bonus", "beta", "a", "b"))
    each = v.shape[2] // q.shape[2]
    q, k, a, b = (None if x is None else x.repeat_interleave(each, 2) for x in (q, k, a, b))
    if rest.get("normalizer"):
        v, e = F.pad(v, (0, 1), value=1.0), None if e is None else F.pad(e, (0, 1))
    keep = torch.ones_like(k)
    if g is not None:
        keep = (g if g.ndim in (2, 4) else g[..., None]).exp().expand_as(k)
    start = v.new_zeros(shape) if initial_state is None else initial_state
    offsets = [0, q.shape[1]] if rest.get("cu_seqlens") is None else rest["cu_seqlens"].tolist()
    outputs, finals = {}, []
    for s, (begin, end) in enumerate(itertools.pairwise(offsets)):
        S = start if rest.get("cu_seqlens") is None else start[s : s + 1]
        order = range(begin, end)
        for t in reversed(order) if rest["reverse"] else order:
            if rest["reset"] is not None:
                S = torch.where(rest["reset"][:, t, None, None, None], 0, S)
            write = k[:, t, :, :, None] * v[:, t, :, None]
            new = keep[:, t, :, :, None] * S
            new = new if e is None else new * e[:, t, :, None].exp()
            if rest["delta"]:
                if a is None:
                    short = v[:, t] - torch.einsum("bhkv,bhk->bhv", new, k[:, t])
                    write = k[:, t, :, :, None] * short[:, :, None]
                rate = (
                    1.0 if beta is None else beta[:, t] if beta.ndim == 4 else beta[:, t, :, None]
                )
                write = write if beta is None else rate[:, :, None] * write
            before = new
            if a is not None:
                read = torch.einsum("bhkv,bhk->bhv", S, a[:, t])
                new = new + b[:, t, :, :, None] * read[:, :, None]
            seen = new + write if bonus is None else S + bonus[..., None] * write
            seen = before if rest.get("read") == "before" else seen
            outputs[t] = rest["scale"] * torch.einsum("bhkv,bhk->bhv", seen, q[:, t])
            S = new + write
        finals.append(S)
    empty = v.new_zeros(*v.shape[:3], shape[3])
    o = torch.stack([outputs[t] for t in range(len(outputs))], 1) if outputs else empty
    return o, torch.cat(finals)


def check(case, delta):
    dtype, tensors, options, shape, place = case
    op = delta_scan if delta else outer_scan
    v = tensors["v"]
    into = directions(
        dtype, v.shape[0] * v.shape[1] * v.shape[2] * shape[3], torch.Size(shape).numel()
    )
    got = differentiated(lambda **t: op(**t, **options), tensors, dtype, into, place)
    if not v.numel() or not tensors["q"].numel():
        assert bool(got["h"].isfinite().all())
        return
    truth, single = (
        differentiated(lambda **t: loop(**t, **options, shape=shape, delta=delta), tensors, d, into)
        for d in (torch.float64, torch.float32)
    )
    check_same("a matrix memory", got, truth, single, dtype, roundings=64)


@BUDGETS
@pytest.mark.parametrize("name", [share("outer_scan", 40)])
def test_outer_scan_is_its_equation(name, times):
    fuzzing.run(name, times, memories(delta=False), lambda case: check(case, False))


@BUDGETS
@pytest.mark.parametrize("name", [share("delta_scan", 40)])
def test_delta_scan_is_its_equation(name, times):
    fuzzing.run(name, times, memories(delta=True), lambda case: check(case, True))
