"""Models without a training: linear read-outs, of a frozen bank of modes or of a sequence itself.

They are `linrnn.backbone.Model` like a `linrnn.SequenceModel`, so run folders, streams and
services take them. `linrnn.estimators` fits them.
"""

from linrnn.frozen.linear import LinearModel as LinearModel
from linrnn.frozen.mean import MeanModel as MeanModel
from linrnn.frozen.sequences import BankModel as BankModel
from linrnn.frozen.series import SeriesModel as SeriesModel
from linrnn.frozen.window import WindowModel as WindowModel

__all__ = ["BankModel", "LinearModel", "MeanModel", "SeriesModel", "WindowModel"]


def __dir__() -> list[str]:
    return sorted(__all__)
