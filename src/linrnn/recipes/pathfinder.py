"""An LRU on Pathfinder."""

from linrnn.recipes import _lru
from linrnn.recipes._base import Recipe


def paper() -> Recipe:
    """Six LRU layers on the task `pathfinder`, as in the paper's Table 9."""
    return _lru.paper("pathfinder", departures="Each direction has parameters of its own.")
