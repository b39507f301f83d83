"""Box-Cox transforms of many series at once, their power by maximum likelihood."""

import numpy as np
from scipy.special import boxcox, inv_boxcox

from linrnn.estimators._panel.batch import Batch

_POWERS = tuple(np.linspace(0, 1, 21).tolist())
_FEWEST = 4
"""Changes of a row whose likelihood chooses a power."""


def transformed(batch: Batch, power: np.ndarray) -> Batch:
    """The rows as ``(y^power - 1) / power``, or ``log y`` where the power is 0.

    Args:
        batch: of values above 0.
        power: (rows,).

    Reference:
        Box and Cox 1964, "An analysis of transformations".
    """
    return batch.mapped(boxcox(np.where(batch.mask, batch.y, 1.0), power[:, None]))


def inverse(z: np.ndarray, power: np.ndarray) -> np.ndarray:
    """Values (rows, time) of a transform with powers (rows,) from 0 to 1: medians go to medians.

    The mean lies above the median where the power is below 1. Nothing is added for it: absolute
    errors choose among forecasts, and the median has the smallest. Below the range of the
    transform a value is 0.
    """
    p = power[:, None]
    lowest = np.divide(-1.0, p, out=np.full(p.shape, -np.inf), where=p > 0)
    return np.asarray(inv_boxcox(np.maximum(z, lowest), p))


def likeliest(batch: Batch, season: int) -> np.ndarray:
    r"""Powers (rows,) from 0 to 1, in steps of 1/20, that make changes most like normal ones.

    Equation:
        power = argmax -n / 2 log var(z_t - z_{t-m}) + (power - 1) sum log y_t
        z_t = (y_t^power - 1) / power

    ``m`` is the season. A row of fewer than four changes has power 1.

    Args:
        batch: of values above 0.
        season: in steps; 1 is none.
    """
    lag = season if batch.y.shape[1] > season else 1
    best, most = np.ones(len(batch.n)), np.full(len(batch.n), -np.inf)
    enough = batch.n - lag >= _FEWEST
    for one in sorted(_POWERS, reverse=True):  # of equals the one nearest to none
        value = log_likelihood(batch, one, lag)
        better = enough & (value > most)
        best, most = np.where(better, one, best), np.where(better, value, most)
    return best


def log_likelihood(batch: Batch, power: float, lag: int) -> np.ndarray:
    """The logarithm of the likelihood of a power (rows,) if changes over ``lag`` steps are normal.

    With ``lag`` 0 it is that of the values themselves. A constant is left out.
    """
    z = transformed(batch, np.full(len(batch.n), power)).y
    there = batch.mask[:, lag:]
    n = np.maximum(there.sum(1), 1)
    changes = (z[:, lag:] - z[:, : z.shape[1] - lag] if lag else z) * there
    centred = (changes - changes.sum(1, keepdims=True) / n[:, None]) * there
    variance = np.maximum((centred**2).sum(1) / n, 1e-300)
    logs = np.log(np.where(batch.mask, batch.y, 1.0))[:, lag:].sum(1)
    return np.asarray((power - 1) * logs - n / 2 * np.log(variance))
