"""S5 on ListOps."""

from linrnn.recipes import _s5
from linrnn.recipes._base import Recipe


def paper() -> Recipe:
    """Eight S5 layers on the task `listops`, as in the public scripts."""
    return _s5.paper("listops")
