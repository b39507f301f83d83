"""Models without a training: a frozen bank of modes, and a linear read-out that is solved for.

They are `linrnn.backbone.Model` like a `linrnn.SequenceModel`, so run folders, streams and
services take them. `linrnn.estimators` fits them.
"""

from linrnn.frozen.sequences import BankModel as BankModel
from linrnn.frozen.series import SeriesModel as SeriesModel

__all__ = ["BankModel", "SeriesModel"]


def __dir__() -> list[str]:
    return sorted(__all__)
