"""Abilities of each recurrence: tasks with a dial, which is turned until a system breaks.

Every system has a state of about one size and two layers of about one number of parameters, and
takes one learning rate for everything, chosen on a task that is not on the map.
"""

from linrnn.atlas._abilities import ABILITIES as ABILITIES
from linrnn.atlas._abilities import Ability as Ability
from linrnn.atlas._cells import Break as Break
from linrnn.atlas._cells import Cell as Cell
from linrnn.atlas._cells import Figure as Figure
from linrnn.atlas._cells import breaking_point as breaking_point
from linrnn.atlas._cells import figure as figure
from linrnn.atlas._cells import figures as figures
from linrnn.atlas._laws import FEATURES as FEATURES
from linrnn.atlas._laws import Fit as Fit
from linrnn.atlas._laws import Law as Law
from linrnn.atlas._laws import Residual as Residual
from linrnn.atlas._laws import fits as fits
from linrnn.atlas._laws import height as height
from linrnn.atlas._laws import laws as laws
from linrnn.atlas._laws import residuals as residuals
from linrnn.atlas._measured import about as about
from linrnn.atlas._measured import measured as measured
from linrnn.atlas._measured import read_table as read_table
from linrnn.atlas._queue import Atlas as Atlas
from linrnn.atlas._relatives import Relative as Relative
from linrnn.atlas._relatives import Standing as Standing
from linrnn.atlas._relatives import beside as beside
from linrnn.atlas._relatives import relatives as relatives
from linrnn.atlas._relatives import standings as standings
from linrnn.atlas._suggest import PROPERTIES as PROPERTIES
from linrnn.atlas._suggest import Answer as Answer
from linrnn.atlas._suggest import Need as Need
from linrnn.atlas._suggest import Suggestion as Suggestion
from linrnn.atlas._suggest import parse_needs as parse_needs
from linrnn.atlas._suggest import suggest as suggest
from linrnn.atlas._systems import CORE as CORE
from linrnn.atlas._systems import STATE as STATE
from linrnn.atlas._systems import System as System
from linrnn.atlas._systems import sized as sized
from linrnn.atlas._train import Trained as Trained

__all__ = [
    "ABILITIES",
    "CORE",
    "FEATURES",
    "PROPERTIES",
    "STATE",
    "Ability",
    "Answer",
    "Atlas",
    "Break",
    "Cell",
    "Figure",
    "Fit",
    "Law",
    "Need",
    "Relative",
    "Residual",
    "Standing",
    "Suggestion",
    "System",
    "Trained",
    "about",
    "beside",
    "breaking_point",
    "figure",
    "figures",
    "fits",
    "height",
    "laws",
    "measured",
    "parse_needs",
    "read_table",
    "relatives",
    "residuals",
    "sized",
    "standings",
    "suggest",
]


def __dir__() -> list[str]:
    return sorted(__all__)
