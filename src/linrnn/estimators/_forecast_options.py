"""The options of a forecaster, checked when it is fitted, as scikit-learn wants it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from linrnn.errors import (
    ArgumentError,
    ArgumentTypeError,
    check_few,
    check_in,
    check_positive_int,
    show,
)
from linrnn.estimators._plain import plain
from linrnn.estimators._series import LAYOUTS

CHANNELS: Mapping[str, tuple[str, ...]] = {
    "auto": ("own", "together"),
    "own": ("own",),
    "shared": (),
    "together": ("together",),
}
"""Read-outs that each word allows a channel beside the shared one."""

_MOST_MODES = 4096


def check_options(where: str, options: Mapping[str, Any]) -> None:
    """Raise `ArgumentError` for what `RecurrentForecaster` cannot do."""
    for name in ("horizon", "every"):
        if options[name] is not None:
            check_positive_int(where, **{name: options[name]})
    check_few(where, _MOST_MODES, n_modes=options["n_modes"])
    check_in(where, "channels", options["channels"], CHANNELS)
    check_in(where, "missing", options["missing"], ("error", "ffill"))
    if options["layout"] is not None:
        check_in(where, "layout", options["layout"], LAYOUTS)
    if not isinstance(options["refit"], bool):
        raise ArgumentTypeError(
            f"{where}: refit must be True or False, got {show(options['refit'])}."
        )
    _check_share(where, options["validation"])
    seasons_of(where, options["season"])


def _check_share(where: str, share: Any) -> None:
    if isinstance(share, int) and not isinstance(share, bool):
        check_positive_int(where, validation=share)
    elif not isinstance(share, float) or not 0 < share < 1:
        raise ArgumentError(
            f"{where}: validation must be a share between 0 and 1 or a number of steps, got "
            f"{show(share)}."
        )


def seasons_of(where: str, season: Any) -> tuple[float, ...] | None:
    """Lengths in steps, rising; None where they are to be found."""
    if season is None:
        return None
    listed = isinstance(season, Sequence) or (isinstance(season, np.ndarray) and season.ndim == 1)
    several = [plain(length) for length in (season if listed else [season])]
    for length in several:
        number = isinstance(length, (int, float)) and not isinstance(length, bool)
        if not number or not 0 <= length < float("inf"):
            raise ArgumentError(
                f"{where}: season must be a number of steps, several, or None, got {show(season)}."
            )
    return tuple(sorted(float(length) for length in several if length > 1))


def quantile_levels(where: str, quantiles: Any) -> np.ndarray:
    """(quantiles,) float64, each between 0.005 and 0.995."""
    try:
        levels = np.asarray(quantiles, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError, OverflowError):
        levels = np.empty(0)
    if len(levels) == 0 or not ((levels >= 0.005 - 1e-9) & (levels <= 0.995 + 1e-9)).all():
        raise ArgumentError(
            f"{where}: quantiles must lie between 0.005 and 0.995, got {show(quantiles)}."
        )
    return levels


def coverage_of(where: str, coverage: Any) -> float:
    """A share above 0 and at most 0.99."""
    share = plain(coverage)
    number = isinstance(share, (int, float)) and not isinstance(share, bool)
    if not number or not 0 < share <= 0.99:
        raise ArgumentError(
            f"{where}: coverage must be above 0 and at most 0.99, got {show(coverage)}."
        )
    return float(share)
