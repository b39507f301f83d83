"""`log_linear_scan` against a loop of logaddexp, and against `linear_scan` of the exponentials."""

import itertools
import math

import pytest
import torch
from scipy.special import logsumexp

from linrnn.compute import native
from linrnn.errors import DTypeError, ShapeError
from linrnn.ops import linear_scan, log_linear_scan, use_backend
from linrnn.testing import check_close
from linrnn.testing._op_laws import layouts, make_case


def log_loop(log_a, log_b, start, *, reset, cu_seqlens, reverse):
    """The definition, one step at a time."""
    _, time, _ = log_b.shape
    offsets = [0, time] if cu_seqlens is None else cu_seqlens.tolist()
    h, finals = {}, []
    for s, (first, end) in enumerate(itertools.pairwise(offsets)):
        if start is None:
            state = torch.full_like(log_b[:, 0], -torch.inf)
        else:
            state = start if cu_seqlens is None else start[s : s + 1]
        for t in range(end - 1, first - 1, -1) if reverse else range(first, end):
            if reset is not None:
                state = torch.where(reset[:, t, None], -torch.inf, state)
            kept = (log_a if log_a.ndim == 1 else log_a[:, t]) + state
            # logaddexp(-inf, x) has a NaN gradient; x is what it means
            some = torch.where(kept == -torch.inf, 0, kept)
            state = torch.where(kept == -torch.inf, log_b[:, t], some.logaddexp(log_b[:, t]))
            h[t] = state
        finals.append(state)
    return torch.stack([h[t] for t in range(time)], 1), torch.cat(finals)


def results(function, case, dtype):
    inputs = [case.a.log(), case.b, case.initial_state]
    inputs = [None if x is None else x.to(dtype).requires_grad_() for x in inputs]
    h, final = function(*inputs, **case.layout)
    # the final state of an empty packed sequence without initial state is -inf: no gradient
    final_weight = torch.where(final.isfinite(), case.into_final.to(dtype), 0)
    loss = (h * case.into_h.to(dtype)).sum() + (final_weight * final.nan_to_num(neginf=0)).sum()
    sources = [x for x in inputs if x is not None]
    return [h, final, *torch.autograd.grad(loss, sources)]


@pytest.fixture(params=["tree", "cpu"])
def backend(request):
    """Each way to compute the op; the choice is that of `linear_scan`."""
    if request.param == "cpu" and native.load()[0] is None:
        pytest.skip("the native kernels are not in this installation")
    with use_backend(request.param):
        yield request.param


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_outputs_and_gradients_are_those_of_the_loop_in_every_layout(dtype, backend):
    for case in layouts(is_complex=False, times=(1, 2, 7, 33)):
        truth = results(log_loop, case, torch.float64)
        got = results(log_linear_scan, case, dtype)
        names = ("h", "final", "grad log_a", "grad log_b", "grad initial")
        for name, x, y in zip(names, got, truth, strict=False):
            check_close(f"{case.name} {name}", x, y, roundings=64)


def test_exponentials_are_those_of_linear_scan():
    case = make_case(time=100, decay=(0.1, 1.0))
    log_h, final = log_linear_scan(case.a.log(), case.b, case.initial_state)
    h, last = linear_scan(case.a, case.b.exp(), case.initial_state.exp())
    torch.testing.assert_close(log_h.exp(), h)
    torch.testing.assert_close(final.exp(), last)


def test_scipy_logsumexp_agrees_without_decay(backend):
    x = torch.randn(50, dtype=torch.float64) * 30
    _, final = log_linear_scan(torch.zeros(1, dtype=torch.float64), x[None, :, None])
    assert final.item() == pytest.approx(logsumexp(x.numpy()), rel=1e-14)


def test_quantities_far_outside_the_range_of_floats(backend):
    """exp(2000) is no float; the recurrence does not mind."""
    log_b = torch.tensor([2000.0, -3000.0, 1999.0])[None, :, None].requires_grad_()
    log_h, _ = log_linear_scan(torch.tensor([-0.5]), log_b)
    expected = torch.logaddexp(torch.tensor(1999.0), torch.tensor(1999.0))
    assert log_h[0, :, 0].tolist() == pytest.approx([2000.0, 1999.5, expected.item()])
    (grad,) = torch.autograd.grad(log_h[0, 2].sum(), log_b)
    # a logarithm of size 2000 is known to 1e-4 in float32, and so is the share it stands for
    assert grad.flatten().tolist() == pytest.approx([0.5, 0.0, 0.5], rel=3e-4)


def test_first_and_second_derivatives():
    for case in layouts(is_complex=False, times=(4,)):
        inputs = [case.a.log(), case.b]
        inputs += [] if case.initial_state is None else [case.initial_state]
        inputs = [x[..., :2].contiguous().requires_grad_() for x in inputs]

        def run(*args, case=case):
            h, final = log_linear_scan(*args, **case.layout)
            return h, final[final.isfinite()]

        assert torch.autograd.gradcheck(run, inputs, fast_mode=True)
        assert torch.autograd.gradgradcheck(run, inputs, fast_mode=True)


def test_zeros_stay_zeros_and_have_finite_gradients(backend):
    log_a = torch.tensor([-torch.inf, -1.0]).requires_grad_()
    log_b = torch.full((1, 5, 2), -torch.inf)
    log_b[0, 3] = 1.0
    log_b.requires_grad_()
    log_h, final = log_linear_scan(log_a, log_b)
    assert log_h[0, :, 0].tolist() == [-torch.inf] * 3 + [1.0, -torch.inf]
    assert final[0, 1].item() == pytest.approx(0.0)
    grads = torch.autograd.grad(log_h[0, 3].sum() + final[0, 1], [log_a, log_b])
    assert all(g.isfinite().all() for g in grads)


def test_split_anywhere_carries_the_state(backend):
    case = make_case(time=33)
    log_a, log_b = case.a.log(), case.b
    whole, last = log_linear_scan(log_a, log_b, case.initial_state)
    for cut in (0, 1, 16, 33):
        first, state = log_linear_scan(log_a[:, :cut], log_b[:, :cut], case.initial_state)
        second, state = log_linear_scan(log_a[:, cut:], log_b[:, cut:], state)
        check_close("h", torch.cat([first, second], 1), whole, roundings=64)
        check_close("state", state, last, roundings=64)


def test_no_steps_pass_the_state_and_its_gradient_on(backend):
    log_a, start = torch.zeros(2, requires_grad=True), torch.ones(3, 2, requires_grad=True)
    log_b = torch.zeros(3, 0, 2, requires_grad=True)
    log_h, final = log_linear_scan(log_a, log_b, start)
    grads = torch.autograd.grad(log_h.sum() + 2 * final.sum(), [log_a, log_b, start])
    assert [g.shape for g in grads] == [(2,), (3, 0, 2), (3, 2)]
    assert not grads[0].any()
    assert (grads[2] == 2).all()


def test_half_precision_keeps_a_float32_state(backend):
    x = torch.zeros(1, 300, 2, dtype=torch.bfloat16)
    log_h, final = log_linear_scan(x[0, 0], x)
    assert log_h.dtype == torch.bfloat16
    assert final.dtype == torch.float32
    assert final[0, 0].item() == pytest.approx(torch.tensor(300.0).log().item(), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_special_values_are_those_of_logaddexp(dtype, backend):
    special = [-torch.inf, -1e30, -3.0, 0.0, 1e4, torch.inf, torch.nan]
    start, log_b = torch.tensor(special, dtype=dtype)[:, None], torch.tensor(special, dtype=dtype)
    log_h, _ = log_linear_scan(start.new_zeros(7), log_b.expand(7, 1, 7), start.expand(7, 7))
    torch.testing.assert_close(log_h[:, 0], torch.logaddexp(start, log_b), equal_nan=True)


@pytest.mark.parametrize("size", [1.0, 1e4])
def test_rounding_does_not_add_up(size, backend):
    """Each step rounds by a unit in the last place of the logarithm; a loop adds these up."""
    torch.manual_seed(0)
    log_a, log_b = -0.01 * torch.rand(1, 4000, 4), torch.randn(1, 4000, 4) + size
    truth, _ = log_linear_scan(log_a.double(), log_b.double())
    check_close("h", log_linear_scan(log_a, log_b)[0], truth, roundings=4)


def test_nothing_passes_a_reset(backend):
    log_b = torch.full((1, 6, 3), torch.nan)
    log_b[:, 4:] = 1.0
    reset = torch.tensor([[False, False, False, False, True, False]])
    log_h, final = log_linear_scan(torch.zeros(3), log_b, reset=reset)
    assert log_h[0, 4].eq(1).all()
    torch.testing.assert_close(final, torch.full((1, 3), 1 + math.log(2)))


@pytest.mark.parametrize("shape", [(1, 40, 700), (3, 3000, 5), (70, 6, 40)])
def test_threads_share_rows_and_channels(shape, backend):
    """More channels than a block holds, few of them, and many short rows."""
    torch.manual_seed(0)
    log_a, log_b = -torch.rand(shape, dtype=torch.float64), torch.randn(shape, dtype=torch.float64)
    log_h, final = log_linear_scan(log_a, log_b)
    h, last = linear_scan(log_a.exp(), log_b.exp())
    check_close("h", log_h, h.log(), roundings=64)
    check_close("final", final, last.log(), roundings=64)


@pytest.mark.unchecked
def test_errors_name_this_op():
    with pytest.raises(DTypeError, match="log_linear_scan: log_a must be real"):
        log_linear_scan(torch.ones(2) * 1j, torch.ones(1, 3, 2) * 1j)
    with pytest.raises(ShapeError, match=r"log_linear_scan: .*got \(3,\)"):
        log_linear_scan(torch.ones(3), torch.ones(1, 3, 2))


@pytest.mark.unchecked
def test_compiles_to_one_graph():
    case = make_case(time=17, resets=True)
    torch._dynamo.reset()
    compiled = torch.compile(log_linear_scan, fullgraph=True, backend="aot_eager")
    for x, y in zip(
        results(compiled, case, torch.float64),
        results(log_linear_scan, case, torch.float64),
        strict=True,
    ):
        check_close("compiled", x, y, roundings=64)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_large_logarithms_of_half_precision_have_finite_gradients(dtype):
    log_a = (torch.rand(2, 50, 8) * 200 - 100).to(dtype).requires_grad_()
    log_b = (1e4 + 50 * torch.randn(2, 50, 8)).to(dtype).requires_grad_()  # a rounding is 8 or more
    log_h, _ = log_linear_scan(log_a, log_b)
    for gradient in torch.autograd.grad(log_h.float().sum(), (log_a, log_b)):
        assert gradient.isfinite().all()
        assert (gradient >= 0).all()
        assert (gradient <= 50).all()  # of at most 50 outputs, each by at most its share
