"""What a recipe is."""

from dataclasses import dataclass

from linrnn.train import Config


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A complete configuration, and what to expect of it."""

    config: Config
    """Everything a run depends on."""
    summary: str
    """One line for a list of recipes."""
    expected: float
    """Mean test metric over ``seeds``, in the unit of the task's metric; without seeds, the
    published one."""
    spread: float
    """Largest distance of a seed's test metric from ``expected``; without seeds, as published."""
    seeds: tuple[int, ...]
    """Seeds that were run; none where nobody has run the recipe to its end yet."""
    seconds: float
    """Time of training one of them; without seeds, what the first steps let expect."""
    hardware: str
    """On what that time was measured."""
    source: str
    """Where the hyperparameters come from."""
