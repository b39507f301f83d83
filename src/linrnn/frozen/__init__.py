"""Models without a training: a linear read-out, of a frozen bank of modes or of a sequence itself.

They are `linrnn.backbone.Model` like a `linrnn.SequenceModel`, so run folders, streams and
services take them. `linrnn.estimators` fits them.
"""

from linrnn.frozen.linear import LinearModel as LinearModel
from linrnn.frozen.sequences import BankModel as BankModel
from linrnn.frozen.series import SeriesModel as SeriesModel

__all__ = ["BankModel", "LinearModel", "SeriesModel"]


def __dir__() -> list[str]:
    return sorted(__all__)
