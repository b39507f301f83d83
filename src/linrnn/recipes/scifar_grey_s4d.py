"""S4D on grey CIFAR-10 read by the pixel."""

from linrnn.recipes import _s4d
from linrnn.recipes._base import Recipe
from linrnn.tasks.scifar import SCIFAROptions


def paper() -> Recipe:
    """Six S4D layers on the task `scifar` in grey (LRA Image), as in the public configurations."""
    return _s4d.paper("scifar", SCIFAROptions(grey=True))
