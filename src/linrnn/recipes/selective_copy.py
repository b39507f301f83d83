"""minGRU on selective copying."""

from linrnn.recipes import _min_gated
from linrnn.recipes._base import Recipe


def paper() -> Recipe:
    """Three minGRU layers of width 64 on the task `selective_copy` at its full length."""
    return _min_gated.paper("mingru", seconds=4e6, hardware="one CPU core; take a GPU")
