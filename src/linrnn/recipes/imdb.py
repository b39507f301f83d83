"""An LRU on IMDb reviews read by the byte."""

from linrnn.recipes import _lru
from linrnn.recipes._base import Recipe
from linrnn.recipes._words import IMDB


def paper() -> Recipe:
    """Six LRU layers on the task `imdb`, as in the paper's Table 9."""
    return _lru.paper("imdb", departures=IMDB)
