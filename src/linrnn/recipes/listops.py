"""An LRU on ListOps."""

from linrnn.recipes import _lru
from linrnn.recipes._base import Recipe


def paper() -> Recipe:
    """Six LRU layers on the task `listops`, as in the paper's Table 9."""
    return _lru.paper("listops")
