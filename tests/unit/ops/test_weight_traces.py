"""Traces of linear maps: a plain loop, the native kernel, and what stands in its place."""

import pytest
import torch

from linrnn.ops import _native, use_backend
from linrnn.ops._traces import advance, credited
from linrnn.testing import check_close

BACKENDS = ["reference"] if _native.load()[0] is None else ["cpu", "reference"]
SIZES = [(1, 3, 5, 7, 4), (2, 8, 33, 300, 12), (3, 2, 4, 5, 2), (1, 1, 1, 1, 1), (2, 0, 3, 2, 3)]
"""Parts, rows, outputs, inputs, channels; of the second more than fit a block."""


@pytest.fixture(autouse=True, params=BACKENDS)
def backend(request):
    with use_backend(request.param):
        yield


def case(sizes, steps, dtype):
    parts, rows, outputs, inputs, channels = sizes
    random = torch.Generator().manual_seed(0)

    def numbers(*shape):
        return torch.randn(shape, generator=random, dtype=torch.float64).to(dtype)

    index = torch.randint(channels, (outputs,), generator=random)
    trace, keep = numbers(parts, rows, outputs, inputs), numbers(rows, parts, parts, channels)
    slope, x = numbers(rows, parts, steps, outputs), numbers(rows, steps, inputs)
    return trace, keep, index, slope, x, numbers(parts, rows, channels)


def loop(trace, keep, index, slope, x):
    new = torch.zeros_like(trace)
    for p, b, o in torch.cartesian_prod(*map(torch.arange, trace.shape[:3])).tolist():
        for q in range(len(trace)):
            new[p, b, o] += keep[b, p, q, index[o]] * trace[q, b, o]
        for t in range(x.shape[1]):
            new[p, b, o] += slope[b, p, t, o] * x[b, t]
    return new


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_trace_goes_on_as_in_a_loop(sizes, steps):
    *given, credit = case(sizes, steps, torch.float64)
    check_close("advance", advance(*given), loop(*given), roundings=64)
    total = sum(
        (
            credit[p, b, given[2], None] * given[0][p, b]
            for p in range(sizes[0])
            for b in range(sizes[1])
        ),
        torch.zeros(sizes[2:4], dtype=torch.float64),
    )
    check_close("credited", credited(given[0], credit, given[2]), total, roundings=64)


@pytest.mark.parametrize("steps", [1, 3])
def test_a_first_window_owes_to_nothing_before_it(steps):
    trace, keep, index, slope, x, _ = case(SIZES[0], steps, torch.float64)
    nothing = loop(torch.zeros_like(trace), keep, index, slope, x)
    check_close("first", advance(None, keep, index, slope, x), nothing, roundings=64)


def test_narrow_numbers_are_near_wide_ones():
    *given, credit = case(SIZES[1], 1, torch.float32)
    wide = [z.double() if z.is_floating_point() else z for z in given]
    eps = torch.finfo(torch.float32).eps
    torch.testing.assert_close(advance(*given).double(), loop(*wide), rtol=4 * eps, atol=8 * eps)
    total = credited(given[0], credit, given[2]).double()
    exact = credited(wide[0], credit.double(), given[2])
    torch.testing.assert_close(total, exact, rtol=4 * eps, atol=32 * eps)


def test_any_memory_gives_the_same_and_what_is_given_stays():
    *given, credit = case(SIZES[1], 1, torch.float64)
    once, total = advance(*given), credited(given[0], credit, given[2])
    turned = [z.mT.contiguous().mT if z.ndim > 1 else z[::1] for z in given]
    kept = [z.clone() for z in turned]
    assert advance(*turned).equal(once)
    assert credited(turned[0], credit.mT.contiguous().mT, given[2]).equal(total)
    assert all(a.equal(b) for a, b in zip(turned, kept, strict=True))
