"""Which part of a series decided: what an answer loses when that part is hidden."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from linrnn.errors import ArgumentError, check_positive_int, show
from linrnn.estimators._plain import plain
from linrnn.estimators._series import Series, is_table
from linrnn.train.figures import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PARTS = 15
"""Windows that lie side by side in a series, unless the user says how long they are."""
_MOST_PANELS = 12


def occluded(series: Series, score: Callable[[Series], np.ndarray], window: int) -> np.ndarray:
    """Losses of the score at each step, (series, time, channels) or more axes as the score has.

    A window of one channel at a time is hidden, as if its values were missing. Each step has the
    mean of the windows that it lies in, which overlap by half.

    Args:
        series: to be explained.
        score: (series,) or (series, targets), of each series.
        window: steps of a window.
    """
    baseline = score(series)
    rows, steps, channels = series.x.shape
    lost = np.zeros((rows, steps, channels, *baseline.shape[1:]))
    count = np.zeros(steps)
    for start in starts(steps, window):
        hidden = slice(start, start + window)
        count[hidden] += 1
        for c in range(channels):
            x = series.x.clone()
            x[:, hidden, c] = torch.nan
            change = baseline - score(series._replace(x=x))
            lost[:, hidden, c] += change[:, None]
    lost /= count.reshape(1, -1, *[1] * (lost.ndim - 2))
    lost[np.arange(steps) >= series.lengths.numpy()[:, None]] = 0.0
    return lost


def starts(steps: int, window: int) -> list[int]:
    """First steps of windows that cover a series, overlapping by half."""
    last = max(0, steps - window)
    return sorted({*range(0, last, max(1, window // 2)), last})


def as_given(X: Any, lost: np.ndarray, lengths: np.ndarray, layout: str | None) -> Any:
    """The numbers of each step (series, time, channels, ...), in the container of the series."""
    if is_table(X):
        return lost[:, :, 0]
    channels_first = layout == "channels_time"
    if not isinstance(X, (list, tuple)) and getattr(X, "ndim", 1) == 3:
        return np.swapaxes(lost, 1, 2) if channels_first else lost
    parts = [one[:n] for one, n in zip(lost, lengths.tolist(), strict=True)]
    flat = [np.ndim(x) == 1 for x in X]
    return [
        one[:, 0] if alone else np.swapaxes(one, 0, 1) if channels_first else one
        for one, alone in zip(parts, flat, strict=True)
    ]


def window_of(where: str, window: Any, steps: int) -> int:
    """Steps of a window; None is a fifteenth of the series, at least 2.

    Raises:
        ArgumentError: no integer from 1 to the steps of the series.
    """
    if window is None:
        return max(1, min(steps, max(2, round(steps / _PARTS))))
    length = plain(window)
    check_positive_int(where, window=length)
    if length > steps:
        raise ArgumentError(
            f"{where}: window must be at most {steps}, the steps of the longest series, got "
            f"{show(window)}."
        )
    return int(length)


def draw(values: np.ndarray, lost: np.ndarray, title: str, label: str) -> "Figure":
    """A panel for each channel, of the first twelve: the series, darker where more is lost.

    Args:
        values, lost: (time, channels).
        title: of the figure.
        label: of the scale.
    """
    n = min(_MOST_PANELS, values.shape[1])
    figure = new_figure(8.6, 1.4 + 1.6 * n)
    panels = figure.subplots(n, 1, sharex=True, squeeze=False)[:, 0]
    top = float(max(lost.max(initial=0.0), 1e-12))
    edges = np.arange(len(values) + 1) - 0.5
    for c, axes in enumerate(panels):
        axes.plot(np.arange(len(values)), values[:, c], color="black", linewidth=1.4)
        low, high = axes.get_ylim()
        shades = axes.pcolormesh(
            edges, [low, high], lost[None, :, c].clip(0), cmap="Greys", vmin=0, vmax=1.6 * top
        )
        shades.set_zorder(0)
        axes.set_ylim(low, high)
        if n > 1:
            axes.set_ylabel(f"channel {c}")
    panels[0].set_title(title)
    panels[-1].set_xlabel("step")
    figure.colorbar(shades, ax=list(panels), label=label, boundaries=np.linspace(0, top, 33))
    return figure
