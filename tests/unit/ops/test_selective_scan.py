"""The selective scan against a float64 loop: every backend, option, dtype and derivative."""

import itertools
import math

import pytest
import torch
from selective_cases import F64, compare, loop, make, mask, ours, results

from linrnn.compute import native
from linrnn.errors import ArgumentError, BackendError, DTypeError, ShapeError, UnknownNameError
from linrnn.ops import selective_scan, use_backend

NATIVE = pytest.param(
    "cpu", marks=pytest.mark.skipif(native.load()[0] is None, reason=str(native.load()[1]))
)
needs_native = NATIVE.marks[0]
each_backend = pytest.mark.parametrize("backend", [NATIVE, "tree"])
# one step; a chunk, its neighbours and several; blocks of channels with and without a tail
SHAPES = [(2, 1, 3, 1), (1, 33, 32, 16), (3, 37, 19, 5), (5, 8, 70, 3), (1, 67, 40, 2)]


@each_backend
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("zoh", [False, True])
def test_equals_the_loop(backend, shape, zoh):
    for full, reset in ((True, False), (True, True), (False, True), (False, False)):
        for dtype in (F64, torch.float32):
            compare(backend, shape, full=full, zoh=zoh, reset=reset, dtype=dtype)


@each_backend
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_storage_only(backend, dtype):
    for shape in ((2, 37, 19, 5), (1, 70, 83, 16)):
        for full, zoh, reset in itertools.product((False, True), repeat=3):
            options = {"full": full, "zoh": zoh, "reset": reset}
            compare(backend, shape, **options, dtype=dtype, roundings=2)
    assert results(ours(backend), make(1, 4, 3, 2), dtype)["final"].dtype == torch.float32


@needs_native
@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4, 1e30])
def test_half_precision_takes_steps_of_any_size(size):
    """Steps that forget everything, and one that is no number, which no other channel sees."""
    case = {n: v.bfloat16() for n, v in make(2, 37, 40, 16, full=False).items()}
    case = {n: v.float() if n == "A" else v for n, v in case.items()}
    case["dt"] = (case["dt"] * size).bfloat16()
    case["dt"][1, 20, 7] = torch.nan
    exact = {n: v.double() for n, v in case.items()}
    (y, final), (true_y, true_final) = ours("cpu")(case), loop(exact)
    assert final.dtype is torch.float32
    bad = torch.zeros_like(y, dtype=torch.bool)
    bad[1, 20:, 7] = True
    assert torch.equal(y.isnan(), bad)
    torch.testing.assert_close(y.double(), true_y, rtol=2**-7, atol=1e-3 * size, equal_nan=True)
    finite = ~true_final.isnan()
    torch.testing.assert_close(
        final.double()[finite], true_final[finite], rtol=1e-5, atol=1e-6 * size
    )


@needs_native
def test_half_precision_keeps_states_in_float32():
    """Through many chunks, in either direction, what a state leaves is rounded once."""
    case, reset = make(1, 200, 50, 17), mask(1, 200)
    rounded = {n: v.bfloat16().double() for n, v in case.items()}
    options = {"dt_softplus": True, "reset": reset}
    expected = results(lambda c: loop(c, **options), rounded)
    got = results(ours("cpu", **options), rounded, torch.bfloat16)
    for name in ("final", "grad A", "grad D", "grad dt_bias", "grad initial_state"):
        error = (got[name].double() - expected[name]).norm() / expected[name].norm()
        assert error < (1e-5 if name == "final" else 2**-8), (name, error)  # of rounded cotangents
    turned = {n: v.flip(1) if n in ("x", "dt", "B", "C", "z") else v for n, v in rounded.items()}
    options |= {"reset": reset.flip(1), "reverse": True}
    back = results(ours("cpu", **options), turned, torch.bfloat16)
    assert torch.equal(back["final"], got["final"])
    assert torch.equal(back["y"].flip(1), got["y"])


@needs_native
@pytest.mark.parametrize("isa", ["baseline", "avx2", "avx512"])
def test_every_instruction_set(python, root, isa):
    code = f"""
import sys, torch
sys.path.insert(0, {str(root / "tests" / "unit" / "ops")!r})
from selective_cases import compare
for zoh in (False, True):
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        compare("cpu", (2, 37, 19, 5), full=True, zoh=zoh, reset=True, dtype=dtype)
result = 1"""
    assert python(code, LINRNN_ISA=isa) == 1


def test_golden_value():
    """A = -1, dt = softplus(cos t), x = sin t: from an independent computation."""
    t = torch.arange(1, 6, dtype=F64)
    one = torch.ones(1, 5, 1, dtype=F64)
    y, _ = selective_scan(
        t.sin().view(1, 5, 1), t.cos().view(1, 5, 1), -one[0, :1], one, one, dt_softplus=True
    )
    expected = [0.8409271821, 0.9673295209, 0.7498555353, 0.1763240084, -0.7345525938]
    torch.testing.assert_close(y.flatten(), torch.tensor(expected, dtype=F64), rtol=0, atol=1e-9)


@each_backend
def test_a_mode_without_decay_integrates(backend):
    """A = 0: both rules weigh the input by dt, and the gradient of A is finite."""
    case = make(1, 9, 2, 2, full=False)
    case["A"] = torch.zeros_like(case["A"])
    y, final = ours(backend, zoh=True)(case)
    expected = (case["dt"][..., None] * case["B"][:, :, None] * case["x"][..., None]).sum(1)
    torch.testing.assert_close(final, expected)
    torch.testing.assert_close(y, ours(backend)(case)[0])
    got = results(ours(backend, zoh=True), case)
    assert all(v.isfinite().all() for v in got.values())


@needs_native
def test_the_kernel_knows_the_slope_of_zero_order_hold_near_zero_decay():
    case = make(2, 40, 5, 3, full=False)
    for size in (1e-12, 1e-3, 0.2, 0.4, 30.0):
        scaled = {**case, "A": case["A"] * size}
        expected = results(lambda c: loop(c, zoh=True), scaled)["grad A"]
        if size < 1e-2:  # there the loop loses digits: extrapolate the definition's limit
            continue
        got = results(ours("cpu", zoh=True), scaled)["grad A"]
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)
    tiny = {**case, "A": torch.full_like(case["A"], -1e-9)}
    near = results(ours("cpu", zoh=True), tiny)["grad A"]
    limit = {**case, "A": torch.full_like(case["A"], -1e-4)}
    torch.testing.assert_close(
        near, results(ours("cpu", zoh=True), limit)["grad A"], rtol=2e-2, atol=1e-3
    )


@needs_native
def test_pieces_give_the_whole():
    case, reset = make(2, 90, 33, 4), mask(2, 90)
    whole = ours("cpu", dt_softplus=True, reset=reset)(case)
    state, ys = case["initial_state"], []
    for lo, hi in ((0, 1), (1, 40), (40, 40), (40, 90)):
        part = {
            n: v[:, lo:hi] if n in ("x", "dt", "B", "C", "z") else v for n, v in case.items()
        } | {"initial_state": state}
        y, state = ours("cpu", dt_softplus=True, reset=reset[:, lo:hi])(part)
        ys.append(y)
    torch.testing.assert_close(torch.cat(ys, 1), whole[0])
    torch.testing.assert_close(state, whole[1])


@needs_native
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_threads_that_share_out_whole_sequences_leave_the_same_bits(dtype):
    case, before = make(4, 70, 83, 5), torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            found.append(results(ours("cpu", dt_softplus=True, reset=mask(4, 70)), case, dtype))
    finally:
        torch.set_num_threads(before)
    for name, value in found[0].items():
        assert all(torch.equal(value, other[name]) for other in found[1:]), name


@needs_native
@pytest.mark.parametrize("batch", [1, 2, 3, 70])
def test_thread_counts_agree_and_calls_repeat(batch):
    case, before = make(batch, 40, 130, 4), torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3, 3):
            torch.set_num_threads(threads)
            found.append(results(ours("cpu", dt_softplus=True), case, torch.float32))
    finally:
        torch.set_num_threads(before)
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found[2][name], value, rtol=1e-4, atol=1e-4)
        assert torch.equal(found[2][name], found[3][name]), name


@needs_native
def test_any_strides():
    case = make(2, 21, 33, 4)
    expected = results(ours("cpu", dt_softplus=True), case)

    def strided(c):
        moved = {
            n: v.transpose(0, 1).contiguous().transpose(0, 1) for n, v in c.items() if v.ndim == 3
        }
        joint = torch.cat([c["B"], c["C"]], -1)
        moved |= {"B": joint[..., :4], "C": joint[..., 4:]}
        moved["z"] = c["z"].mT.contiguous().mT
        return ours("cpu", dt_softplus=True)({**c, **moved})

    for name, value in results(strided, case).items():
        torch.testing.assert_close(value, expected[name])


@each_backend
def test_nothing_passes_a_reset(backend):
    case = make(1, 80, 3, 2)
    reset = torch.zeros(1, 80, dtype=torch.bool)
    reset[:, 50] = True
    clean = ours(backend, dt_softplus=True, reset=reset)(case)[0][:, 50:]
    case["x"][:, 7] = torch.nan
    x = case["x"].requires_grad_()
    y, _ = ours(backend, dt_softplus=True, reset=reset)(case)
    assert y[:, 7:50].isnan().all()
    torch.testing.assert_close(y[:, 50:], clean)
    (grad,) = torch.autograd.grad(y[:, :50].sum(), x)
    assert grad[:, 50:].eq(0).all()
    (grad,) = torch.autograd.grad(ours(backend, dt_softplus=True, reset=reset)(case)[0].sum(), x)
    assert grad[:, 50:].isfinite().all()


@each_backend
def test_long_decays_underflow_to_zero_and_extremes_stay_finite(backend):
    case = {n: v.float() for n, v in make(1, 100, 4, 3).items()}
    for scale in (1e4, 1e8, 1e20):
        case["dt"] = case["dt"].abs() * scale
        y, final = ours(backend)(case)
        if scale < 1e8:
            assert y.isfinite().all()
        assert not y.isnan().any(), scale
        assert not final.isnan().any(), scale
    idle = {**case, "x": torch.zeros(1, 100, 4), "dt": torch.full((1, 100, 4), 100.0)}
    assert ours(backend)(idle)[1].eq(0).all()


def test_gradients_of_both_orders():
    case = make(2, 5, 3, 2)
    names = list(case)
    reset = mask(2, 5)
    inputs = [v.requires_grad_() for v in case.values()]
    for zoh in (False, True):

        def run(*tensors, zoh=zoh):
            return ours(None, zoh=zoh, dt_softplus=True, reset=reset)(
                dict(zip(names, tensors, strict=True))
            )

        assert torch.autograd.gradcheck(run, inputs, fast_mode=True)
        assert torch.autograd.gradgradcheck(run, inputs, fast_mode=True)


def test_the_definition_differentiates_across_chunks():
    """Longer than a chunk: its states are computed again by the backward pass."""
    case = make(1, 70, 2, 2)
    expected = results(lambda c: loop(c, dt_softplus=True), case)
    for name, value in results(ours("reference", dt_softplus=True), case).items():
        torch.testing.assert_close(value, expected[name], msg=name)
    x = case["x"].requires_grad_()

    def twice(run):
        (grad,) = torch.autograd.grad(run(case)[0].square().sum(), x, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), x)[0]

    torch.testing.assert_close(
        twice(ours(None, dt_softplus=True)), twice(lambda c: loop(c, dt_softplus=True))
    )


def test_transforms_of_torch_func():
    case = make(2, 6, 3, 2)

    def loss(x):
        return ours(None, dt_softplus=True)({**case, "x": x})[0].square().sum()

    x = case["x"].clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(x), x)
    torch.testing.assert_close(torch.func.grad(loss)(case["x"]), expected)


@pytest.mark.parametrize("shape", [(0, 3, 2, 2), (2, 0, 3, 2)])
def test_empty_sequences(shape):
    case = make(*shape)
    got = results(ours(None, dt_softplus=True), case)
    assert got["y"].shape == shape[:3]
    torch.testing.assert_close(got["final"], case["initial_state"])
    assert got["grad A"].eq(0).all()


@needs_native
def test_only_wanted_gradients_and_no_kept_states_without_them():
    case = make(1, 70, 3, 2)
    case["B"].requires_grad_()
    y, _ = ours("cpu")(case)
    (grad,) = torch.autograd.grad(y.sum(), case["B"])
    assert grad.shape == case["B"].shape
    with torch.no_grad():
        assert ours("cpu")(case)[0].grad_fn is None


@needs_native
def test_expanded_states_are_never_stored():
    """Peak of a training step: far below one (batch, time, channels, d_state) tensor."""
    batch, time, channels, d_state = 2, 2048, 64, 64
    expanded = batch * time * channels * d_state * 4
    case = make(batch, time, channels, d_state)
    with torch.profiler.profile(profile_memory=True) as profile:
        results(ours("cpu", dt_softplus=True), case, torch.float32)
    largest = max(e.cpu_memory_usage for e in profile.events())
    assert 0 < largest < expanded / 8


@pytest.mark.unchecked
def test_compiled_and_exported():
    case = {n: v.float() for n, v in make(2, 40, 3, 2).items()}
    eager = results(ours(None, dt_softplus=True), case, torch.float32)
    torch._dynamo.reset()
    compiled = torch.compile(ours(None, dt_softplus=True), fullgraph=True, backend="aot_eager")
    for name, value in results(compiled, case, torch.float32).items():
        torch.testing.assert_close(value, eager[name], msg=name)


def test_use_backend_reaches_it():
    case = make(1, 4, 3, 2)
    with use_backend("reference"):
        y, _ = ours()(case)
    torch.testing.assert_close(y, loop(case)[0])


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"x": torch.ones(2, 3)}, ShapeError, r"x must have shape \(batch, time, channels\)"),
        ({"dt": torch.ones(2, 3, 5)}, ShapeError, r"dt must have .*channels=4\), got \(2, 3, 5\)"),
        (
            {"A": torch.ones(4)},
            ShapeError,
            r"A must have shape \(channels=4, d_state\), got \(4,\)",
        ),
        ({"B": torch.ones(2, 3, 3)}, ShapeError, r"B must have .*d_state=2\), got \(2, 3, 3\)"),
        ({"D": torch.ones(3)}, ShapeError, r"D must have shape \(channels=4\), got \(3,\)"),
        ({"initial_state": torch.ones(2, 2, 4)}, ShapeError, "initial_state must have shape"),
        (
            {"x": torch.ones(2, 3, 4).long()},
            DTypeError,
            "x must be real floating point, got torch.int64",
        ),
        ({"reset": torch.ones(2, 3)}, DTypeError, "reset must be boolean, got torch.float32"),
        ({"reset": torch.ones(2, 4).bool()}, ShapeError, r"reset must have .* got \(2, 4\)"),
        ({"b_disc": "exact"}, UnknownNameError, "no selective_scan b_disc named 'exact'"),
        ({"backend": "cpuu"}, UnknownNameError, "backend named 'cpuu'. Did you mean 'cpu'"),
        ({"backend": "triton"}, BackendError, "backend 'triton'"),
    ],
)
def test_words_its_errors(change, error, message):
    arguments = {
        "x": torch.ones(2, 3, 4),
        "dt": torch.ones(2, 3, 4),
        "A": -torch.ones(4, 2),
        "B": torch.ones(2, 3, 2),
        "C": torch.ones(2, 3, 2),
    }
    with pytest.raises(error, match=message):
        selective_scan(**{**arguments, **change})
    assert issubclass(ShapeError, ArgumentError)
    assert math.isfinite(selective_scan(**arguments)[0].sum().item())
