"""`gated_scan`: the kernel against a loop, its definition and itself; every layout and gradient."""

import os
import subprocess
import sys

import pytest
import torch
from torch.func import grad, vmap

from linrnn.compute import native
from linrnn.errors import DTypeError, ShapeError
from linrnn.ops import gated_scan, use_backend
from linrnn.ops.linear.gated_scan import _cpu as _gated_scan_cpu

KINDS = [(2, False, True), (2, True, True)]
KINDS += [(3, positive, normalise) for positive in (False, True) for normalise in (False, True)]
needs_kernel = pytest.mark.skipif(bool(native.load()[1]), reason="no native library")


def composed(x, h0, reset, positive, normalise, start):
    options = {"positive": positive, "normalise": normalise, "start": start}
    return gated_scan(x, h0, reset=reset, **options, backend="reference")


def arguments(shape, parts, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    batch, time, channels = shape
    x = 3 * torch.randn(batch, time, parts, channels, dtype=torch.float64, generator=generator)
    h0 = torch.randn(batch, channels, dtype=torch.float64, generator=generator)
    reset = torch.rand(batch, time, generator=generator) < 0.2
    return x.to(dtype), h0.to(torch.promote_types(dtype, torch.float32)), reset


def with_gradients(run, x, h0, *rest, **options):
    """``h``, final state and both gradients, in float64."""
    x, h0 = x.detach().requires_grad_(), h0.detach().requires_grad_()
    h, final = run(x, h0, *rest, **options)
    generator = torch.Generator().manual_seed(5)
    cotangents = [
        torch.randint(-16, 17, y.shape, generator=generator).to(y.dtype) / 8  # exact in any dtype
        for y in (h, final)
    ]
    grads = torch.autograd.grad((h, final), (x, h0), cotangents, materialize_grads=True)
    return [y.detach() for y in (h, final, *grads)]


def truth(x, h0, reset, positive, normalise, start=0.0):
    return with_gradients(composed, x.double(), h0.double(), reset, positive, normalise, start)


def assert_close(got, expected, roundings):
    eps = max(torch.finfo(y.dtype).eps for y in got)  # h is read back in the dtype it is stored in
    for a, b in zip(got, expected, strict=True):
        largest = max([1.0, *b.abs().flatten().tolist()])
        torch.testing.assert_close(a.double(), b.double(), rtol=0, atol=roundings * eps * largest)


def test_definition_equals_a_loop():
    x, h0, reset = arguments((2, 9, 3), 3)
    h, expected = h0, []
    for t in range(9):
        a, u, v = x[:, t].unbind(1)
        f, i = u.sigmoid(), v.sigmoid()
        h = torch.where(reset[:, t, None], 0.25, h)
        h = f / (f + i) * h + i / (f + i) * torch.where(a >= 0, a + 0.5, a.sigmoid())
        expected.append(h)
    got, final = composed(x, h0, reset, True, True, 0.25)
    torch.testing.assert_close(got, torch.stack(expected, 1))
    torch.testing.assert_close(final, h)


@needs_kernel
@needs_kernel
def test_minus_zero_is_not_below_zero():
    x = torch.zeros(1, 1, 2, 32)
    slopes = []
    for zero in (0.0, -0.0):
        v = torch.full_like(x, zero).requires_grad_()
        gated_scan(v, positive=True)[0].sum().backward()
        slopes.append(v.grad)
    assert torch.equal(*slopes)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_kernel_equals_definition(kind, dtype):
    parts, positive, normalise = kind
    x, h0, reset = arguments((3, 23, 70), parts, dtype)
    options = {"positive": positive, "normalise": normalise, "start": 0.5}
    got = with_gradients(gated_scan, x, h0, reset=reset, **options)
    assert [y.dtype for y in got] == [dtype, h0.dtype, dtype, h0.dtype]
    expected = truth(x, h0, reset, positive, normalise, 0.5)
    assert_close(got, expected, 8 if dtype.itemsize > 2 else 4)


@needs_kernel
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 0, 5), (1, 5000, 3), (2, 7, 1200), (40, 3, 33)])
@pytest.mark.parametrize("parts", [2, 3])
def test_kernel_takes_any_size(shape, parts):
    x, h0, reset = arguments(shape, parts, torch.float32)
    got = with_gradients(gated_scan, x, h0, reset=reset, positive=True)
    assert_close(got, truth(x, h0, reset, True, True), 32)


@needs_kernel
def test_kernel_takes_any_strides():
    x, h0, reset = arguments((3, 11, 8), 3)
    expected = truth(x, h0, reset, True, True)
    layouts = {
        "time first": x.transpose(0, 1).contiguous().transpose(0, 1),
        "parts first": x.movedim(2, 0).contiguous().movedim(0, 2),
        "channels strided": x.transpose(1, 3).contiguous().transpose(1, 3),
        "every other step": x.repeat_interleave(2, 1)[:, ::2],
        "some channels": torch.cat([x, x], -1)[..., :8],
    }
    masks = {"dense": reset, "time first": reset.T.contiguous().T}
    for name, strided in layouts.items():
        for mask in masks.values():
            got = with_gradients(
                gated_scan, strided, h0.T.contiguous().T, reset=mask, positive=True
            )
            assert_close(got, expected, 8), name
    same = gated_scan(x[:1, :1].expand(2, 6, -1, -1), None)[0]
    torch.testing.assert_close(same[0], same[1])


@needs_kernel
def test_only_one_output_may_have_a_gradient():
    x, h0, _ = arguments((2, 5, 4), 2)
    for index in (0, 1):
        results = []
        for run in (gated_scan, lambda x, h: composed(x, h, None, False, True, 0.0)):
            leaf, state = x.clone().requires_grad_(), h0.clone().requires_grad_()
            results.append(torch.autograd.grad(run(leaf, state)[index].sum(), (leaf, state)))
        torch.testing.assert_close(*results)
    (only,) = torch.autograd.grad(gated_scan(x, h0.requires_grad_())[0].sum(), h0)
    assert only.abs().sum() > 0


@pytest.mark.parametrize("backend", ["auto", "tree"])
def test_reset_keeps_out_what_came_before(backend):
    """NaN and infinity before a reset, in the state, reach neither value nor gradient after it."""
    x, h0, _ = arguments((2, 8, 5), 2)
    clean = gated_scan(x[:, 4:], positive=True, start=0.5)[0]
    x[:, 2, 0], x[:, 3], h0[0] = float("inf"), float("nan"), float("nan")
    x = x.requires_grad_()
    reset = torch.zeros(2, 8, dtype=torch.bool)
    reset[:, 4] = True
    with use_backend(backend):
        h, _ = gated_scan(x, h0, positive=True, start=0.5, reset=reset)
        torch.testing.assert_close(h[:, 4:], clean)
        (grad_x,) = torch.autograd.grad(h[:, 4:].sum(), x)
    assert grad_x[:, 4:].isfinite().all()


@pytest.mark.parametrize("backend", ["auto", "tree"])
def test_reset_keeps_a_later_nan_out_of_earlier_gradients(backend):
    x, h0, _ = arguments((2, 8, 5), 3)
    x[:, 5] = float("nan")
    x, h0 = x.requires_grad_(), h0.requires_grad_()
    reset = torch.zeros(2, 8, dtype=torch.bool)
    reset[:, 4] = True
    with use_backend(backend):
        h, _ = gated_scan(x, h0, positive=True, start=0.5, reset=reset)
        grad_x, grad_h0 = torch.autograd.grad(h.sum(), (x, h0))
    assert grad_x[:, :4].isfinite().all()
    assert grad_h0.isfinite().all()


def test_nan_stays_in_its_row():
    x, h0, _ = arguments((3, 8, 5), 3)
    x[1] = float("nan")
    got = with_gradients(gated_scan, x, h0)
    for y in got:
        assert y[[0, 2]].isfinite().all()
    assert got[0][1].isnan().all()


@pytest.mark.parametrize("size", [1e4, 1e30])
def test_gates_saturate_to_zero_and_one(size):
    x = torch.tensor([[-1.0, -size], [2.0, size], [5.0, -size]])[None, :, :, None]
    h, _ = gated_scan(x.requires_grad_(), torch.full((1, 1), 7.0))
    assert h.flatten().tolist() == [7.0, 2.0, 2.0]
    (grad_x,) = torch.autograd.grad(h.sum(), x)
    assert grad_x[0, :, 0, 0].tolist() == [0.0, 2.0, 0.0]


@needs_kernel
def test_gates_that_both_underflow():
    x = torch.full((1, 3, 3, 2), -1e4)
    x[:, :, 0] = 1.0
    h, _ = gated_scan(x.requires_grad_())
    torch.testing.assert_close(h[0, :, 0], torch.tensor([0.5, 0.75, 0.875]))
    assert torch.autograd.grad(h.sum(), x)[0].isfinite().all()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_gradients_of_first_and_second_order(kind):
    parts, positive, normalise = kind
    x, h0, reset = arguments((2, 4, 2), parts)

    def run(x, h0):
        return gated_scan(x, h0, positive=positive, normalise=normalise, start=0.5, reset=reset)

    inputs = (x.requires_grad_(), h0.requires_grad_())
    assert torch.autograd.gradcheck(run, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(run, inputs, fast_mode=True)
    one = lambda x: run(x, h0.detach())[0]  # noqa: E731
    assert torch.autograd.gradgradcheck(one, inputs[:1], fast_mode=True)


def test_transforms_of_torch_func():
    x, h0, _ = arguments((3, 6, 4), 2)
    mapped = vmap(lambda x, h0: gated_scan(x[None], h0[None])[0][0])(x, h0)
    torch.testing.assert_close(mapped, gated_scan(x, h0)[0])
    leaf = x.clone().requires_grad_()
    expected = torch.autograd.grad(gated_scan(leaf, h0)[0].square().sum(), leaf)[0]
    torch.testing.assert_close(grad(lambda x: gated_scan(x, h0)[0].square().sum())(x), expected)
    _, tangent = torch.func.jvp(lambda x: gated_scan(x, h0)[0], (x,), (torch.ones_like(x),))
    step = (gated_scan(x + 1e-6, h0)[0] - gated_scan(x - 1e-6, h0)[0]) / 2e-6
    torch.testing.assert_close(tangent, step, rtol=1e-6, atol=1e-7)


@needs_kernel
def test_few_channels_on_many_threads_are_composed(monkeypatch):
    x, h0, reset = arguments((1, 50, 8), 2)
    expected = with_gradients(gated_scan, x, h0, reset=reset)
    monkeypatch.setattr(native, "threads", lambda: 64)
    assert _gated_scan_cpu.declines(x, None, None, None)
    assert not _gated_scan_cpu.declines(x.expand(8, -1, -1, -1), None, None, None)
    assert_close(with_gradients(gated_scan, x, h0, reset=reset), expected, 8)
    op = torch.ops.linrnn
    h, _ = op.gated_scan(x, h0, reset, None, False, True, 0.0, False, True, None)
    arguments_of = (x, h0, reset, None, False, True, 0.0, False)
    given = (*arguments_of, [h], [torch.ones_like(h), torch.zeros_like(h0)])
    grads = op.gated_scan_backward(*given, [True, True], None)
    monkeypatch.undo()
    again = op.gated_scan_backward(*given, [True, True], None)
    assert_close(grads, again, 8)


@needs_kernel
@pytest.mark.parametrize("isa", ["baseline", pytest.param("avx2", marks=pytest.mark.slow)])
def test_every_instruction_set_equals_the_definition(isa):
    code = (
        "import sys; sys.path.insert(0, 'tests/unit/ops')\n"
        "import test_gated_scan as t, torch\n"
        "for kind in t.KINDS:\n"
        "    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):\n"
        "        t.test_kernel_equals_definition(kind, dtype)\n"
        "print('kept', t.native.load()[0].isa)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"LINRNN_ISA": isa},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.stdout.strip() in (f"kept {isa}", "kept baseline"), result.stderr


@needs_kernel
def test_threads_do_not_change_a_bit():
    x, h0, _ = arguments((3, 400, 200), 2, torch.float32)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = with_gradients(gated_scan, x, h0)
        torch.set_num_threads(4)
        four = with_gradients(gated_scan, x, h0)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(one, four, strict=True))


@pytest.mark.unchecked
def test_compiles_without_a_break():
    x, h0, reset = arguments((2, 5, 3), 2, torch.float32)
    run = torch.compile(gated_scan, fullgraph=True, backend="aot_eager")
    got = with_gradients(run, x, h0, reset=reset, positive=True)
    assert_close(got, with_gradients(gated_scan, x, h0, reset=reset, positive=True), 8)


BAD = [
    (lambda x, h, r: (x[:, :, 0], h, r), ShapeError, r"x must have shape \(batch, time, 2 or 3"),
    (lambda x, h, r: (x[:, :, :1], h, r), ShapeError, "2 or 3, channels"),
    (lambda x, h, r: (x.long(), h, r), DTypeError, "x must be real floating point"),
    (lambda x, h, r: (x + 0j, h, r), DTypeError, r"floating point, got torch\.complex128"),
    (lambda x, h, r: (x, h[:1], r), ShapeError, r"initial_state must have shape \(batch=2"),
    (lambda x, h, r: (x, h.long(), r), DTypeError, "initial_state must be real floating point"),
    (lambda x, h, r: (x, h, r.long()), DTypeError, "reset must be boolean, got torch.int64"),
    (lambda x, h, r: (x, h, r[:, :3]), ShapeError, r"reset must have shape \(batch=2, time=5\)"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("spoil", "error", "message"), BAD)
def test_words_its_errors(spoil, error, message):
    x, h0, reset = spoil(*arguments((2, 5, 3), 2))
    with pytest.raises(error, match=message):
        gated_scan(x, h0, reset=reset)
