"""Mel-frequency cepstra of speech, with energy and slopes."""

from functools import cache

import numpy as np

_PREEMPHASIS = 0.97
_FILTERS, _CEPSTRA = 26, 12
_WINDOW, _HOP = 0.025, 0.010  # seconds
_SLOPE = 2  # frames before and after
FEATURES = 2 * (_CEPSTRA + 1)
_FLOOR = 1e-10


def frame_centres(samples: int, rate: int) -> np.ndarray:
    """The sample (frames,) in the middle of each window of 25 ms, every 10 ms."""
    width, hop = round(_WINDOW * rate), round(_HOP * rate)
    count = max(1, 1 + (samples - width) // hop)
    return np.arange(count) * hop + width // 2


def cepstra(samples: np.ndarray, rate: int) -> np.ndarray:
    """Twelve cepstra and the log energy of each frame, and their slopes.

    A frame is a Hamming window of 25 ms, every 10 ms, after pre-emphasis ``x_t - 0.97 x_{t-1}``.
    The power spectrum is summed by 26 triangular filters, evenly spaced on the mel scale
    ``2595 log10(1 + f / 700)`` from 0 to half the rate. The cepstra 1 to 12 are the cosine
    transform ``sqrt(2 / 26) sum_j log m_j cos(pi n (j - 1/2) / 26)``. A slope is the regression
    ``sum_k k (c_{t+k} - c_{t-k}) / (2 sum_k k^2)`` over two frames on each side, where frames
    beyond an end are those at the end.

    Args:
        samples: (time,) in [-1, 1).
        rate: samples a second.

    Returns:
        (frames, 26) float32.

    Reference:
        Davis and Mermelstein 1980, "Comparison of parametric representations for monosyllabic word
        recognition"; numbers of filters, cepstra and slopes as Graves and Schmidhuber 2005.
    """
    width, hop = round(_WINDOW * rate), round(_HOP * rate)
    x = samples.astype(np.float64)
    x = np.pad(x, (0, max(0, width - len(x))))
    x = np.append(x[:1], x[1:] - _PREEMPHASIS * x[:-1])
    frames = np.lib.stride_tricks.sliding_window_view(x, width)[::hop]  # (frames, width)
    energy = np.log(np.square(frames).sum(1) + _FLOOR)
    size = 1 << (width - 1).bit_length()
    power = np.abs(np.fft.rfft(frames * np.hamming(width), size)) ** 2
    logs = np.log(power @ _filters(size, rate).T + _FLOOR)  # (frames, 26)
    static = np.concatenate([logs @ _cosines().T, energy[:, None]], 1)
    return np.concatenate([static, slopes(static)], 1).astype(np.float32)


def slopes(x: np.ndarray) -> np.ndarray:
    """Regression slope of each column over two frames on each side: (frames, columns)."""
    padded = np.pad(x, ((_SLOPE, _SLOPE), (0, 0)), mode="edge")
    total = np.zeros_like(x)
    for k in range(1, _SLOPE + 1):
        later, earlier = padded[_SLOPE + k :], padded[_SLOPE - k :]
        total += k * (later[: len(x)] - earlier[: len(x)])
    return total / (2 * sum(k * k for k in range(1, _SLOPE + 1)))


@cache
def _filters(size: int, rate: int) -> np.ndarray:
    """Weights (filters, frequencies) of triangles on the mel scale."""
    top = 2595 * np.log10(1 + rate / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, top, _FILTERS + 2) / 2595) - 1)  # in Hz
    frequencies = np.fft.rfftfreq(size, 1 / rate)
    rise = (frequencies - edges[:-2, None]) / np.diff(edges)[:-1, None]
    fall = (edges[2:, None] - frequencies) / np.diff(edges)[1:, None]
    weights: np.ndarray = np.maximum(0, np.minimum(rise, fall))
    return weights


@cache
def _cosines() -> np.ndarray:
    """The cosine transform (cepstra, filters)."""
    n, j = np.arange(1, _CEPSTRA + 1)[:, None], np.arange(_FILTERS) + 0.5
    table: np.ndarray = np.sqrt(2 / _FILTERS) * np.cos(np.pi * n * j / _FILTERS)
    return table
