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
