"""Loss and metric over an epoch, from its batches so far."""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor


class Mean:
    """Running means of loss and metric; goes into checkpoints, so it holds plain numbers.

    Args:
        values: sums, as ``values`` of another has them.
        measure: for a metric of all predictions at once (`Task.pooled`), the task's
            `Task.contributions`; None where the metric is a mean.
        scores: (examples, numbers), collected so far for such a metric.
    """

    def __init__(
        self,
        values: Mapping[str, float] | None = None,
        measure: Callable[[Tensor], Tensor] | None = None,
        scores: Sequence[Tensor] = (),
    ) -> None:
        self.values = dict(values or {"loss": 0.0, "metric": 0.0, "examples": 0.0})
        self.measure = measure
        self.scores = list(scores)

    def copy(self) -> "Mean":
        """The same sums and scores, apart from later ones."""
        return Mean(self.values, self.measure, self.scores)

    def add(self, loss: float, metric: float, examples: float) -> None:
        """Count one batch in, given its mean loss and the sum of the scores of its examples."""
        self.values["loss"] += loss * examples
        self.values["metric"] += metric
        self.values["examples"] += examples

    def collect(self, scores: Tensor) -> None:
        """Keep the scores (batch, numbers) of a batch for a metric of all predictions."""
        self.scores.append(scores)

    @property
    def loss(self) -> float:
        """Mean over the examples."""
        return self._per_example("loss")

    @property
    def metric(self) -> float:
        """The metric of the examples; NaN without any, or where it is undefined."""
        if self.measure is None:
            return self._per_example("metric")
        return self.measure(torch.cat(self.scores)).mean().item() if self.scores else math.nan

    def _per_example(self, name: str) -> float:
        examples = self.values["examples"]
        return self.values[name] / examples if examples else math.nan
