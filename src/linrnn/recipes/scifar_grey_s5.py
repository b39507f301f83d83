"""S5 on grey CIFAR-10 read by the pixel."""

from linrnn.recipes import _s5
from linrnn.recipes._base import Recipe
from linrnn.tasks.scifar import SCIFAROptions


def paper() -> Recipe:
    """Six S5 layers on the task `scifar` in grey (LRA Image), as in the public scripts."""
    return _s5.paper("scifar", SCIFAROptions(grey=True))
