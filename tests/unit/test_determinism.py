"""The same bits again, and how far another number of threads may change them."""

import pytest
import torch
from torch.utils._pytree import tree_leaves

from linrnn import mixers
from linrnn.ops import backend_report, linear_scan
from linrnn.testing import check_close
from linrnn.testing._mixer_runs import quiet

COUNTS = (1, 2, 3, 4, 7)
#: Roundings by which results may differ between numbers of threads, of the largest number there is.
MOST = 16


@pytest.fixture(autouse=True)
def _restore_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def at_every_count(compute, twice=COUNTS):
    """Results of ``compute`` with each number of threads; the same bits where it runs twice."""
    found = []
    for count in COUNTS:
        torch.set_num_threads(count)
        found.append(compute())
        if count in twice:
            again = compute()
            assert all(torch.equal(a, b) for a, b in zip(found[-1], again, strict=True)), count
    return found


def check_bound(found, most=MOST):
    for count, results in zip(COUNTS, found, strict=True):
        for got, alone in zip(results, found[0], strict=True):
            check_close(f"{count} threads", got, alone, roundings=most)


def scan(backend, shape, dtype, constant):
    g = torch.Generator().manual_seed(0)
    a = torch.rand(shape[2:] if constant else shape, generator=g).to(dtype)
    b = torch.randn(shape, generator=g).to(dtype)
    a, b, into_h = a.requires_grad_(), b.requires_grad_(), torch.randn(shape, generator=g).to(dtype)

    def compute():
        h, final = linear_scan(a, b, backend=backend)
        return [h.detach(), final.detach(), *torch.autograd.grad(h, [a, b], into_h)]

    return compute


@pytest.mark.parametrize("constant", [False, True], ids=["varying", "constant"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize("backend", ["cpu", "tree", "reference"])
def test_wide_scans_give_the_same_bits_with_any_number_of_threads(backend, dtype, constant):
    if backend_report()[backend] != "available":
        pytest.skip(f"{backend}: {backend_report()[backend]}")
    shape = (2, 20, 300) if backend == "reference" else (3, 300, 600)
    found = at_every_count(scan(backend, shape, dtype, constant))
    for results in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results, found[0], strict=True))


@pytest.mark.parametrize("constant", [False, True], ids=["varying", "constant"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
def test_narrow_scans_differ_by_roundings(dtype, constant):
    check_bound(at_every_count(scan(None, (1, 60_000, 8), dtype, constant)))


def run_mixer(name):
    mixer = quiet(mixers.load(name)(32))
    steps = 1500 if mixer.cost == "parallel" else 24
    x, weight = torch.randn(2, steps, 32, requires_grad=True), torch.randn(2, steps, 32)

    def compute():
        y, state = mixer(x)
        sources = [x, *(p for p in mixer.parameters() if p.requires_grad)]
        grads = torch.autograd.grad((y * weight).sum(), sources, allow_unused=True)
        given = (*tree_leaves(state), *grads)
        return [y.detach(), *(t.detach() for t in given if t is not None and t.numel())]

    return compute


@pytest.mark.unchecked  # other laws pass the same calls through the checker
@pytest.mark.sampled
@pytest.mark.parametrize("name", mixers.names())
def test_mixers_repeat_bit_for_bit_and_differ_little_with_other_threads(name):
    found = at_every_count(run_mixer(name), twice=(4,))
    floats = [
        [t for t in results if t.dtype.is_floating_point or t.is_complex()] for results in found
    ]
    check_bound(floats)
