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
from linrnn.atlas._queue import Atlas as Atlas
from linrnn.atlas._systems import CORE as CORE
from linrnn.atlas._systems import STATE as STATE
from linrnn.atlas._systems import System as System
from linrnn.atlas._systems import sized as sized
from linrnn.atlas._train import Trained as Trained

__all__ = [
    "ABILITIES",
    "CORE",
    "STATE",
    "Ability",
    "Atlas",
    "Break",
    "Cell",
    "Figure",
    "System",
    "Trained",
    "breaking_point",
    "figure",
    "sized",
]
