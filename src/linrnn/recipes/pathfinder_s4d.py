"""S4D on Pathfinder."""

from linrnn.recipes import _s4d
from linrnn.recipes._base import Recipe


def paper() -> Recipe:
    """Six S4D layers on the task `pathfinder`, as in the public configurations."""
    return _s4d.paper("pathfinder")
