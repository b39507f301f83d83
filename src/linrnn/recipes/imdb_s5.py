"""S5 on IMDb reviews read by the byte."""

from linrnn.recipes import _s5
from linrnn.recipes._base import Recipe
from linrnn.recipes._words import IMDB


def paper() -> Recipe:
    """Six S5 layers on the task `imdb`, as in the public scripts."""
    return _s5.paper("imdb", departures=IMDB)
