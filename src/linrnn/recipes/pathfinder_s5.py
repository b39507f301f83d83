"""S5 on Pathfinder."""

from linrnn.recipes import _s5
from linrnn.recipes._base import Recipe


def paper() -> Recipe:
    """Six S5 layers on the task `pathfinder`, as in the public scripts."""
    return _s5.paper("pathfinder")
