"""S5 on Path-X."""

from linrnn.recipes import _s5
from linrnn.recipes._base import Recipe


def paper() -> Recipe:
    """Six S5 layers on the task `path_x`, as in the public scripts."""
    return _s5.paper("path_x")
