"""Notices of ``linrnn stream`` that forecasts have become worse than in the back-test."""

from collections.abc import Sequence

import torch
from torch import Tensor

from linrnn.backbone import Model
from linrnn.cli._line.streams import say
from linrnn.estimators.drift import ADVICE, Drift
from linrnn.frozen import MeanModel, SeriesModel


class Drifting:
    """Errors one step ahead of a forecast in closed form.

    They count once the model has read as many steps as its longest memory: before, its states are
    unlike those of the back-test.

    The statistic is `Drift`, from the back-test in the run folder, and begins anew with each
    command. Of a line with several steps the first is judged: there are no forecasts between them.

    Args:
        model: of a run.
        names: of the channels.
    """

    def __init__(self, model: MeanModel | SeriesModel, names: Sequence[str]) -> None:
        assert model.tails is not None
        self._drift = Drift.after(model.tails.double().cpu().numpy())
        self._scale, self._names = model.scale.double().cpu(), list(names)
        self._memory = int((-1 / torch.view_as_complex(model.modes).abs().log()).max())
        self._forecast: Tensor | None = None
        self.channels: list[str] = []
        """Those with a notice, the first first."""

    @classmethod
    def of(cls, model: Model, names: Sequence[str]) -> "Drifting | None":
        """None for a model without a back-test."""
        if isinstance(model, (MeanModel, SeriesModel)) and model.tails is not None:
            return cls(model, names)
        return None

    def read(self, steps: Tensor, y: Tensor, position: int) -> None:
        """Judge the last forecast, say what is new on standard error, and take the next.

        Args:
            steps: (steps, d_input), those of a line, as the model reads them.
            y: (d_output,), what it forecasts then.
            position: how many steps were read in all.
        """
        channels = len(self._scale)
        first = steps[0].double().cpu()
        missing = first[channels:] > 0 if len(first) > channels else torch.zeros(channels) > 0
        if self._forecast is not None:
            errors = ((first[:channels] - self._forecast) / self._scale)[:, None]
            gaps = missing[None] if bool(missing.any()) else None
            before, self._drift = self._drift, self._drift.read(errors, gaps)
            if new := [self._names[c] for c in self._drift.new(before)]:
                self.channels += new
                say(
                    f"linrnn: stream: forecasts of {', '.join(new)} one step ahead are further off "
                    f"than in the back-test of the run, at step {position}. {ADVICE}"
                )
        self._forecast = y.double().cpu()[:channels] if position >= self._memory else None
