"""Options of the matrix memories against a loop: several writes, rates, reads, signs and heads."""

import pytest
import torch
import torch.nn.functional as F

from linrnn.compute import native
from linrnn.errors import ArgumentError, ShapeError
from linrnn.ops import delta_scan, explain, outer_scan

BATCH, HEADS, KEYS, VALUES = 2, 4, 5, 6
#: What each has, of how many heads, and what a call is told.
CASES = {
    "rates of channels": "beta:v q:1 k:2",
    "heads of their own": "beta:h q:4 k:2 v:1 g:2 beta_heads:2",
    "low rank of heads": "beta:h ab q:1 k:2 v:2 a:4 b:2",
    "bonus": "beta:h bonus",
    "bonus of a low rank": "beta:h bonus ab",
    "decays of values": "beta:h e e_heads:2",
    "decays of values with rates": "beta:v e",
    "decays of values with a bonus": "beta:h e bonus normalizer",
    "decays of values of a low rank": "beta:v e ab",
    "normalizer": "beta:h normalizer",
    "before": "beta:h before",
    "before with decays of values": "beta:h e before",
    "low rank before": "beta:h ab before",
    "one write": "beta:h rank:1",
    "two writes": "beta:h rank:2",
    "five writes": "beta:h rank:5",
    "writes before": "beta:h rank:3 before k:2",
    "writes of a low rank": "beta:h rank:3 ab",
    "writes with decays of values": "beta:v rank:3 e",
    "writes and reads": "beta:h rank:3 reads v:2",
    "writes and reads before": "beta:h rank:3 reads before",
    "writes and reads of a low rank": "beta:h rank:3 reads ab e",
    "signs": "beta:h sign",
    "signs of a low rank": "beta:h sign ab e rank:2",
    "outer heads": "outer q:4 k:2 v:1",
    "outer heads of decays": "outer q:1 k:4 v:2 e e_heads:1 normalizer",
    "outer before": "outer before",
    "outer before with decays of values": "outer e before",
    "outer signs": "outer sign",
    "outer signs with a bonus": "outer sign bonus e",
    "outer writes": "outer rank:4",
    "outer writes and reads": "outer rank:4 reads k:2",
    "outer writes and reads before": "outer rank:4 reads before sign",
    "outer writes with decays of values": "outer rank:3 e normalizer",
    "outer writes and reads with decays of values": "outer rank:3 reads e",
}


def words_of(case):
    return {name: size for name, _, size in (word.partition(":") for word in case.split())}


def problem(words, time, decay, seed=0):
    """Arguments in float64."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=draw)

    def uniform(*shape):
        return torch.rand(*shape, dtype=torch.float64, generator=draw)

    steps, rank = (BATCH, time), (int(words["rank"]),) if "rank" in words else ()
    heads = {n: int(words.get(n) or HEADS) for n in ("q", "k", "v", "a", "b", "g")}
    x = {"q": normal(*steps, *(rank if "reads" in words else ()), heads["q"], KEYS)}
    x["k"] = F.normalize(normal(*steps, *rank, heads["k"], KEYS), dim=-1)
    x["v"] = normal(*steps, *rank, heads["v"], VALUES)
    shapes = {"head": (*steps, heads["g"]), "constant": (HEADS, KEYS)}
    shapes["channel"] = (*steps, heads["g"], KEYS)
    if decay != "none":
        x["g"] = -uniform(*shapes[decay])
    if "sign" in words:
        x["sign"] = 1 - 2 * (uniform(*shapes["head" if decay == "none" else decay]) < 0.5).double()
    if "beta" in words:
        rates = (VALUES,) if words["beta"] == "v" else ()
        x["beta"] = uniform(*steps, *rank, int(words.get("beta_heads", HEADS)), *rates)
    if "ab" in words:
        x["a"], x["b"] = (
            scale * F.normalize(normal(*steps, *rank, heads[n], KEYS), dim=-1)
            for n, scale in (("a", 1), ("b", -0.5))
        )
    if "bonus" in words:
        x["bonus"] = normal(HEADS, KEYS)
    if "e" in words:
        x["value_decay"] = -uniform(*steps, int(words.get("e_heads", HEADS)), VALUES)
    x["initial_state"] = normal(BATCH, HEADS, KEYS, VALUES + ("normalizer" in words))
    return x


def every_head(x, axis):
    return x.repeat_interleave(HEADS // x.shape[axis], axis)


def loop(x, words, *, reset=None, reverse=False):
    """One write after the other, at most."""
    several, all_read = "rank" in words, "reads" in words
    writes = {n: x[n] if several else x[n][:, :, None] for n in ("k", "v", "a", "b") if n in x}
    beta = x.get("beta", x["v"].new_ones(x["v"].shape[:-1]))
    beta = beta if several else beta[:, :, None]
    writes["beta"] = beta if beta.ndim == 5 else beta[..., None]
    writes = {n: every_head(w, 3) for n, w in writes.items()}
    q = every_head(x["q"] if all_read else x["q"][:, :, None], 3)
    e = every_head(x.get("value_decay", x["v"].new_zeros(*q.shape[:2], HEADS, VALUES)), 2)
    if "normalizer" in words:
        writes["v"], e = F.pad(writes["v"], (0, 1), value=1.0), F.pad(e, (0, 1))
    g = x.get("g", torch.zeros(HEADS, KEYS, dtype=q.dtype))
    keep = g.exp() * (x["sign"] if "sign" in x and "g" in x else 1)
    if "sign" in x and "g" not in x:
        keep = x["sign"]
    keep = keep if keep.ndim > 2 else keep.expand(*q.shape[:2], *keep.shape)
    keep = every_head(keep if keep.ndim == 4 else keep[..., None], 2)
    S, outputs = x["initial_state"], {}
    for t in reversed(range(q.shape[1])) if reverse else range(q.shape[1]):
        if reset is not None:
            S = torch.where(reset[:, t, None, None, None], 0, S)
        before, S = S, keep[:, t, ..., None] * S * e[:, t, :, None].exp()
        decayed = S
        for r in range(writes["k"].shape[2]):
            now = {n: w[:, t, r] for n, w in writes.items()}
            value = now["v"]
            if "ab" in words:
                read = torch.einsum("bhkv,bhk->bhv", S if r else before, now["a"])
                S = S + now["b"][..., None] * read[:, :, None]
            elif "outer" not in words:
                value = value - torch.einsum("bhkv,bhk->bhv", S, now["k"])
            own = now["k"][..., None] * (now["beta"] * value)[:, :, None]
            S = S + own
        read = before + x["bonus"][..., None] * own if "bonus" in x else S
        read = decayed if "before" in words else read
        outputs[t] = 0.5 * torch.einsum("bhkv,brhk->brhv", read, q[:, t])
    o = torch.stack([outputs[t] for t in range(q.shape[1])], 1)
    return (o if all_read else o[:, :, 0]), S


def computed(x, words, *, backend, **layout):
    options = {"normalizer": "normalizer" in words, "scale": 0.5}
    options["read"] = "before" if "before" in words else "after"
    op = outer_scan if "outer" in words else delta_scan
    return op(**x, **options, **layout, backend=backend)


def with_gradients(function, x):
    leaves = {n: t.clone().requires_grad_(n != "sign") for n, t in x.items()}
    results = function(leaves)
    draw = torch.Generator().manual_seed(1)
    into = [torch.randn(y.shape, dtype=torch.float64, generator=draw) for y in results]
    names = [n for n in leaves if n != "sign"]
    grads = torch.autograd.grad(results, [leaves[n] for n in names], into, materialize_grads=True)
    return {"o": results[0], "final": results[1]} | dict(zip(names, grads, strict=True))


def layouts(time):
    reset = torch.rand(BATCH, time, generator=torch.Generator().manual_seed(2)) < 0.2
    return {}, {"reset": reset}, {"reset": reset, "reverse": True}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("decay", ["none", "head", "channel", "constant"])
def test_equals_the_loop_with_all_gradients(case, decay):
    words = words_of(CASES[case])
    backends = ["tree"] if native.load()[0] is None else ["cpu", "tree"]
    for time, layout in ((1, 0), (3, 1), (20, 2), (41, 1)):
        x, how = problem(words, time, decay), layouts(time)[layout]
        want = with_gradients(lambda x, how=how: loop(x, words, **how), x)
        for backend in backends:
            got = with_gradients(
                lambda x, how=how, b=backend: computed(x, words, backend=b, **how), x
            )
            for name, value in want.items():
                message = f"{name} of {backend} at {time} steps"
                torch.testing.assert_close(
                    got[name], value, rtol=1e-8, atol=1e-8, msg=lambda m, t=message: f"{t}: {m}"
                )


@pytest.mark.skipif(native.load()[0] is None, reason="no native kernels")
@pytest.mark.parametrize("case", ["two writes", "rates of channels", "outer writes and reads"])
def test_packed_sequences_are_each_alone(case):
    words, lengths = words_of(CASES[case]), (17, 0, 40)
    x = problem(words, sum(lengths), "head")
    x = {n: t if n == "initial_state" else t[:1] for n, t in x.items()}
    x["initial_state"] = torch.cat([x["initial_state"]] * 2)[:3]
    offsets = torch.tensor([0, 17, 17, 57])
    for reverse in (False, True):
        o, final = computed(x, words, backend="cpu", cu_seqlens=offsets, reverse=reverse)
        for i, (start, length) in enumerate(zip(offsets.tolist(), lengths, strict=False)):
            here = {
                n: t if n == "initial_state" else t[:, start : start + length] for n, t in x.items()
            }
            here["initial_state"] = x["initial_state"][i : i + 1]
            alone, last = computed(here, words, backend="cpu", reverse=reverse)
            torch.testing.assert_close(o[:, start : start + length], alone)
            torch.testing.assert_close(final[i : i + 1], last)


@pytest.mark.skipif(native.load()[0] is None, reason="no native kernels")
@pytest.mark.parametrize("case", CASES)
def test_the_same_bits_for_any_number_of_threads(case, monkeypatch):
    words = words_of(CASES[case])
    x = {n: t.float() for n, t in problem(words, 70, "head").items()}
    found = []
    for threads in (1, 3):
        monkeypatch.setattr(native, "threads", lambda n=threads: n)
        o, final = computed(x, words, backend="cpu")
        found.append((o, final))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_golden_numbers():
    one, half = torch.ones(1, 3, 1, 1), torch.full((1, 3, 1), 0.5)
    twice = one.expand(1, 3, 2, 1)[..., None]
    # two deltas of a half leave a quarter of what is missing
    o, _ = delta_scan(one, twice, twice, half[..., None].expand(1, 3, 2, 1))
    assert o.flatten().tolist() == [0.75, 0.9375, 0.984375]
    o, _ = outer_scan(twice, twice, twice)
    assert o.flatten().tolist() == [2, 2, 4, 4, 6, 6]
    assert outer_scan(one, one, one, read="before")[0].flatten().tolist() == [0, 1, 2]
    assert outer_scan(one, one, one, sign=-one[0, 0])[0].flatten().tolist() == [1, 0, 1]
    # parity: keys of length 1 and a rate of 2 reflect
    flips = torch.tensor([0.0, 2.0, 2.0]).view(1, 3, 1)
    state = torch.ones(1, 1, 1, 1)
    o, _ = delta_scan(one, one, 0 * one, flips, initial_state=state)
    assert o.flatten().tolist() == [1, -1, 1]


def test_the_read_before_a_write_is_what_the_write_is_short_of():
    """So Oja's rule needs one pass: u = beta (k - S' v), written along v."""
    torch.manual_seed(0)
    k, v = F.normalize(torch.randn(1, 9, 1, 4), dim=-1), torch.randn(1, 9, 1, 3)
    g, beta = -torch.rand(1, 9, 1, 4), torch.rand(1, 9, 1)
    short = v - delta_scan(k, k, v, beta, g, read="before")[0]
    o, S = outer_scan(k, k, beta[..., None] * short, g)
    want, last = delta_scan(k, k, v, beta, g)
    torch.testing.assert_close(o, want)
    torch.testing.assert_close(S, last)


@pytest.mark.unchecked
def test_what_does_not_go_together_is_refused():
    q = torch.zeros(1, 3, 1, 2)
    several = q[:, :, None].expand(1, 3, 2, 1, 2)
    bonus = torch.zeros(1, 2)
    for words, options in (
        ("read must be 'after' or 'before', got 'now'", {"read": "now"}),
        ("read must be 'after' where there is a bonus", {"read": "before", "bonus": bonus}),
    ):
        with pytest.raises(ArgumentError, match=words):
            outer_scan(q, q, q, **options)
    with pytest.raises(ArgumentError, match="bonus must be None where a step has several writes"):
        delta_scan(q, several, several, bonus=bonus)
    with pytest.raises(ArgumentError, match="normalizer must be False where beta is of every"):
        delta_scan(q, q, q, torch.zeros(1, 3, 1, 2), normalizer=True)
    with pytest.raises(ShapeError, match="v must have shape"):
        delta_scan(q, several, q)
    with pytest.raises(ShapeError, match="rank must be at least 1, got 0"):
        delta_scan(q, several[:, :, :0], several[:, :, :0])
    with pytest.raises(ShapeError, match="sign must have shape"):
        outer_scan(q, q, q, torch.zeros(1), sign=torch.ones(1, 3, 1))


@pytest.mark.skipif(native.load()[0] is None, reason="no native kernels")
def test_explain_says_what_the_native_kernel_declines():
    q = torch.zeros(1, 3, 1, 2)
    text = explain(delta_scan, q, q, q, a=q, b=q, value_decay=q)
    assert text == (
        "composed of PyTorch's operators: a low rank with decays of values has no kernel"
    )
