"""The base of models that forecast a series: one contract of reading and stepping."""

from abc import abstractmethod
from typing import Any

from torch import Tensor, nn

from linrnn.backbone import Model
from linrnn.errors import ArgumentError
from linrnn.nn.pool import Pool
from linrnn.typing import Float, Lengths, State, Time, Times


class ForecastModel(Model):
    """A model that reads a series and forecasts each channel from its newest step.

    Args:
        channels: of the series.
        horizon: steps ahead.
        d_input: numbers of a step. Default: channels.
    """

    def __init__(self, channels: int, horizon: int, d_input: int | None = None) -> None:
        super().__init__()
        self.channels, self.horizon = channels, horizon
        self.d_input = self.d_model = channels if d_input is None else d_input
        self.d_output, self.documents = horizon * channels, 1
        self.encoder, self.pool = nn.Identity(), Pool("last")

    @property
    @abstractmethod
    def reach(self) -> int:
        """Steps of a window that count."""

    @property
    def timed(self) -> bool:
        """Steps are alike."""
        return False

    def forward(
        self,
        x: Float[Tensor, "batch time d_input"],
        state: State | None = None,
        *,
        reset: Tensor | None = None,
        lengths: Lengths | None = None,
        dt: Times | None = None,
    ) -> tuple[Float[Tensor, "batch d_output"], dict[str, Tensor]]:
        """Forecast what follows windows; ``dt`` is not read.

        Raises:
            ArgumentError: ``reset`` or ``lengths`` are given.
        """
        if reset is not None or lengths is not None:
            raise ArgumentError(
                f"{type(self).__name__}: reset and lengths must be None, got a value. Read one "
                "series at a time, from its beginning."
            )
        return self._read(x, self.init_state(len(x)) if state is None else state)

    def step(
        self, x_t: Float[Tensor, "batch d_input"], state: State, *, dt: Time | None = None
    ) -> tuple[Float[Tensor, "batch d_output"], dict[str, Tensor]]:
        """Read one step, and forecast what follows it."""
        return self.forward(x_t[:, None], state)

    @abstractmethod
    def _read(self, x: Tensor, state: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Forecasts (batch, horizon * channels) after x (batch, time, d_input), and the state."""
