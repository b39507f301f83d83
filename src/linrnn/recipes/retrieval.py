"""An LRU on pairs of papers read by the byte."""

from linrnn.recipes import _lru
from linrnn.recipes._base import Recipe


def paper() -> Recipe:
    """Six LRU layers on the task `retrieval`, as in the paper's Table 9."""
    return _lru.paper("retrieval")
