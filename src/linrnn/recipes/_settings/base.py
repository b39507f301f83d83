"""The contents of a recipe."""

from dataclasses import dataclass

from linrnn.train import Config


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A complete configuration, and what to expect of it."""

    config: Config
    """Everything a run depends on."""
    summary: str
    """One line for a list of recipes."""
    shows: str
    """Conclusions that a run of this scale allows, and those it does not."""
    expected: float
    """Mean test metric over ``seeds``, in the unit of the task's metric; without seeds, the
    published one."""
    spread: float | None
    """Largest distance of a seed's test metric from ``expected``; without seeds, the published
    spread or standard error, None where none is printed."""
    seeds: tuple[int, ...]
    """Seeds that were run; none where nobody has run the recipe to its end yet."""
    seconds: float | None
    """Time of training one of them; without seeds, what the first steps, or the publication, let
    expect; None where neither is known."""
    hardware: str
    """On what that time was measured; without a time, what the recipe needs."""
    source: str
    """Where the hyperparameters come from."""
    departures: str = ""
    """Where the configuration differs from its source, or fills a gap in it."""
