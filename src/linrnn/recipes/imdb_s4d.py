"""S4D on IMDb reviews read by the byte."""

from linrnn.recipes import _s4d
from linrnn.recipes._base import Recipe
from linrnn.recipes._words import IMDB


def paper() -> Recipe:
    """Six S4D layers on the task `imdb`, as in the public configurations."""
    return _s4d.paper("imdb", departures=IMDB)
