import pytest
import torch

from linrnn.errors import ShapeError
from linrnn.ops import fft_scan
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
