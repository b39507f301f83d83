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
    """Mean test metric over ``seeds``, in the unit of the task's metric."""
    spread: float
    """Largest distance of a seed's test metric from ``expected``."""
    seeds: tuple[int, ...]
    """Seeds that were run."""
    seconds: float
    """Wall time of training one of them."""
    hardware: str
    """On what that time was measured."""
    source: str
    """Where the hyperparameters come from."""
