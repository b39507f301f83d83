"""Promises of `linear_scan` beyond the laws: dtypes, broadcasting rules, error messages."""

import pytest
import torch
from scipy.signal import lfilter

from linrnn.errors import ArgumentError, BackendError, DTypeError, ShapeError, UnknownNameError
from linrnn.ops import explain, linear_scan, use_backend
from linrnn.testing._op_laws import compare, layouts

B, T, C = 2, 5, 3


def test_linear_scan_agrees_with_scipy_lfilter():
    b = torch.randn(1, 200, 1, dtype=torch.float64)
    h, _ = linear_scan(torch.tensor([0.93], dtype=torch.float64), b)
    expected = torch.from_numpy(lfilter([1.0], [1.0, -0.93], b[0, :, 0].numpy()))
    torch.testing.assert_close(h[0, :, 0], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (torch.float32, torch.float64, torch.float64),
        (torch.float32, torch.complex64, torch.complex64),
        (torch.float64, torch.complex64, torch.complex128),
        (torch.bfloat16, torch.float32, torch.float32),
    ],
)
def test_linear_scan_promotes_dtypes(a, b, expected):
    h, final = linear_scan(torch.ones(C).to(a), torch.ones(B, T, C).to(b))
    assert h.dtype == final.dtype == expected


def test_linear_scan_takes_a_real_state_for_a_complex_recurrence():
    _, final = linear_scan(torch.ones(C) * 1j, torch.zeros(B, 1, C) * 1j, torch.ones(B, C))
    torch.testing.assert_close(final, torch.full((B, C), 1j))


def test_explain_names_backend_and_reason():
    text = explain(torch.ones(C), torch.ones(B, T, C))
    assert text.startswith(("cpu: the fastest that supports", "tree: the fastest that supports"))
    with use_backend("reference"):
        assert "use_backend" in explain(torch.ones(C), torch.ones(B, T, C))


def test_environment_variable_picks_the_backend(monkeypatch):
    monkeypatch.setenv("LINRNN_BACKEND", "tree")
    assert explain(torch.ones(C), torch.ones(B, T, C)) == "tree: requested by LINRNN_BACKEND"


def test_use_backend_is_undone_after_an_error():
    before = explain(torch.ones(C), torch.ones(B, T, C))
    with pytest.raises(ZeroDivisionError), use_backend("reference"):
        raise ZeroDivisionError
    assert explain(torch.ones(C), torch.ones(B, T, C)) == before


def call(**changes):
    arguments = {"a": torch.ones(B, T, C), "b": torch.ones(B, T, C), **changes}
    return linear_scan(arguments.pop("a"), arguments.pop("b"), **arguments)


mask = torch.zeros(B, T, dtype=torch.bool)
ERRORS = [
    (
        {"b": torch.ones(T)},
        ShapeError,
        r"b must have shape \(batch, time, \*channels\), got \(5,\)",
    ),
    (
        {"a": torch.ones(B, T, 4)},
        ShapeError,
        r"a must have the shape of b \(2, 5, 3\).*got \(2, 5, 4\)",
    ),
    ({"a": torch.ones(4)}, ShapeError, r"its channel axes \(3,\), got \(4,\)"),
    ({"a": torch.ones(T, C)}, ShapeError, r"got \(5, 3\)"),
    (
        {"b": torch.ones(B, T, C, dtype=torch.long)},
        DTypeError,
        "b must be floating point.*got torch.int64",
    ),
    ({"a": torch.ones(B, T, C, dtype=torch.bool)}, DTypeError, "a must be floating point"),
    ({"initial_state": torch.ones(B, 4)}, ShapeError, r"\(batch=2, channels0=3\), got \(2, 4\)"),
    ({"initial_state": torch.ones(3, C)}, ShapeError, r"got \(3, 3\)"),
    ({"initial_state": torch.ones(B, C) * 1j}, DTypeError, "initial_state must be real"),
    ({"reset": mask.float()}, DTypeError, "reset must be boolean, got torch.float32"),
    (
        {"reset": mask[:, 1:]},
        ShapeError,
        r"reset must have shape \(batch=2, time=5\), got \(2, 4\)",
    ),
    ({"cu_seqlens": torch.tensor([0, 5])}, ShapeError, "batch 1 when cu_seqlens is given, got 2"),
    ({"backend": "cuda"}, UnknownNameError, "no linear_scan backend named 'cuda'"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("changes", "error", "message"), ERRORS)
def test_linear_scan_words_its_errors(changes, error, message):
    with pytest.raises(error, match=message):
        call(**changes)


PACKED = [
    (torch.tensor([0, 6]), ArgumentError, r"must rise from 0 to time=5, got \[0, 6\]"),
    (torch.tensor([1, 5]), ArgumentError, r"got \[1, 5\]"),
    (torch.tensor([0, 4, 3, 5]), ArgumentError, r"got \[0, 4, 3, 5\]"),
    (torch.tensor([0.0, 5.0]), ShapeError, "must be a vector of integers"),
    (torch.tensor([[0, 5]]), ShapeError, r"of shape \(1, 2\)"),
    (torch.tensor([], dtype=torch.long), ShapeError, "must be a vector of integers"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("cu_seqlens", "error", "message"), PACKED)
def test_linear_scan_words_errors_of_offsets(cu_seqlens, error, message):
    with pytest.raises(error, match=message):
        linear_scan(torch.ones(C), torch.ones(1, T, C), cu_seqlens=cu_seqlens)


@pytest.mark.unchecked
def test_devices_must_agree():
    with pytest.raises(ArgumentError, match="a must be on cpu like b, got meta"):
        linear_scan(torch.ones(C, device="meta"), torch.ones(1, T, C))


def test_cpu_backend_refuses_other_devices():
    with pytest.raises(BackendError, match="needs CPU tensors, got meta"):
        explain(torch.ones(C, device="meta"), torch.ones(1, T, C, device="meta"), backend="cpu")


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128, torch.bfloat16])
def test_a_single_step_is_the_recurrence_in_every_layout(dtype):
    """Left to choose, the op computes one step without a kernel."""
    for case in layouts(is_complex=dtype.is_complex, times=(1,)):
        compare(None, case, dtype)


def test_a_single_step_shares_no_memory_with_its_state():
    h, final = linear_scan(torch.ones(C), torch.ones(B, 1, C), torch.ones(B, C))
    h.zero_()
    assert (final == 2).all()


def test_a_single_step_with_other_channel_axes():
    for channels in ((), (2, 3)):
        a, b = torch.rand(B, 1, *channels), torch.rand(B, 1, *channels)
        h0, reset = torch.rand(B, *channels), torch.tensor([[True], [False]])
        h, final = linear_scan(a, b, h0, reset=reset)
        torch.testing.assert_close(final[0], b[0, 0])
        torch.testing.assert_close(final[1], a[1, 0] * h0[1] + b[1, 0])
        torch.testing.assert_close(h[:, 0], final)


def test_autocast_leaves_the_recurrence_in_the_dtype_of_its_inputs():
    a, b = torch.rand(B, T, C), torch.rand(B, T, C)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        h, final = linear_scan(a, b)
        mixed, _ = linear_scan(a, b.bfloat16())
    assert h.dtype == final.dtype == mixed.dtype == torch.float32
    torch.testing.assert_close(h, linear_scan(a, b)[0])


@pytest.mark.unchecked
@pytest.mark.parametrize("time", [1, T])
def test_linear_scan_exports(time):
    class Scan(torch.nn.Module):
        def forward(self, a, b, h0):
            return linear_scan(a, b, h0)

    arguments = (torch.rand(B, time, C), torch.rand(B, time, C), torch.rand(B, C))
    program = torch.export.export(Scan(), arguments)
    for x, y in zip(program.module()(*arguments), linear_scan(*arguments), strict=True):
        torch.testing.assert_close(x, y)


@pytest.mark.unchecked
@pytest.mark.slow
def test_linear_scan_compiles_with_inductor():
    from linrnn.testing._op_laws import compiles

    compiles("auto", compiler="inductor")
