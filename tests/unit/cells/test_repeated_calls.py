"""A call of `cell_scan` like one before: the same results, and the same errors, for less."""

import gc
import sys
import weakref

import pytest
import torch
from literature import CELLS, draw

from linrnn.cells import Cell
from linrnn.compute.replay import Replays
from linrnn.errors import LinrnnError
from linrnn.ops import cell_scan, explain, use_backend
from linrnn.ops.cell.cell_scan import _cpu, _plan

MODULE = sys.modules[cell_scan.__module__]
CUTS = torch.tensor([0, 2, 2, 5])

native = pytest.mark.skipif(
    _cpu.unavailable(torch.device("cpu"), torch.float32) is not None,
    reason="the native kernels are not installed, or not these",
)


def leak(h, x, rate):
    h = h + rate * (x - h)
    return h, h


def turn(h, x, rate):
    h = rate * h + x
    return h.real, h


def fresh(step=leak, **declared):
    return Cell(step, state="h", constant="rate", **declared)


def some(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype)


def bent(*shape):
    """Strides of another order."""
    return some(*shape[:-1], 2 * shape[-1])[..., : shape[-1]]


#: A cell, and what draws the arguments of a call anew.
CALLS = {
    "plain": (fresh(), lambda: {"x": some(2, 5, 3), "rate": some(3), "state": some(2, 3)}),
    "from the start": (fresh(start=0.5), lambda: {"x": some(2, 5, 3), "rate": some(3)}),
    "one step": (fresh(), lambda: {"x": some(1, 1, 64), "rate": some(64), "state": some(1, 64)}),
    "strides": (fresh(), lambda: {"x": bent(2, 5, 3), "rate": some(3), "state": some(2, 3)}),
    "broadcast": (fresh(), lambda: {"x": some(2, 5, 3), "rate": some(1), "state": some(2, 3)}),
    "axes": (fresh(), lambda: {"x": some(2, 5, 3, 2), "rate": some(3, 1)}),
    "stored": (fresh(), lambda: {"x": some(2, 5, 3, dtype=torch.bfloat16), "rate": some(3)}),
    "double": (
        fresh(),
        lambda: {"x": some(2, 5, 3, dtype=torch.float64), "rate": some(3, dtype=torch.float64)},
    ),
    "backward": (fresh(), lambda: {"x": some(2, 5, 3), "rate": some(3), "reverse": True}),
    "resets": (
        fresh(),
        lambda: {"x": some(2, 5, 3), "rate": some(3), "reset": torch.rand(2, 5) < 0.4},
    ),
    "packed": (
        fresh(),
        lambda: {"x": some(1, 5, 3), "rate": some(3), "cu_seqlens": CUTS.clone()},
    ),
    "complex": (
        fresh(turn, complex="h rate"),
        lambda: {
            "x": some(2, 5, 3),
            "rate": some(3, dtype=torch.complex64),
            "state": some(2, 3, dtype=torch.complex64),
        },
    ),
    "matrices": (
        CELLS["gru"],
        lambda: dict(draw(CELLS["gru"], 2, 5)[0], state=draw(CELLS["gru"], 2, 5)[1]),
    ),
}
#: Calls whose arguments must be copied: they stay long.
LONG = {"broadcast", "axes", "complex"}


def results(cell, given, **options):
    found = cell_scan(cell, **given, **options)
    return [x for part in found for x in (part if isinstance(part, tuple) else (part,))]


@native
@pytest.mark.parametrize("grad", [False, True], ids=["forward", "gradient"])
@pytest.mark.parametrize("name", CALLS)
def test_repeated_calls_equal_the_loop(monkeypatch, name, grad):
    cell, make = CALLS[name]
    looked = []
    prepare = MODULE.prepare
    monkeypatch.setattr(MODULE, "prepare", lambda *a: (looked.append(a), prepare(*a))[1])
    for again in range(3):
        given = make()
        sources = [x for x in given.values() if torch.is_tensor(x) and x.dtype.is_floating_point]
        for x in sources if grad else []:
            x.requires_grad_()
        looked.clear()
        got = results(cell, given)
        assert bool(looked) == (not again or name in LONG)
        want = results(cell, given, form="loop")
        tolerance = 1e-2 if name == "stored" else 1e-5
        if grad:
            into = [torch.rand_like(x) for x in want]
            got += torch.autograd.grad(got, sources, into, retain_graph=True)
            want += torch.autograd.grad(want, sources, into)
        for x, y in zip(got, want, strict=True):
            assert x.dtype is y.dtype
            assert x.is_contiguous()
            torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance)


GOOD = {"x": torch.ones(2, 5, 3), "rate": torch.ones(3), "state": torch.ones(2, 3)}
BAD = {
    "no rate": {"rate": None},
    "another name": {"more": torch.ones(3)},
    "states": {"state": (torch.ones(2, 3), torch.ones(2, 3))},
    "rows of a state": {"state": torch.ones(1, 3)},
    "channels": {"rate": torch.ones(2)},
    "integers": {"x": torch.ones(2, 5, 3, dtype=torch.int64)},
    "a list": {"x": [1.0]},
    "complex numbers": {"rate": torch.ones(3, dtype=torch.complex64)},
    "sparse": {"x": torch.ones(2, 5, 3).to_sparse()},
    "compressed": {"rate": torch.ones(3, 3).to_sparse_csr()},
    "nested": {"x": torch.nested.nested_tensor([torch.ones(5, 3)] * 2)},
    "opaque": {"x": torch.ones(2, 5, 3).to_mkldnn()},
    "another device": {"rate": torch.ones(3, device="meta")},
    "a mask of numbers": {"reset": torch.ones(2, 5)},
    "a mask of another size": {"reset": torch.zeros(2, 4, dtype=torch.bool)},
    "a mask that is none": {"reset": 1},
    "offsets of two rows": {"cu_seqlens": torch.tensor([0, 5])},
    "a number for a flag": {"reverse": 0},
    "time": {"time": 4},
    "a form": {"form": "lop"},
    "a list for a form": {"form": ["loop"]},
    "a backend": {"backend": "cqu"},
    "a number for a backend": {"backend": 3},
}


@native
@pytest.mark.unchecked
@pytest.mark.parametrize("name", BAD)
def test_errors_are_those_of_a_first_call(name):
    given = {k: x for k, x in (GOOD | BAD[name]).items() if k != "rate" or x is not None}
    known = fresh()
    for _ in range(3):
        cell_scan(known, **GOOD)
    texts = []
    for cell in (fresh(), known, known):
        with pytest.raises((LinrnnError, TypeError)) as caught:
            cell_scan(cell, **given)
        texts.append((type(caught.value), str(caught.value)))
    assert texts[0] == texts[1] == texts[2]
    assert len(_plan._plans[known]) == 1


@native
@pytest.mark.unchecked
def test_offsets_are_read_at_each_call():
    cell, x, rate = fresh(), torch.ones(1, 5, 3), torch.ones(3)
    for _ in range(3):
        cell_scan(cell, x=x, rate=rate, cu_seqlens=CUTS)
    with pytest.raises(LinrnnError, match=r"cu_seqlens must rise from 0 to time=5, got \[0, 9, 2"):
        cell_scan(cell, x=x, rate=rate, cu_seqlens=torch.tensor([0, 9, 2, 5]))


@native
def test_what_tells_calls_apart():
    """Every two of these are computed in another way, or on other numbers, by the machine."""
    cell = fresh(turn, complex="h")
    xs = {
        "plain": some(2, 5, 3),
        "bfloat16": some(2, 5, 3).bfloat16(),
        "double": some(2, 5, 3).double(),
        "turned": some(3, 5, 2).permute(2, 1, 0),
        "expanded": some(1, 1, 3).expand(2, 5, 3),
        "negative": torch._neg_view(some(2, 5, 3)),
        "gradient": some(2, 5, 3).requires_grad_(),
    }
    mask = torch.rand(2, 5) < 0.5
    for _ in range(2):
        for x in xs.values():
            for marks in ({}, {"reset": mask}, {"reverse": True}, {"state": some(2, 3) + 0j}):
                got = results(cell, {"x": x, "rate": some(3) * 0 + 0.5, **marks})
                want = results(cell, {"x": x, "rate": some(3) * 0 + 0.5, **marks}, form="loop")
                for y, z in zip(got, want, strict=True):
                    torch.testing.assert_close(y, z, rtol=2e-2, atol=2e-2)
                    assert y.requires_grad == z.requires_grad


@native
def test_numbers_that_are_not_aligned_are_copied():
    cell, rate = fresh(), torch.ones(3)
    for offset in (0, 1, 0, 1):
        memory = bytearray(121)
        x = torch.frombuffer(memory, dtype=torch.float32, count=30, offset=offset).view(2, 5, 3)
        x.copy_(torch.arange(30.0).view(2, 5, 3))
        sig = _plan.signature(cell, {"x": x, "rate": rate}, *[None] * 3, False, *[None] * 3)
        assert offset == 0 or _plan.again(cell, sig) is None
        y, _ = cell_scan(cell, x=x, rate=rate)
        torch.testing.assert_close(y, torch.arange(30.0).view(2, 5, 3))


@native
def test_an_override_holds_for_known_calls():
    cell = fresh()
    for _ in range(2):
        cell_scan(cell, **GOOD)
    with use_backend("reference"):
        assert explain(cell, **GOOD).startswith("loop: reference")
        key = _plan.signature(cell, {"x": GOOD["x"], "rate": GOOD["rate"]}, GOOD["state"], None,
                              None, False, None, None, None).key  # fmt: skip
    assert key not in _plan._plans[cell]
    assert explain(cell, **GOOD).startswith("native: the fastest that supports the call")


@native
def test_transforms_of_known_calls():
    cell, x = fresh(), some(4, 2, 5, 3)
    for _ in range(2):
        cell_scan(cell, **{**GOOD, "x": x[0]})
    mapped = torch.vmap(lambda x: cell_scan(cell, **{**GOOD, "x": x})[0])(x)
    torch.testing.assert_close(mapped[1], cell_scan(cell, **{**GOOD, "x": x[1]})[0])


@native
def test_what_is_remembered_is_bounded_and_goes_with_the_cell():
    cell = fresh(turn, complex="h rate")
    rate, x = some(2, dtype=torch.complex64), some(1, 1, 2)
    for time in range(1, 200):
        cell_scan(cell, x=x.expand(1, time, 2), rate=rate)
    assert len(_plan._plans[cell]) <= Replays.MOST
    refs = [weakref.ref(cell), weakref.ref(rate)]
    del cell, rate
    gc.collect()
    assert [r() for r in refs] == [None, None]


@native
def test_what_came_last_is_remembered_longest(monkeypatch):
    cell, looked = fresh(), []
    prepare = MODULE.prepare
    monkeypatch.setattr(MODULE, "prepare", lambda *a: (looked.append(a), prepare(*a))[1])
    for time in range(1, 200):
        looked.clear()
        for form in (None, "loop", "scan", None):
            cell_scan(cell, x=some(1, time, 2), rate=some(2), form=form)
        assert len(looked) == 3


def test_results_lie_in_memory_as_those_of_a_first_call():
    leak = Cell(lambda h, x: (0.5 * h + x,) * 2, state="h", name="leak")
    first, *others = (cell_scan(leak, x=torch.ones(1, 1, 1)) for _ in range(3))
    for found in others:
        assert [y.stride() for y in found] == [y.stride() for y in first] == [(1, 1, 1), (1, 1)]


def scaled(by):
    """A cell whose program is as long as that of any other number."""
    return Cell(lambda h, x, rate: (by * h + rate * x,) * 2, state="h", constant="rate")


@native
@pytest.mark.parametrize("grad", [False, True], ids=["forward", "gradient"])
def test_a_repeated_call_outlives_what_is_remembered_of_its_cell(grad):
    """However many others come between, whose programs take memory that was let go."""
    first, others = scaled(0.5), [scaled(1.0 + i) for i in range(300)]
    given = {"x": some(2, 5, 3), "rate": some(3).requires_grad_(grad), "state": some(2, 3)}
    want = [x.clone() for x in results(first, given)]
    for _ in range(2):
        for cell in others:
            results(cell, given)
    assert torch.equal(results(first, given)[0], want[0])
    if grad:
        results(first, given)[0].sum().backward()
