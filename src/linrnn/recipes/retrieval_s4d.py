"""S4D on pairs of papers read by the byte."""

from linrnn.recipes import _s4d
from linrnn.recipes._base import Recipe


def paper() -> Recipe:
    """Six S4D layers on the task `retrieval`, as in the public configurations."""
    return _s4d.paper("retrieval")
