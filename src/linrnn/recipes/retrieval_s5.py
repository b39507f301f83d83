"""S5 on pairs of papers read by the byte."""

from linrnn.recipes import _s5
from linrnn.recipes._base import Recipe


def paper() -> Recipe:
    """Six S5 layers on the task `retrieval`, as in the public scripts."""
    return _s5.paper("retrieval")
