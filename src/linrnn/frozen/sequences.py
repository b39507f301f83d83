"""One answer to a sequence: a `linrnn.nn.ModeBank`, and a linear map of what it counted."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from linrnn.backbone import Model
from linrnn.errors import ArgumentError, ShapeError
from linrnn.nn.lengths import as_lengths
from linrnn.nn.mode_bank import STATISTICS, ModeBank
from linrnn.nn.pool import Pool
from linrnn.typing import Float, Lengths, State, Time, Times


class BankModel(Model):
    """A frozen bank, and a linear read-out of its statistics of all that was read.

    Args:
        bank: reads the sequences.
        d_input: numbers of a step: the bank's channels; or twice as many, of which the second half
            is 1 where the first half misses a value.
        weight: (d_output, features) of the read-out, float64.
        bias: (d_output,).

    Raises:
        ShapeError: sizes that do not fit one another.

    Example:
        >>> bank = ModeBank(1, 20, length=50).calibrate(torch.randn(4, 50, 1))
        >>> model = BankModel(bank, 1, torch.zeros(3, 120).double(), torch.zeros(3).double())
        >>> y, state = model(torch.randn(2, 30, 1))
        >>> y.shape
        torch.Size([2, 3])
    """

    def __init__(self, bank: ModeBank, d_input: int, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        if d_input not in (bank.d_input, 2 * bank.d_input):
            raise ShapeError(
                f"BankModel: d_input must be {bank.d_input}, or twice that with marks of missing "
                f"values, got {d_input}."
            )
        if weight.shape != (len(bias), bank.n_features):
            raise ShapeError(
                f"BankModel: weight must have shape ({len(bias)}, {bank.n_features}), got "
                f"{tuple(weight.shape)}."
            )
        self.d_input = self.d_model = d_input
        self.d_output, self.documents = len(bias), 1
        self.encoder, self.pool, self.bank = nn.Identity(), Pool("last"), bank
        self.head = nn.Linear(bank.n_features, self.d_output, dtype=torch.float64)
        with torch.no_grad():
            self.head.weight.copy_(weight)
            self.head.bias.copy_(bias)

    @classmethod
    def of_weights(cls, weights: Mapping[str, Tensor], d_input: int) -> "BankModel":
        """A model of the sizes that stored weights have, without their numbers.

        Raises:
            ShapeError: they are of something else.
        """
        parts = [weights.get(name) for name in ("bank.mean", "bank.threshold", "head.bias")]
        if any(part is None or part.ndim != 1 or not len(part) for part in parts):
            raise ShapeError("BankModel: weights must be those of a bank and its head, got others.")
        channels, n_modes, d_output = (len(part) for part in parts if part is not None)
        generator = torch.Generator()  # what is drawn is replaced, and nobody's numbers change
        bank = ModeBank(
            channels, n_modes, length=1, generator=generator, dtype=weights["bank.threshold"].dtype
        )
        zero = torch.zeros(d_output, len(STATISTICS) * n_modes, dtype=torch.float64, device="cpu")
        return cls(bank, d_input, zero, zero[:, 0])

    @property
    def timed(self) -> bool:
        """Modes fade over the time between steps."""
        return True

    def init_state(
        self,
        batch_size: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> dict[str, Tensor]:
        """Nothing read yet."""
        state = _finite(self.bank.init_state(batch_size))
        return {name: part.to(device or part.device) for name, part in state.items()}

    def forward(
        self,
        x: Float[Tensor, "batch time d_input"],
        state: State | None = None,
        *,
        reset: Tensor | None = None,
        lengths: Lengths | None = None,
        dt: Times | None = None,
    ) -> tuple[Float[Tensor, "batch d_output"], dict[str, Tensor]]:
        """Read sequences, or go on with them: see `linrnn.SequenceModel.forward`.

        Raises:
            ArgumentError: ``reset`` is given.
        """
        if reset is not None:
            raise ArgumentError(
                "BankModel: reset must be None, got a value. Begin with a new state."
            )
        entering = self.init_state(len(x)) if state is None else state
        return self._read(self._observed(x, lengths), entering, dt)

    def step(
        self, x_t: Float[Tensor, "batch d_input"], state: State, *, dt: Time | None = None
    ) -> tuple[Float[Tensor, "batch d_output"], dict[str, Tensor]]:
        """Read one step: the answer is to everything read so far."""
        x = self._observed(x_t[:, None], None)
        return self._read(x, state, None if dt is None else dt[:, None])

    def _read(self, x: Tensor, state: Any, dt: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        updated = self.bank.update(x, _with_nan(state), dt)
        return self.head(self.bank.features(updated).double()), _finite(updated)

    def _observed(self, x: Tensor, lengths: Lengths | None) -> Tensor:
        """(batch, time, channels): NaN where a value was not observed."""
        channels = self.bank.d_input
        if self.d_input != channels:
            x = x[..., :channels].masked_fill(x[..., channels:] > 0, torch.nan)
        if lengths is not None:
            ends = as_lengths("BankModel", lengths).to(x.device)[:, None, None]
            x = x.masked_fill(torch.arange(x.shape[1], device=x.device)[:, None] >= ends, torch.nan)
        return x


def _finite(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state of a bank in finite numbers, as streams and their files have them."""
    last, top = state["last"], state["top"]
    return {
        **state,
        "last": last.nan_to_num(nan=0.0),
        "seen": last.isnan().logical_not().to(last.dtype),
        "top": top.clamp(min=torch.finfo(top.dtype).min),
    }


def _with_nan(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state as the bank reads it."""
    parts = dict(state)
    unseen = parts.pop("seen") == 0
    return {**parts, "last": parts["last"].masked_fill(unseen, torch.nan)}
