"""Memories that turn: complex decays against a loop of complex numbers, whole and in pieces."""

import pytest
import torch
import torch.nn.functional as F

from linrnn.compute import native
from linrnn.errors import ArgumentError, ShapeError
from linrnn.ops import delta_scan, explain, outer_scan

BATCH, HEADS, KEYS, VALUES = 2, 2, 6, 3
F64 = torch.float64
#: Shapes of angles and of decays: (pairs that turn, numbers of g), by what they are of.
CASES = {
    "head": ((BATCH, "T", HEADS), (BATCH, "T", HEADS)),
    "channel": ((BATCH, "T", HEADS, 3), (BATCH, "T", HEADS, 3)),
    "some channels": ((BATCH, "T", 1, 2), (BATCH, "T", HEADS, 4)),
    "constant": ((HEADS, 2), (HEADS, 4)),
    "constant of a head": ((HEADS,), (HEADS,)),
}


def problem(case, time, delta, seed=0):
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, dtype=F64, generator=draw)

    angle, g = ([time if n == "T" else n for n in shape] for shape in CASES[case])
    x = {n: normal(BATCH, time, HEADS, KEYS) for n in "qk"}
    x |= {"v": normal(BATCH, time, HEADS, VALUES)}
    x |= {"g": -normal(*g).exp(), "angle": 9 * normal(*angle)}
    x["initial_state"] = normal(BATCH, HEADS, KEYS, VALUES)
    x["k"] = F.normalize(x["k"], dim=-1)
    if delta:
        x["beta"] = normal(BATCH, time, HEADS).sigmoid()
    return x


def loop(x, delta, reset=None, reverse=False, read="after"):
    """Pairs of rows as complex numbers, one step after the other."""
    time, S, outputs = x["q"].shape[1], x["initial_state"], {}
    angle = x["angle"].unsqueeze(-1) if x["angle"].ndim % 2 else x["angle"]
    pairs = KEYS // 2 if x["angle"].ndim % 2 else angle.shape[-1]
    g = x["g"].unsqueeze(-1) if x["g"].ndim % 2 else x["g"]
    for t in reversed(range(time)) if reverse else range(time):
        if reset is not None:
            S = torch.where(reset[:, t, None, None, None], 0, S)
        here, now = (z if z.ndim < 3 else z[:, t] for z in (angle, g))
        now = now.expand(*now.shape[:-1], KEYS - pairs) if now.shape[-1] == 1 else now
        even, odd = S[:, :, 0 : 2 * pairs : 2], S[:, :, 1 : 2 * pairs : 2]
        decay = torch.complex(now[..., :pairs], here.expand_as(now[..., :pairs])).exp()
        turning = torch.complex(even, odd) * decay[..., None]
        turning = torch.stack([turning.real, turning.imag], 3).flatten(2, 3)
        S = torch.cat([turning, S[:, :, 2 * pairs :] * now[..., pairs:, None].exp()], 2)
        before, value = S, x["v"][:, t]
        if delta:
            value = value - torch.einsum("bhkv,bhk->bhv", S, x["k"][:, t])
            value = x["beta"][:, t, :, None] * value
        S = S + x["k"][:, t, ..., None] * value[..., None, :]
        read_from = before if read == "before" else S
        outputs[t] = torch.einsum("bhkv,bhk->bhv", read_from, x["q"][:, t])
    return torch.stack([outputs[t] for t in range(time)], 1), S


def with_gradients(function, x):
    leaves = {n: z.clone().requires_grad_() for n, z in x.items()}
    results = function(leaves)
    draw = torch.Generator().manual_seed(1)
    into = [torch.randn(y.shape, dtype=F64, generator=draw) for y in results]
    return [*results, *torch.autograd.grad(results, list(leaves.values()), into)]


@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_equals_a_loop_of_complex_numbers_with_all_gradients(case, delta):
    op = delta_scan if delta else outer_scan
    backends = ["tree"] if native.load()[0] is None else ["cpu", "tree"]
    for time, reverse in ((1, False), (20, True), (41, False)):
        x = problem(case, time, delta)
        reset = torch.rand(BATCH, time, generator=torch.Generator().manual_seed(2)) < 0.2
        layout = {"reset": reset, "reverse": reverse}
        want = with_gradients(lambda x, how=layout: loop(x, delta, **how), x)
        for backend in backends:
            got = with_gradients(lambda x, b=backend, how=layout: op(**x, backend=b, **how), x)
            for a, b in zip(got, want, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_reads_before_the_write():
    x = problem("channel", 20, False)
    for a, b in zip(outer_scan(**x, read="before"), loop(x, False, read="before"), strict=True):
        torch.testing.assert_close(a, b)


def test_pieces_and_steps_need_no_phase():
    x = problem("channel", 30, True)
    o, last = delta_scan(**x)
    for pieces in (2, 30):
        S, outputs = x["initial_state"], []
        rows = [x[n].chunk(pieces, 1) for n in ("q", "k", "v", "beta", "g", "angle")]
        for q, k, v, beta, g, angle in zip(*rows, strict=True):
            y, S = delta_scan(q, k, v, beta, g, S, angle=angle)
            outputs.append(y)
        torch.testing.assert_close(torch.cat(outputs, 1), o)
        torch.testing.assert_close(S, last)


def test_low_ranks_and_several_writes_turn_too():
    """The delta rule written out, ``a = exp(g) R k`` read before the memory turns."""
    x = problem("channel", 12, True)
    g = x["g"].repeat_interleave(2, -1)
    k = torch.view_as_complex(x["k"].unflatten(-1, (3, 2)))
    earlier = torch.view_as_real(k * torch.exp(-1j * x["angle"])).flatten(-2)  # R^T k
    names = ("q", "k", "g", "initial_state", "angle")
    shared = {n: x[n] for n in names}
    beta = x["beta"][..., None]
    want = delta_scan(**x)
    got = delta_scan(v=beta * x["v"], a=g.exp() * earlier, b=-beta * x["k"], **shared)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)
    # a second write of nothing, and of both
    twice = {n: torch.stack([z, z], 2) for n, z in x.items() if n in ("k", "v", "beta")}
    some = {n: x[n] for n in ("q", "g", "initial_state", "angle")}
    once = twice | {"beta": torch.stack([x["beta"], 0 * x["beta"]], 2)}
    for a, b in zip(delta_scan(**once, **some), want, strict=True):
        torch.testing.assert_close(a, b)
    writes = torch.stack([-beta * x["k"]] * 2, 2)
    reads = torch.stack([g.exp() * earlier, x["k"]], 2)
    low = {"k": twice["k"], "v": twice["beta"][..., None] * twice["v"], "a": reads, "b": writes}
    for a, b in zip(delta_scan(**low, **some), delta_scan(**twice, **some), strict=True):
        torch.testing.assert_close(a, b)


def test_a_long_sequence_keeps_the_digits_of_its_turns():
    time = 100_000
    q = torch.tensor([1.0, 0.0]).expand(1, time, 1, 2)
    k, v = torch.zeros(1, time, 1, 2), torch.zeros(1, time, 1, 1)
    k[:, 0, :, 0] = v[:, 0] = 1
    angle = torch.full((1, time, 1), 0.1)
    o, _ = outer_scan(q, k, v, angle=angle)
    want = (torch.arange(time, dtype=F64) * angle[0, 0].double()).cos()
    torch.testing.assert_close(o.flatten().double(), want, rtol=0, atol=2e-7)


def test_packed_sequences_are_each_alone_and_half_precision_is_storage():
    x = problem("channel", 40, False)
    alone = {n: z[:1] for n, z in x.items()} | {"initial_state": x["initial_state"]}
    for reverse in (False, True):
        layout = {"cu_seqlens": torch.tensor([0, 13, 40]), "reverse": reverse}
        o, last = outer_scan(**alone, **layout)
        for i, (begin, end) in enumerate(((0, 13), (13, 40))):
            here = {n: z[:, begin:end] for n, z in alone.items() if n != "initial_state"}
            y, S = outer_scan(**here, initial_state=x["initial_state"][i : i + 1], reverse=reverse)
            torch.testing.assert_close(o[:, begin:end], y)
            torch.testing.assert_close(last[i : i + 1], S)
    half = {n: z.bfloat16() if n in "qkv" else z.float() for n, z in x.items()}
    o, last = outer_scan(**half)
    want, S = outer_scan(**{n: z.double() for n, z in half.items()})
    assert (o.dtype, last.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(last.double(), S, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(o.double(), want, rtol=1e-2, atol=1e-2)


def test_explain_speaks_of_the_scan():
    x = problem("channel", 5, False)
    assert explain("outer_scan", **x, backend="tree").startswith("tree: requested")


@pytest.mark.unchecked
def test_bad_angles_are_named():
    q = torch.zeros(1, 3, 2, 4)
    for shape in ((1, 2, 2), (2, 3, 2, 1), (1, 3, 2, 1, 1)):
        with pytest.raises(ShapeError, match="outer_scan: angle must have shape"):
            outer_scan(q, q, q, angle=torch.zeros(shape))
    with pytest.raises(ShapeError, match="the heads of angle must divide"):
        outer_scan(q, q, q, angle=torch.zeros(1, 3, 3))
    with pytest.raises(ShapeError, match="d_key must be even, or at least twice the pairs"):
        outer_scan(q, q, q, angle=torch.zeros(2, 3))
    with pytest.raises(ShapeError, match="d_key must be even, or at least twice the pairs"):
        delta_scan(q[..., :3], q[..., :3], q, angle=torch.zeros(2))
    with pytest.raises(ShapeError, match="the last axis of g must be 2, one for each of 2 pairs"):
        outer_scan(q, q, q, torch.zeros(1, 3, 2, 4), angle=torch.zeros(1, 3, 2, 2))
    with pytest.raises(ArgumentError, match="bonus must be None where there are angles"):
        outer_scan(q, q, q, bonus=torch.zeros(2, 4), angle=torch.zeros(2))
