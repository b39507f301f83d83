import pytest
import torch
from torch.nn.functional import conv1d

from linrnn.errors import DTypeError, ShapeError
from linrnn.ops import fft_conv, fft_scan
from linrnn.testing import check_close, loop_scan


@pytest.mark.parametrize("time", [1, 2, 33])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_fft_scan_is_the_recurrence(time, dtype):
    torch.manual_seed(0)
    a = torch.rand(3, dtype=torch.float64).to(dtype) * (1j if dtype.is_complex else 1)
    b, h0 = torch.randn(2, time, 3, dtype=dtype), torch.randn(2, 3, dtype=dtype)
    for start in (h0, None):
        h, final = fft_scan(a, b, start)
        expected, last = loop_scan(a, b, start)
        check_close("h", h, expected, roundings=256)
        check_close("final", final, last, roundings=256)


@pytest.mark.unchecked
def test_fft_scan_words_its_errors():
    with pytest.raises(ShapeError, match=r"a must have shape \(channels=3\), got \(2,\)"):
        fft_scan(torch.ones(2), torch.ones(1, 4, 3))
    with pytest.raises(ShapeError, match=r"initial_state must have shape \(batch=1, channels=3\)"):
        fft_scan(torch.ones(3), torch.ones(1, 4, 3), torch.ones(2, 3))


@pytest.mark.parametrize("time", [19, 1000, 16_384])
@pytest.mark.parametrize("value", [3.0, 1e4, 1e20])
def test_huge_input_reaches_back_by_roundings_of_the_largest_state(time, value):
    torch.manual_seed(0)
    a = torch.polar(1 - 0.1 * torch.rand(4) ** 3, 6 * torch.rand(4))
    b = torch.randn(2, time, 4, dtype=torch.complex64)
    before, _ = fft_scan(a, b)
    for t in (1, time // 2, time - 1):
        changed = b.clone()
        changed[0, t, 1] = value
        after, _ = fft_scan(a, changed)
        reach = (after - before)[0, :t, 1].abs().max()
        assert reach <= 4 * torch.finfo(torch.float32).eps * after[0, :, 1].abs().max()
        same = torch.ones(2, 4, dtype=torch.bool)
        same[0, 1] = False  # neither other rows nor other channels
        assert torch.equal(after.transpose(1, 2)[same], before.transpose(1, 2)[same])


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_what_is_not_finite_makes_its_row_and_channel_nan(value):
    b = torch.ones(2, 9, 3)
    b[0, 5, 1] = value
    h, _ = fft_scan(torch.full((3,), 0.5), b)
    assert h[0, :, 1].isnan().all()
    assert h[1].isfinite().all()
    assert h[..., [0, 2]].isfinite().all()


def convolved(kernel, x, past):
    """By PyTorch, which correlates with the kernel turned round."""
    u = torch.cat([torch.zeros(len(x), kernel.shape[1], x.shape[2], dtype=x.dtype), past, x], 1)
    y = conv1d(u.transpose(1, 2), kernel.flip(1)[:, None], groups=len(kernel))
    return y.transpose(1, 2)[:, -x.shape[1] :]


@pytest.mark.parametrize("width", [1, 7, 40, 300])
@pytest.mark.parametrize("earlier", [0, 3, 500])
def test_fft_conv_is_the_convolution_of_pytorch(width, earlier):
    torch.manual_seed(0)
    kernel, x = torch.randn(3, width).double(), torch.randn(2, 65, 3).double()
    past = torch.randn(2, earlier, 3).double()
    given = [z.requires_grad_() for z in (x, kernel, past)]
    y, last = fft_conv(*given)
    expected = convolved(kernel, x, past)
    check_close("y", y, expected, roundings=64)
    seen = torch.cat([torch.zeros(2, width, 3), past, x], 1)
    assert torch.equal(last, seen[:, seen.shape[1] - width + 1 :])
    into = torch.randn_like(y)
    got = torch.autograd.grad(y, given, into, retain_graph=True)
    for name, g, true in zip("xkp", got, torch.autograd.grad(expected, given, into), strict=True):
        check_close(f"gradient of {name}", g, true, roundings=256)


def test_fft_conv_widens_half_precision_and_keeps_what_it_was_given():
    x, kernel = torch.randn(1, 20, 2).half(), torch.randn(2, 5).half()
    y, last = fft_conv(x, kernel)
    assert (y.dtype, last.dtype) == (torch.float16, torch.float32)
    exact, _ = fft_conv(x.float(), kernel.float())
    assert torch.equal(y, exact.half())


@pytest.mark.unchecked
def test_fft_conv_words_its_errors():
    x = torch.ones(1, 4, 3)
    with pytest.raises(ShapeError, match=r"kernel must have shape \(channels=3, width\), got \(2,"):
        fft_conv(x, torch.ones(2, 5))
    with pytest.raises(ShapeError, match=r"kernel must have shape \(channels=3, width=1\)"):
        fft_conv(x, torch.ones(3, 0))
    with pytest.raises(ShapeError, match=r"initial_state must have shape \(batch=1, past, chan"):
        fft_conv(x, torch.ones(3, 5), torch.ones(2, 4, 3))
    with pytest.raises(DTypeError, match=r"x must be real floating point, got torch\.c"):
        fft_conv(x.cfloat(), torch.ones(3, 5))


@pytest.mark.parametrize("time", [19, 1000, 16_384])
@pytest.mark.parametrize("value", [3.0, 1e4, 1e20])
def test_huge_input_of_fft_conv_reaches_back_by_roundings_of_the_largest_output(time, value):
    torch.manual_seed(0)
    kernel, x = torch.randn(4, time) * 0.9 ** torch.arange(time), torch.randn(2, time, 4)
    before, _ = fft_conv(x, kernel)
    for t in (1, time // 2, time - 1):
        changed = x.clone()
        changed[0, t, 1] = value
        after, _ = fft_conv(changed, kernel)
        reach = (after - before)[0, :t, 1].abs().max()
        assert reach <= 4 * torch.finfo(torch.float32).eps * after[0, :, 1].abs().max()
        assert torch.equal(after[1], before[1])
        assert torch.equal(after[0, :, [0, 2, 3]], before[0, :, [0, 2, 3]])
    changed[0, t, 1] = float("nan")
    after, _ = fft_conv(changed, kernel)
    assert after[0, :, 1].isnan().all()
    assert torch.equal(after[1], before[1])
