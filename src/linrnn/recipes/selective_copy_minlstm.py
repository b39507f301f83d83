"""minLSTM on selective copying."""

from linrnn.recipes._settings import min_gated
from linrnn.recipes._settings.base import Recipe


def paper() -> Recipe:
    """Three minLSTM layers of width 64 on the task `selective_copy` at its full length."""
    return min_gated.paper("minlstm", seconds=None, hardware="a GPU")
