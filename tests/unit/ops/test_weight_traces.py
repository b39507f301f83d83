"""Traces of linear maps: a plain loop, the native kernel, and what stands in its place."""

import pytest
import torch

from linrnn.compute import native
from linrnn.ops import use_backend
from linrnn.ops.linear.traces import advance, credited, kept, learned
from linrnn.testing import check_close

BACKENDS = ["reference"] if native.load()[0] is None else ["cpu", "reference"]
SIZES = [(1, 3, 5, 7, 4), (2, 8, 33, 300, 12), (3, 2, 4, 5, 2), (1, 1, 1, 1, 1), (2, 0, 3, 2, 3)]
SIZES += [(2, 3, 5, 1, 4), (1, 2, 9000, 1, 7)]
"""Parts, rows, outputs, inputs, channels; of the second and the last more than fit a block."""


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


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_what_is_kept_is_a_trace_that_nothing_is_added_to(sizes):
    trace, keep, index, slope, x, _ = case(sizes, 0, torch.float64)
    expected = loop(trace, keep, index, slope, x)
    check_close("kept", kept(trace, keep, index), expected, roundings=64)


@pytest.mark.parametrize("sizes", [size for size in SIZES if size[0] == 2], ids=str)
def test_outputs_that_move_i_times_what_others_do_need_no_trace(sizes):
    trace, _, index, *_, credit = case(sizes, 0, torch.float64)
    outputs = sizes[2]
    order = torch.randperm(2 * outputs, generator=torch.Generator().manual_seed(1))
    pairs = order.view(2, outputs)
    # of h = u + iv and another output: du = -dv of the one, dv = du of the one
    every = trace.new_zeros(2, sizes[1], 2 * outputs, sizes[3])
    every[:, :, pairs[0]] = trace
    every[:, :, pairs[1]] = torch.stack([-trace[1], trace[0]])
    channels = index.new_zeros(2 * outputs).index_copy(0, order, index.repeat(2))
    expected = credited(every, credit, channels)
    check_close("pairs", credited(trace, credit, index, pairs), expected, roundings=64)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_one_pass_gives_a_trace_and_the_gradient(sizes, paired, first):
    trace, keep, index, slope, x, credit = case(sizes, 1, torch.float64)
    parts, outputs = sizes[0], sizes[2]
    if paired and parts != 2:
        return
    order = torch.randperm(2 * outputs, generator=torch.Generator().manual_seed(1))
    pairs = order.view(2, outputs) if paired else None
    shape = sizes[1], outputs * (2 if paired else 1)
    gain = torch.randn(shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    before = None if first else trace
    after, total = learned(before, keep, index, slope[:, :, 0], x[:, 0], credit, gain, pairs)
    old = torch.zeros_like(trace) if first else trace
    check_close("trace", after, loop(old, keep, index, slope, x), roundings=64)
    expected = credited(old, credit, index, pairs) + gain.T @ x[:, 0]
    check_close("gradient", total, expected, roundings=64)


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
    before = [z.clone() for z in turned]
    assert advance(*turned).equal(once)
    assert credited(turned[0], credit.mT.contiguous().mT, given[2]).equal(total)
    assert all(a.equal(b) for a, b in zip(turned, before, strict=True))
