"""A forecast and what came, drawn."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from linrnn.train.figures import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_PANELS = 12


def draw(
    history: np.ndarray,
    forecast: np.ndarray,
    around: np.ndarray,
    came: np.ndarray | None,
    *,
    names: Sequence[Any] | None,
    label: str,
) -> "Figure":
    """A panel for each channel, of the first twelve.

    Args:
        history, forecast: (time, channels).
        around: (2, time, channels), the ends of an interval.
        came: (time, channels) or None.
        names: of the channels.
        label: of the interval.
    """
    n = min(_MOST_PANELS, forecast.shape[1])
    figure = new_figure(8.6, 1.2 + 1.9 * n)
    panels = figure.subplots(n, 1, sharex=True, squeeze=False)[:, 0]
    past = np.arange(-len(history) + 1, 1)
    ahead = np.arange(1, len(forecast) + 1)
    for c, axes in enumerate(panels):
        axes.plot(past, history[:, c], color="0.5", linewidth=1.2, label="read")
        low, high = around[:, :, c]
        axes.fill_between(ahead, low, high, color="0.85", label=label)
        axes.plot(ahead, forecast[:, c], color="black", linewidth=1.6, label="forecast")
        if came is not None:
            steps = ahead[: len(came)]
            axes.plot(steps, came[:, c], color="0.3", linestyle=":", linewidth=1.6, label="truth")
        axes.grid(alpha=0.3)
        if names is not None:
            axes.set_ylabel(str(names[c]))
    panels[0].legend(loc="upper left", fontsize=8)
    panels[-1].set(xlabel="steps from the last value that was read")
    return figure
