"""An LRU on colour CIFAR-10 read by the pixel."""

from linrnn.recipes import _lru
from linrnn.recipes._base import Recipe


def paper() -> Recipe:
    """Six LRU layers on the task `scifar`, as in the paper's Table 9."""
    return _lru.paper("scifar")
