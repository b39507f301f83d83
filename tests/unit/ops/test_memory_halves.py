"""Matrix memories of bfloat16 rows: products of pairs of halves, states that are not rounded."""

import itertools
import math
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from linrnn.compute import native
from linrnn.ops import delta_scan, outer_scan

#: Measured on a processor with AVX-512-BF16: at most 0.0038 of the norm;
#: rounding the results alone is 0.0017.
ALLOWED = 0.006
ROUNDED = ("q", "k", "v", "a", "b")
KINDS = {
    "plain": (outer_scan, ""),
    "head": (outer_scan, "head"),
    "channels": (outer_scan, "channels"),
    "columns": (outer_scan, "columns"),
    "bonus": (outer_scan, "channels bonus"),
    "before": (outer_scan, "head before"),
    "normalizer": (outer_scan, "head normalizer"),
    "normalizer of channels": (outer_scan, "channels normalizer"),
    "delta": (delta_scan, "head beta"),
    "delta of channels": (delta_scan, "channels beta"),
    "delta of columns": (delta_scan, "head columns beta"),
    "low rank": (delta_scan, "channels low_rank"),
    "two writes": (delta_scan, "head beta rank"),
    "two reads": (outer_scan, "head rank reads"),
}
SIZES = [(1, 75, 17, 5), (3, 40, 32, 48), (2, 33, 64, 80)]
native_kernels = pytest.mark.skipif(native.load()[0] is None, reason="no native kernels")


def drawn(parts, batch, time, keys, values, share=1):
    """Arguments of a scan, in float32; rows that are stored in bfloat16 are rounded to it.

    ``share`` heads share a query and a key.
    """
    torch.manual_seed(len(parts) + time)
    rank = (2,) if "rank" in parts else ()
    pairs = (batch, time, *rank, 2)
    k = F.normalize(torch.randn(*pairs, keys), dim=-1)
    q = torch.randn(*(pairs if "reads" in parts else (batch, time, 2)), keys)
    heads = 2 * share
    rows = (batch, time, *rank, heads)
    x = {"q": q, "k": k, "v": torch.randn(*rows, values)}
    if "head" in parts:
        x["g"] = -0.1 * torch.rand(batch, time, heads)
    if "channels" in parts:
        x["g"] = -0.2 * torch.rand(batch, time, heads, keys)
    if "columns" in parts:
        x["value_decay"] = -0.2 * torch.rand(batch, time, heads, values)
    if "bonus" in parts:
        x["bonus"] = torch.randn(heads, keys)
    if "beta" in parts:
        x["beta"] = torch.rand(rows)
    if "low_rank" in parts:
        x["a"], x["b"] = -k, k * torch.rand(k.shape)
    columns = values + ("normalizer" in parts)
    x["initial_state"] = torch.randn(batch, heads, keys, columns)
    return {n: t.bfloat16().float() if n in ROUNDED else t for n, t in x.items()}


def options(parts):
    flags = {"normalizer": True} if "normalizer" in parts else {}
    return flags | ({"read": "before"} if "before" in parts else {})


def stored(x, dtype):
    """The arguments with rows of that dtype, the others of what it is computed in."""
    wide = torch.float32 if dtype is torch.bfloat16 else dtype
    return {n: t.to(dtype if n in ROUNDED else wide) for n, t in x.items()}


def results(scan, x, reset, flags, backend=None):
    x = {n: t.clone().requires_grad_() for n, t in x.items()}
    o, S = scan(**x, reset=reset, **flags, backend=backend)
    generator = torch.Generator().manual_seed(1)
    grads = [torch.randn(t.shape, generator=generator).bfloat16().to(t.dtype) for t in (o, S)]
    torch.autograd.backward([o, S], grads)
    return {"o": o.detach(), "S": S.detach(), **{n: t.grad for n, t in x.items()}}


def distance(got, true):
    return float((got.double() - true.double()).norm() / true.double().norm().clamp_min(1e-12))


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_results_and_gradients_are_as_exact_as_their_products(kind, size):
    scan, parts = KINDS[kind]
    x, flags = drawn(parts.split(), *size), options(parts.split())
    reset = torch.zeros(size[:2], dtype=torch.bool)
    reset[0, 20] = True
    true = results(scan, stored(x, torch.float64), reset, flags, "reference")
    got = results(scan, stored(x, torch.bfloat16), reset, flags)
    for name, value in got.items():
        half = name == "o" or name in ROUNDED
        assert value.dtype == (torch.bfloat16 if half else torch.float32), name
        assert distance(value, true[name]) < ALLOWED, name


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    "size", [(2, 150, 32, 48, 3), (1, 201, 17, 90, 1), (3, 67, 80, 16, 1)], ids=str
)
@pytest.mark.parametrize(
    "kind",
    [
        "plain",
        "head",
        "normalizer",
        "delta",
        "channels",
        "bonus",
        "normalizer of channels",
        "low rank",
    ],
)
def test_chunks_that_follow_one_another_and_shared_keys_are_as_exact(kind, size, reverse):
    scan, parts = KINDS[kind]
    x, flags = drawn(parts.split(), *size), options(parts.split()) | {"reverse": reverse}
    reset = torch.zeros(size[:2], dtype=torch.bool)
    reset[0, [t for t in (3, 64, 70, 130) if t < size[1]]] = True
    for scale in (1.0, 0.3):
        flags["scale"] = scale
        true = results(scan, stored(x, torch.float64), reset, flags, "reference")
        got = results(scan, stored(x, torch.bfloat16), reset, flags)
        for name, value in got.items():
            assert distance(value, true[name]) < ALLOWED, name


@pytest.mark.parametrize(
    ("kind", "share"),
    [("head", 2), ("delta", 2), ("channels", 2), ("channels", 1), ("bonus", 1), ("low rank", 1)],
)
def test_packed_sequences_and_decays_of_all_steps_are_those_of_their_parts(kind, share):
    scan, parts = KINDS[kind]
    x = stored(drawn(parts.split(), 1, 150, 32, 48, share), torch.bfloat16)
    x["g"], offsets = -torch.rand(x["g"].shape[2:]), [0, 70, 70, 135, 150]
    x["initial_state"] = torch.randn(4, 2 * share, 32, 48)
    o, last = scan(**x, cu_seqlens=torch.tensor(offsets))
    once = {n: x.pop(n) for n in ("g", "bonus") if n in x}
    states = x.pop("initial_state")
    for i, (begin, end) in enumerate(itertools.pairwise(offsets)):
        part = {n: t[:, begin:end] for n, t in x.items()}
        alone, final = scan(**part, **once, initial_state=states[i : i + 1])
        assert torch.equal(alone, o[:, begin:end])
        assert torch.equal(final, last[i : i + 1])


@pytest.mark.parametrize(
    ("parts", "share"), [("head", 3), ("channels", 3), ("channels", 1), ("channels bonus", 1)]
)
def test_constant_decays_have_their_gradient(parts, share):
    x = stored(drawn(parts.split(), 2, 150, 32, 48, share), torch.bfloat16)
    x["g"] = -0.1 * torch.rand(x["g"].shape[2:])
    true = results(outer_scan, {n: t.double() for n, t in x.items()}, None, {}, "reference")
    got = results(outer_scan, x, None, {})
    for name in {"g", "bonus"} & set(got):
        assert distance(got[name], true[name]) < ALLOWED, name


@native_kernels
@pytest.mark.parametrize("kind", KINDS)
def test_float32_rows_are_multiplied_in_float32(kind):
    scan, parts = KINDS[kind]
    x, flags = drawn(parts.split(), 2, 40, 32, 48), options(parts.split())
    true = results(scan, stored(x, torch.float64), None, flags, "reference")
    got = results(scan, x, None, flags)
    assert max(distance(value, true[name]) for name, value in got.items()) < 3e-6


@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_a_sequence_are_the_whole(kind):
    scan, parts = KINDS[kind]
    x, flags = drawn(parts.split(), 2, 75, 32, 48), options(parts.split())
    x = stored(x, torch.bfloat16)
    whole, last = scan(**x, **flags)
    state, outs = x.pop("initial_state"), []
    every = {n: t for n, t in x.items() if n != "bonus"}
    once = {n: t for n, t in x.items() if n == "bonus"}
    for i, j in ((0, 1), (1, 19), (19, 60), (60, 75)):
        part = {n: t[:, i:j] for n, t in every.items()}
        o, state = scan(**part, **once, **flags, initial_state=state)
        outs.append(o)
    assert distance(torch.cat(outs, 1), whole) < ALLOWED
    assert distance(state, last) < ALLOWED


@native_kernels
@pytest.mark.parametrize("kind", ["head", "delta", "low rank", "channels", "bonus"])
def test_threads_and_runs_have_the_same_bits(kind):
    scan, parts = KINDS[kind]
    x, flags = drawn(parts.split(), 8, 64, 32, 96), options(parts.split())
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 3, 1):
            torch.set_num_threads(threads)
            found.append(results(scan, stored(x, torch.bfloat16), None, flags))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(value, other[name]) for name, value in found[0].items())


@native_kernels
def test_a_processor_without_half_products_takes_float32():
    code = (
        "import torch; from linrnn.ops import outer_scan; torch.manual_seed(0);"
        "q, k, v = (torch.randn(1, 40, 1, 32).bfloat16() for _ in range(3));"
        "g = torch.full((1,), -0.1)\n"
        "S = outer_scan(q, k, v, g)[1]; T = outer_scan(q.float(), k.float(), v.float(), g)[1]\n"
        "print(float((S - T).norm() / T.norm()))"
    )
    environment = os.environ | {"LINRNN_ISA": native.load()[0].isa}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 1e-6


@pytest.mark.parametrize(
    ("scan", "parts"),
    [
        (outer_scan, "head"),
        (delta_scan, "head"),
        (outer_scan, "channels"),
        (outer_scan, "channels bonus"),
        (delta_scan, "channels low_rank"),
    ],
)
def test_decays_to_nothing_and_endless_rows_stay_where_they_are(scan, parts):
    x = stored(drawn(parts.split(), 2, 40, 32, 48), torch.bfloat16)
    x["g"][:, 7] = -math.inf
    x["g"][1, 20:22] = -200.0
    x["g"][0, 20:39] = -20.0  # whose products are subnormal numbers, and nothing
    true = results(scan, stored(x, torch.float64), None, {}, "reference")
    for name, value in results(scan, x, None, {}).items():
        assert value.isfinite().all(), name
        assert distance(value, true[name]) < ALLOWED, name
    o, _ = scan(**x)
    x["v"][0, 30] = math.inf
    endless, _ = scan(**x)
    assert torch.equal(endless[1], o[1])
    assert endless[0, :30].isfinite().all()
    assert not endless[0, 30:].isfinite().all()
