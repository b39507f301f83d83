"""Running means of loss and metric over an epoch."""

import math
from collections.abc import Mapping


class Mean:
    """Running means of loss and metric; goes into checkpoints, so it holds plain numbers."""

    def __init__(self, values: Mapping[str, float] | None = None) -> None:
        self.values = dict(values or {"loss": 0.0, "metric": 0.0, "examples": 0.0})

    def add(self, loss: float, metric: float, examples: float) -> None:
        """Count one batch in, given its mean loss and the sum of the scores of its examples."""
        self.values["loss"] += loss * examples
        self.values["metric"] += metric
        self.values["examples"] += examples

    @property
    def loss(self) -> float:
        """Mean over the examples."""
        return self._per_example("loss")

    @property
    def metric(self) -> float:
        """Mean over the examples."""
        return self._per_example("metric")

    def _per_example(self, name: str) -> float:
        examples = self.values["examples"]
        return self.values[name] / examples if examples else math.nan
